"""LTRGR: learning to rank on the model's own beam, after learning to generate.

The released system has text spans and an FM-index; here it stands on TIGER's identifiers, which it shares, and the
margins are in nats. Ranking is the last fifth of the updates, the others are generation alone.
"""

from restd.systems.registry import SYSTEMS, SystemSpec

SYSTEMS.add(
    SystemSpec(
        "ltrgr",
        "TIGER's identifiers; in the last fifth of training, positives get ahead of the model's own beam by a margin.",
        source="Li et al., Learning to Rank in Generative Retrieval, AAAI 2024",
        label="LTRGR",
        index={
            "index": {"quantizer": "rqvae", "policy": "suffix"},
            "rqvae": {"levels": 3},
            "align": {"enabled": "off"},
        },
        train={"model": {"backbone": "compact", "objective": "ltrgr"}, "rank": {"start": 0.8}},
        needs=frozenset({"queries"}),
    )
)
