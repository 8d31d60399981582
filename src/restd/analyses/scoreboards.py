"""A hybrid search beside what somebody would have used instead, as a table and a picture."""

from restd.analyses.result import AnalysisResult, Figure, Table, best_of_columns
from restd.evaluate import Scoreboard
from restd.evaluate.scoreboard import HYBRID, MEASURES, board_rows


def scoreboard_result(board: Scoreboard, *, queries: int, split: str) -> AnalysisResult:
    """The table of a scoreboard, with the hybrid's lead over every row and its interval."""
    means = board.means()
    first = str(MEASURES[0])
    values = [[means[name][str(measure)] for measure in MEASURES] for name in means]
    table = Table(
        "rankers",
        f"{queries:,} {split} queries, by item (%)",
        ("", *map(str, MEASURES), f"hybrid's lead in {first}"),
        tuple(board_rows(board)),
        ("Brackets: 95 % interval of the paired difference. All weights were chosen on validation queries.",),
        best_of_columns(values),
    )
    names = [name for name in means if not name.startswith("without")]
    figure = Figure(
        "rankers",
        f"{first} of every ranker",
        "bars",
        {"labels": names, "series": {first: [means[name][first] for name in names]}, "ylabel": f"{first} (%)"},
    )
    lead = {name: board.difference(HYBRID, name, first) for name in means if name != HYBRID}
    strongest = max((name for name in lead if not name.startswith("without")), key=lambda name: means[name][first])
    gap = lead[strongest]
    says = (
        f"The hybrid search has {means[HYBRID][first]:.1f} {first}, {gap.mean:+.1f} [{gap.low:+.1f}, {gap.high:+.1f}] "
        f"over {strongest}, the best of the others."
    )
    return AnalysisResult("rankers", "What the search is worth", says, (table,), (figure,), board.to_dict())
