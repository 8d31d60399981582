"""FORGE: an RQ-VAE with a contrast between items of the same query, and identifiers that few items may share.

Three levels and at most five items of one identifier, as its authors have them; their multimodal embeddings are text
embeddings here.
"""

from restd.systems.registry import SYSTEMS, SystemSpec

SYSTEMS.add(
    SystemSpec(
        "forge",
        "RQ-VAE codes of three levels with an item-item contrast; at most five items share one, others move nearby.",
        source="Fu et al., FORGE, KDD 2026",
        label="FORGE",
        index={
            "index": {"quantizer": "forge", "policy": "capacity"},
            "forge": {"levels": 3},
            "align": {"enabled": "off"},
        },
        train={"model": {"backbone": "compact"}},
        needs=frozenset({"queries"}),
    )
)
