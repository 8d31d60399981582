"""LaSER: a dense retriever whose queries think in latent steps before they are compared.

The category path of an item stands in for a chain of thought, which nobody has for a catalogue: a surrogate.
"""

from restd.systems.registry import SYSTEMS, SystemSpec

SYSTEMS.add(
    SystemSpec(
        "laser",
        "A dual encoder whose queries think in latent steps, taught by category paths in place of chains of thought.",
        source="Jin et al., LaSER, 2026",
        label="LaSER (surrogate)",
        ranker="laser",
        needs=frozenset({"queries", "categories", "encoder"}),
    )
)
