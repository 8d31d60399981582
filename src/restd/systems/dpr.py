"""DPR: a dual encoder trained on the judged queries.

Both towers stand on the study's frozen encoder and are trained as maps over its vectors, with in-batch and BM25 hard
negatives; `dpr.tune_encoder=true` in a budget trains the encoder itself.
"""

from restd.systems.registry import SYSTEMS, SystemSpec

SYSTEMS.add(
    SystemSpec(
        "dpr",
        "A dual encoder trained with in-batch and BM25 hard negatives, as maps over the frozen encoder's vectors.",
        source="Karpukhin et al., Dense Passage Retrieval for Open-Domain Question Answering, EMNLP 2020",
        label="DPR",
        ranker="dpr",
        needs=frozenset({"queries", "encoder"}),
    )
)
