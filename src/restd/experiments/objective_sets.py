"""Objectives and seeds by the name of their set: the paper's two tables, and what lies beyond them."""

MATCHED = (
    *("base", "rbd", "full-output-kd", "restd-h2", "restd", "rbd-future-hard", "hard", "shuffled"),
    "nontarget-output",
)
CONTROLS = ("codebook-only", "code-mean", "entropy-shuffle", "nontarget-permutation", "shape-swap")
BEYOND = ("restd-mean", "restd-trie", "restd-output", "output-mean")
SETS = {
    "matched": MATCHED,
    "controls": ("base", "restd", *CONTROLS),
    "beyond": ("base", "restd", *BEYOND),
    "all": (*MATCHED, *CONTROLS),
}
"""`matched` and `controls` are the paper's two tables, `all` is both; `beyond` is not in the paper."""
SEEDS = (42, 2027, 2028)


def parse_objectives(text: str) -> tuple[str, ...]:
    """Read `matched`, `controls`, `beyond`, `all`, or names separated by commas; `base` is always included, first.

    >>> parse_objectives("restd,rbd")
    ('base', 'restd', 'rbd')
    """
    names: list[str] = ["base"]
    for part in filter(None, (part.strip() for part in text.split(","))):
        names += SETS.get(part, (part,))
    return tuple(dict.fromkeys(names))
