"""Dense retrieval with a frozen sentence encoder: what the embeddings know before anything is quantised."""

from restd.systems.registry import SYSTEMS, SystemSpec

SYSTEMS.add(
    SystemSpec(
        "dense",
        "Nearest embeddings of the study's frozen encoder; with theirs it is MPNet, Sentence-T5 or BGE-M3 (dense).",
        source="Song et al., MPNet, 2020; Ni et al., Sentence-T5, 2022; Chen et al., BGE-M3, 2024",
        label="Dense (frozen encoder)",
        ranker="dense",
        needs=frozenset({"encoder"}),
    )
)
