"""RIPOR's index without its ranking loss: what residual supervision over that index is compared with.

Index, output embeddings and decoder are RIPOR's; the generation loss is all that trains them. An objective of its own
leaves no place for ResTD, so `ripor` itself has none.
"""

from restd.systems.registry import SYSTEMS, SystemSpec
from restd.systems.ripor import DECODER, INDEX, SOURCE

SYSTEMS.add(
    SystemSpec(
        "ripor-index",
        "RIPOR's index and output embeddings with the plain generation loss, so that ResTD can be laid over them.",
        source=SOURCE,
        label="RIPOR's index",
        index=INDEX,
        train={"model": {"backbone": "compact"}, **DECODER},
        needs=frozenset({"queries"}),
    )
)
