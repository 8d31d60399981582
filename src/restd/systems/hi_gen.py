"""Hi-Gen: identifiers that begin with the category, and a loss that knows positions and near misses.

Weights of 0.8 from level to level and a tenth of the credit for near codes are our reconstruction; efficiency signals
such as click rates are left out, as no public data set has them.
"""

from restd.systems.registry import SYSTEMS, SystemSpec

SYSTEMS.add(
    SystemSpec(
        "hi-gen",
        "Category path and clusters inside it as identifiers; early levels weigh more, close codes have soft credit.",
        source="Wu et al., Hi-Gen: Generative Retrieval for Large-Scale Personalized E-commerce Search, 2024",
        label="Hi-Gen",
        index={"index": {"quantizer": "hi-gen"}, "hi-gen": {"codes": 0}, "align": {"enabled": "off"}},
        train={"model": {"backbone": "compact"}, "train": {"level_weights": 0.8, "soft_credit": 0.1}},
        needs=frozenset({"categories"}),
    )
)
