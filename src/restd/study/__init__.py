"""Studies: matched objectives over paired seeds, and the analyses around them."""

from restd.study.comparison import SEEDS, SETS, Compared, Comparison, Decoding, objectives_named, run_comparison
from restd.study.finding import Figure, Finding, Table
from restd.study.matched import compare, comparison_finding, comparison_identity, read_comparison, summarise

__all__ = [
    "SEEDS",
    "SETS",
    "Compared",
    "Comparison",
    "Decoding",
    "Figure",
    "Finding",
    "Table",
    "compare",
    "comparison_finding",
    "comparison_identity",
    "objectives_named",
    "read_comparison",
    "run_comparison",
    "summarise",
]
