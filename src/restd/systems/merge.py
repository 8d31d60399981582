"""MERGE: an RQ-VAE that keeps items of the same query together, from any on coarse levels to equally good on deep ones.

The last level is balanced after training, as its authors do, and early levels weigh more in the generation loss.
"""

from restd.systems.registry import SYSTEMS, SystemSpec

SYSTEMS.add(
    SystemSpec(
        "merge",
        "RQ-VAE with query-item alignment and contrasts per level, balanced last codes, levels weighed by 1/√t.",
        source="Zhang et al., MERGE, ACL 2025",
        label="MERGE",
        index={
            "index": {"quantizer": "merge", "policy": "sinkhorn_last"},
            "merge": {"levels": 4},
            "align": {"enabled": "off"},
        },
        train={"model": {"backbone": "compact"}, "train": {"level_weights": "inverse-sqrt"}},
        needs=frozenset({"queries"}),
    )
)
