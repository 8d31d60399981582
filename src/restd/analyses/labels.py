"""How objectives and rankers are called in tables and figures."""

from restd.data import Task
from restd.train import OBJECTIVES

BASE = "base"
_LABELS = {
    "base": "Base-FT",
    "rbd": "RBD (H=1)",
    "full-output-kd": "Full-output KD",
    "restd-h2": "ResTD (H=2)",
    "restd": "ResTD (H=4)",
    "rbd-future-hard": "RBD + future hard SID",
    "hard": "Hard SID targets",
    "shuffled": "Shuffled ResTD",
    "nontarget-output": "Non-target output alignment",
    "codebook-only": "Codebook-only",
    "code-mean": "Code-conditioned mean",
    "entropy-shuffle": "Same-code + entropy-bin shuffle",
    "nontarget-permutation": "Non-target permutation",
    "shape-swap": "Shape-matched swap",
    "restd-mean": "ResTD, mean teacher *",
    "restd-trie": "ResTD, trie teacher *",
    "restd-output": "ResTD + output KD *",
    "output-mean": "Output KD, mean teacher *",
    "ltrgr": "LTRGR *",
    "ripor": "RIPOR *",
    "ddro": "DDRO *",
    "start": "before continuation",
    "bm25": "BM25",
    "dense": "Dense",
    "popularity": "Popularity",
    "hybrid": "Hybrid (BM25 + dense)",
    "sasrec": "SASRec",
    "sasrec-bce": "SASRec (BCE)",
    "co-occurrence": "Neighbours by co-occurrence",
    "neighbours": "Neighbours by embedding",
}


def label(name: str, task: Task = "search") -> str:
    """Name of an objective or ranker in tables.

    >>> label("base"), label("base", "recommend"), label("restd", "recommend")
    ('Base-FT', 'TIGER', 'TIGER + ResTD')
    """
    text = _LABELS.get(name, name)
    if task == "search" or name not in OBJECTIVES:
        return text
    # the paper's horizon of four means four levels; recommenders look ahead over all the levels they have
    return "TIGER" if name == BASE else f"TIGER + {text.removesuffix(' (H=4)')}"
