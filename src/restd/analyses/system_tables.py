"""Tables and figure of a comparison of systems, in the layout of the paper's main table."""

from collections.abc import Mapping
from typing import Any

from restd.analyses.comparison_tables import comparison_result
from restd.analyses.labels import label
from restd.analyses.result import AnalysisResult, Figure, Table, best_of_columns
from restd.evaluate import Spread, relative_improvement

Summary = Mapping[str, Any]
"""What `comparison.json` of a comparison of systems has."""
_ALPHA, _MEBIBYTE = 0.05, 1 << 20
_PLOTTED = ("NDCG@10", "Recall@100")


def study_result(summary: Summary) -> AnalysisResult:
    """Tables and figures of any study: of objectives, or of systems."""
    return systems_result(summary) if summary["kind"] == "systems" else comparison_result(summary)


def systems_result(summary: Summary, *, name: str = "systems") -> AnalysisResult:
    """Tables and figure of a comparison of systems."""
    rows = summary["rows"]
    ours = [row for row in rows if rows[row]["ours"]]
    order = [*(row for row in rows if row not in ours), *ours]
    tables = [_main_table(summary, order)]
    if ours:
        tables += [_improvement_table(summary, ours), _gain_table(summary, ours)]
    tables += [_cost_table(summary, order), _what_table(summary)]
    says = " ".join([_protocol(summary), *_exceptions(summary)])
    return AnalysisResult(name, "Systems", says, tuple(tables), (_score_figure(summary, order),), summary)


def row_label(summary: Summary, row: str) -> str:
    """What a row is called: the system, and what is laid over it."""
    entry = summary["rows"][row]
    own = summary["systems"][entry["system"]]
    text = label(own["label"])
    if entry["objective"] in ("", own.get("objective")):
        return text
    # the paper's horizon of four means four levels; others look ahead over all the levels they have
    return f"{text} + {label(entry['objective']).removesuffix(' (H=4)')}"


def _main_table(summary: Summary, order: list[str]) -> Table:
    """Scores of every system; the best of each column in bold, the best that is not ours underlined."""
    rows, measures = summary["rows"], summary["measures"]
    cells, values = [], []
    for row in order:
        scores = [rows[row][measure] for measure in measures]
        marks = [_marks(rows[row], measure) for measure in measures]
        spreads = [str(Spread(score["mean"], score["deviation"], score["seeds"])) for score in scores]
        cells.append((row_label(summary, row), *(f"{text}{mark}" for text, mark in zip(spreads, marks, strict=True))))
        values.append([score["mean"] for score in scores])
    others = [[None] * len(measures) if rows[row]["ours"] else own for row, own in zip(order, values, strict=True)]
    several = max((len(entry["seeds"]) for entry in rows.values()), default=1) > 1
    notes = [
        "Percent, by item. Bold: best of the column; underlined: best of the column without ResTD and without our own "
        "system.",
        _seed_sentence(summary) if several else "One seed each.",
    ]
    if any(rows[row]["ours"] for row in order):
        notes.insert(
            1,
            "† differs from the system it is laid over, ‡ from the underlined one, after Holm's correction over both "
            f"comparisons of every row and measure (permutation test, 5 %), {summary['statistics']}.",
        )
    return Table(
        "main",
        "Systems",
        ("System", *measures),
        tuple(cells),
        tuple(notes),
        best_of_columns(values),
        best_of_columns(others),
    )


def _seed_sentence(summary: Summary) -> str:
    rows = summary["rows"]
    counts = sorted({len(entry["seeds"]) for entry in rows.values() if entry["seeds"]})
    if len(counts) == 1:
        return f"Mean ± sample standard deviation over {counts[0]} seeds; what is not trained has none."
    return "With ±: mean and sample standard deviation over seeds; without: one seed, or nothing that is trained."


def _marks(row: Mapping[str, Any], measure: str) -> str:
    return "".join(
        mark
        for against, mark in (("against_base", "†"), ("against_best", "‡"))
        if (difference := row.get(against, {}).get(measure)) and difference["adjusted"] < _ALPHA
    )


def _improvement_table(summary: Summary, ours: list[str]) -> Table:
    """Relative improvements of displayed values, as the paper computes them."""
    rows, measures = summary["rows"], summary["measures"]
    cells = []
    for row in ours:
        for against, what in (("against_base", ""), ("against_best", "the best other system")):
            if against not in rows[row]:
                continue
            improved = []
            for measure in measures:
                opponent = rows[row][against][measure]["row"]
                score, reference = (round(rows[each][measure]["mean"], 2) for each in (row, opponent))
                improved.append(f"{relative_improvement(score, reference):+.2f}" if reference else "–")
            opponent = rows[row][against][measures[0]]["row"]
            cells.append((f"{row_label(summary, row)} over {what or row_label(summary, opponent)}", *improved))
    notes = ("Percent of the displayed values; the best other system is the underlined one of each column.",)
    return Table("improvements", "Relative improvement (%)", ("", *measures), tuple(cells), notes)


def _gain_table(summary: Summary, ours: list[str]) -> Table:
    """Differences in points with their intervals."""
    rows, measures = summary["rows"], summary["measures"]
    cells = []
    for row in ours:
        for against, what in (("against_base", ""), ("against_best", "the best other system")):
            if differences := rows[row].get(against):
                opponent = differences[measures[0]]["row"]
                name = f"{row_label(summary, row)} − {what or row_label(summary, opponent)}"
                cells.append((name, *(_with_interval(differences[measure]) for measure in measures)))
    notes = (
        f"Points, with 95 % intervals of a paired bootstrap over queries, of values averaged over seeds; "
        f"{summary['statistics']}. The best other system was chosen on the same queries.",
    )
    return Table("gains", "Differences", ("", *measures), tuple(cells), notes)


