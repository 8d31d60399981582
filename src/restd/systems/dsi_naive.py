"""DSI with arbitrary numbers: what generation can do when identifiers say nothing about the items.

The multi-task of indexing and retrieval is the budget's, so that every system learns the same pairs; with drawn queries
it is DSI-QG.
"""

from restd.systems.registry import SYSTEMS, SystemSpec

SYSTEMS.add(
    SystemSpec(
        "dsi-naive",
        "Random numbers as identifiers, digit by digit; indexing and retrieval are learned together.",
        source="Tay et al., Transformer Memory as a Differentiable Search Index, NeurIPS 2022",
        label="DSI (naive)",
        index={"index": {"quantizer": "dsi-naive"}, "align": {"enabled": "off"}},
        train={"model": {"backbone": "compact"}},
    )
)
