"""DSI with clusters inside clusters: identifiers are paths of a tree, of unequal length.

Branches of ten and leaves of at most a hundred items, as in the paper; the pairs are the budget's.
"""

from restd.systems.registry import SYSTEMS, SystemSpec

SYSTEMS.add(
    SystemSpec(
        "dsi-semantic",
        "Paths of a tree of clusters as identifiers, of unequal length; indexing and retrieval are learned together.",
        source="Tay et al., Transformer Memory as a Differentiable Search Index, NeurIPS 2022",
        label="DSI (semantic)",
        index={"index": {"quantizer": "dsi-semantic"}, "align": {"enabled": "off"}},
        train={"model": {"backbone": "compact"}},
    )
)