def _with_interval(difference: Mapping[str, Any]) -> str:
    return f"{difference['mean']:+.2f} [{difference['low']:+.2f}, {difference['high']:+.2f}]"


def _cost_table(summary: Summary, order: list[str]) -> Table:
    """Time and memory of indexing, of training and of a query."""
    columns = ["System"]
    for stage in ("indexing", "training"):
        columns += [f"{stage}, s", f"CPU s of {stage}", f"MiB of {stage}"]
    cells = []
    for row in order:
        costs = summary["rows"][row]["costs"]
        query = costs.get("query")
        spent = [text for stage in ("indexing", "training") for text in _spent(costs.get(stage))]
        timed = ("–", "–") if query is None else (f"{query['milliseconds']:.1f}", _memory(query))
        cells.append((row_label(summary, row), *spent, *timed))
    encoding = summary["encoding"]
    shared = "" if encoding is None else f" ({encoding['seconds']:,.0f} s, {encoding['cpu']:,.0f} s of CPU)"
    notes = [
        f"Encoding the catalogue is not included: all share it{shared}. Systems with the same index share that too.",
        "Memory is the largest resident size of the stage's own process, with the libraries that it loads. A query: "
        "median of single queries, ten results, at the beam of the protocol.",
        f"Measured once, when the stage ran: {_machine(summary)}. ≥: a part of the stage was ended without a record.",
    ]
    return Table("costs", "Time and memory", (*columns, "query, ms", "MiB of a query"), tuple(cells), tuple(notes))


def _spent(cost: Mapping[str, Any] | None) -> tuple[str, str, str]:
    if cost is None:
        return "–", "–", "–"
    least = "" if cost["whole"] else "≥ "
    memory = _memory(cost)
    return f"{least}{cost['seconds']:,.1f}", f"{least}{cost['cpu']:,.1f}", memory if memory == "–" else least + memory


def _memory(cost: Mapping[str, Any]) -> str:
    """Mebibytes of a stage that had a process to itself; of no other stage is it known."""
    return f"{cost['peak'] / _MEBIBYTE:,.0f}" if cost["own_process"] else "–"


def _machine(summary: Summary) -> str:
    """Processors and threads of the stages; several where the study was continued elsewhere."""
    machines = {
        f"{cost['machine']['processor']}, threads: {cost['machine']['threads']['torch']}"
        for row in summary["rows"].values()
        for cost in row["costs"].values()
        if cost is not None
    }
    return " or ".join(sorted(machines)) or "unknown"


def _what_table(summary: Summary) -> Table:
    cells = [
        (label(own["label"]), own.get("index", "–"), own["summary"], own["source"] or "–")
        for own in summary["systems"].values()
    ]
    return Table("what", "What each system is", ("System", "Index", "What it is", "Source"), tuple(cells))


def _score_figure(summary: Summary, order: list[str]) -> Figure:
    measures = summary["measures"]
    shown = [measure for measure in _PLOTTED if measure in measures] or measures[:2]
    series = {
        measure: [{"label": row_label(summary, row), **summary["rows"][row][measure]["interval"]} for row in order]
        for measure in shown
    }
    return Figure(
        "scores",
        "Scores of all systems",
        "intervals",
        {"series": series, "xlabel": "percent, by item (95 % interval over queries)", "line": False},
        "Intervals are of each score alone; differences of paired queries are narrower and are in the table.",
    )


def _protocol(summary: Summary) -> str:
    """What all systems share."""
    card, budget = summary["card"], summary["settings"]["budget"]
    train = budget.get("train", {})
    length = f"{train['updates']:,} updates" if train.get("updates") else f"{train.get('epochs', '?')} epochs"
    batch = f" of {train['batch']} pairs" if "batch" in train else ""
    split = {"valid": "validation", "train": "training"}.get(card["split"], card["split"])
    return (
        f"{len(summary['systems'])} systems on one catalogue of {card['items']:,} items, evaluated on "
        f"{card['queries']['judged']:,} {split} queries. Everything that generates was trained from its first weights "
        f"under the budget {budget['name']!r}: {length}{batch}, the same pairs, the same size of backbone, the same "
        "seeds; only index and objective differ."
    )


def _exceptions(summary: Summary) -> list[str]:
    """Systems that ResTD was not laid over, and those that are not in the table, with the reasons."""
    sentences = []
    laid_over = {row["system"] for row in summary["rows"].values() if row["ours"]}
    if laid_over:
        reasons: dict[str, list[str]] = {}
        for name, own in summary["systems"].items():
            if own.get("objective") and own["restd"] != "yes" and name not in laid_over:
                reasons.setdefault(own["restd"], []).append(label(own["label"]))
        sentences += [f"ResTD is not laid over {', '.join(names)}: {reason}." for reason, names in reasons.items()]
    missing = {**summary["left_out"], **{name: f"it failed in {why}" for name, why in summary["failed"].items()}}
    sentences += [f"{name} is not in the table: {reason.removesuffix('.')}." for name, reason in missing.items()]
    return sentences
