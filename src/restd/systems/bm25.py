"""BM25: the lexical reference."""

from restd.systems.registry import SYSTEMS, SystemSpec

SYSTEMS.add(
    SystemSpec(
        "bm25",
        "Words that query and item share, weighed by how rare they are; nothing is trained.",
        source="Robertson and Zaragoza, The Probabilistic Relevance Framework, 2009",
        label="BM25",
        ranker="bm25",
    )
)
