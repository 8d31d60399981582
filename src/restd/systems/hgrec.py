"""HGRec: residual quantisation in the Poincaré ball, where there is more room towards the boundary.

Only its abstract is public: curvature 1 and codebooks that double from level to level are ours.
"""

from restd.systems.registry import SYSTEMS, SystemSpec

SYSTEMS.add(
    SystemSpec(
        "hgrec",
        "RQ-VAE in the Poincaré ball with codebooks that grow with the level; ResTD over it measures hyperbolically.",
        source="HGRec, ICML 2026",
        label="HGRec",
        index={
            "index": {"quantizer": "hyperbolic", "policy": "single_substitution"},
            "hyperbolic": {"levels": 4, "codes": 0},
            "align": {"enabled": "off"},
        },
        train={"model": {"backbone": "compact"}},
    )
)
