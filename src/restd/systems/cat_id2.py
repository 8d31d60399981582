"""CAT-ID²: an RQ-VAE whose levels follow the category tree.

Formulas and weights of the three losses are our reconstruction from the paper's text; last codes are balanced after
training.
"""

from restd.systems.registry import SYSTEMS, SystemSpec

SYSTEMS.add(
    SystemSpec(
        "cat-id2",
        "RQ-VAE with a category contrast per level, evenly used codes and spread items; balanced last codes.",
        source="Liu et al., CAT-ID², WSDM 2026",
        label="CAT-ID²",
        index={
            "index": {"quantizer": "cat-id2", "policy": "sinkhorn_last"},
            "cat-id2": {"levels": 4},
            "align": {"enabled": "off"},
        },
        train={"model": {"backbone": "compact"}},
        needs=frozenset({"categories"}),
    )
)
