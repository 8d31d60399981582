"""RIPOR: residual codes of vectors trained for relevance, and prefixes that are ranked as a teacher ranks them.

Relevance-trained vectors are the aligned latents, its dense phase at the price of seconds, so this system is aligned
although the others are not. The teacher is the ensemble of BM25 and dense search with the grades, in place of a
cross-encoder. Ranking is the last fifth of the updates, the others are generation alone.
"""

from restd.systems.registry import SYSTEMS, SystemSpec

SOURCE = "Zeng et al., Scalable and Effective Generative Information Retrieval, WWW 2024"
INDEX = {"index": {"quantizer": "kmeans", "policy": "single_substitution"}, "align": {"enabled": "on"}}
DECODER = {"compact": {"codewords": True}}

SYSTEMS.add(
    SystemSpec(
        "ripor",
        "Residual k-means of aligned latents, output embeddings from codewords, prefix margins as a teacher's scores.",
        source=SOURCE,
        label="RIPOR",
        index=INDEX,
        train={"model": {"backbone": "compact", "objective": "ripor"}, **DECODER, "rank": {"start": 0.8}},
        needs=frozenset({"queries"}),
    )
)
