"""How well items are found that were added after training: tables, a picture and a conclusion."""

from collections.abc import Mapping

from restd.analyses.board_grid import ordered, shown
from restd.analyses.result import AnalysisResult, Figure, Table, best_of_columns
from restd.evaluate.cold_start import ON_NEW, ColdStart
from restd.evaluate.scoreboard import HYBRID, MEASURES, WITHOUT, Scoreboard
from restd.evaluate.statistics import Difference, paired_difference

_FIRST = str(MEASURES[0])


def cold_start_result(outcome: ColdStart) -> AnalysisResult:
    """Tables of queries that new and known items answer, the weights, and what they say."""
    names = ordered(outcome.new.values)
    count = {side: len(board.values[HYBRID][_FIRST]) for side, board in _boards(outcome).items()}
    tables = [
        _new_table(outcome, names, count["new"]),
        _known_table(outcome, names, count["known"]),
        _weights_table(outcome),
    ]
    alone = [name for name in names if name not in ON_NEW.values()]
    means = {side: board.means() for side, board in _boards(outcome).items()}
    series = {f"{side} items": [means[side][name][_FIRST] for name in alone] for side in ("new", "known")}
    figure = Figure(
        "cold-start",
        f"{_FIRST} of queries for new and for known items",
        "bars",
        {"labels": [shown(name) for name in alone], "series": series, "ylabel": f"{_FIRST} (%)"},
        "New items were added to the trained search; nothing was trained on them.",
    )
    data = {
        "items": dict(outcome.items),
        "queries": {**count, "only_new": int(outcome.only_new.sum())},
        "fitted_on": dict(outcome.fitted_on),
        "new": outcome.new.to_dict(),
        "known": outcome.known.to_dict(),
        "before": outcome.before.to_dict(),
        "change": {name: _change(outcome, name).to_dict() for name in names},
    }
    return AnalysisResult("cold-start", "New items at once", _says(outcome), tuple(tables), (figure,), data)


def _boards(outcome: ColdStart) -> Mapping[str, Scoreboard]:
    return {"new": outcome.new, "known": outcome.known}


def _interval(gap: Difference) -> str:
    return f"{gap.mean:+.2f} [{gap.low:+.2f}, {gap.high:+.2f}]"


def _change(outcome: ColdStart, name: str) -> Difference:
    """What adding the new items does to queries that known items answer."""
    return paired_difference(outcome.known.values[name][_FIRST], outcome.before.values[name][_FIRST])


def _row(board: Scoreboard, name: str) -> tuple[str, ...]:
    values = board.values[name]
    lead = "" if name == HYBRID else _interval(board.difference(HYBRID, name, _FIRST))
    return (shown(name), *(f"{values[str(measure)].mean():.2f}" for measure in MEASURES), lead)


def _new_table(outcome: ColdStart, names: list[str], queries: int) -> Table:
    board, only = outcome.new, int(outcome.only_new.sum())
    means = board.means()
    return Table(
        "new",
        f"{queries:,} test queries for new items, by item (%)",
        ("", *map(str, MEASURES), f"hybrid's lead in {_FIRST}"),
        tuple(_row(board, name) for name in names),
        (
            f"{outcome.items['new']:,} items were added to {outcome.items['known']:,}. {only:,} of the queries are "
            "answered by new items alone; from the lists of the others, answers that are known items are taken out "
            "before judging.",
            "Brackets: 95 % interval of the paired difference.",
        ),
        best_of_columns([[means[name][str(measure)] for measure in MEASURES] for name in names]),
    )


def _known_table(outcome: ColdStart, names: list[str], queries: int) -> Table:
    board = outcome.known
    means = board.means()
    return Table(
        "known",
        f"{queries:,} test queries for known items, after adding the new ones, by item (%)",
        ("", *map(str, MEASURES), f"hybrid's lead in {_FIRST}", f"change of {_FIRST} by adding"),
        tuple((*_row(board, name), _interval(_change(outcome, name))) for name in names),
        ("New items that answer a query are taken out of its list before judging.",),
        best_of_columns([[means[name][str(measure)] for measure in MEASURES] for name in names]),
    )


def _weights_table(outcome: ColdStart) -> Table:
    """Shares of the weights of the hybrid search: as fitted on known items, and on new ones."""
    fitted = {"known": outcome.new.weights[HYBRID]}
    if ON_NEW[HYBRID] in outcome.new.weights:
        fitted["new"] = outcome.new.weights[ON_NEW[HYBRID]]
    parts = list(dict.fromkeys(part for weights in fitted.values() for part, weight in weights.items() if weight))
    shares = [[_share(weights, part) for weights in fitted.values()] for part in parts]
    columns = tuple(f"fitted on {outcome.fitted_on[side]:,} queries for {side} items" for side in fitted)
    rows = tuple((part, *(f"{share:.0%}" for share in own)) for part, own in zip(parts, shares, strict=True))
    return Table("weights", "Shares of the weights of the hybrid search", ("part", *columns), rows)


def _share(weights: Mapping[str, float], part: str) -> float:
    return weights.get(part, 0.0) / sum(weights.values())


def _says(outcome: ColdStart) -> str:
    new, known = outcome.new.means(), outcome.known.means()
    singles = [name for name in new if name not in (HYBRID, *ON_NEW.values()) and not name.startswith(WITHOUT)]
    best = max(singles, key=lambda name: new[name][_FIRST])
    lead = outcome.new.difference(HYBRID, best, _FIRST)
    sentences = [
        f"Queries for new items: the hybrid search has {new[HYBRID][_FIRST]:.1f} {_FIRST}, {lead.mean:+.1f} "
        f"[{lead.low:+.1f}, {lead.high:+.1f}] over {shown(best)}, the best of the others."
    ]
    if "generator" in new:
        sentences.append(
            f"The generator alone has {new['generator'][_FIRST]:.1f}; on queries for known items "
            f"it has {known['generator'][_FIRST]:.1f}."
        )
    if ON_NEW[HYBRID] in new:
        gain = outcome.new.difference(ON_NEW[HYBRID], HYBRID, _FIRST)
        cost = outcome.known.difference(ON_NEW[HYBRID], HYBRID, _FIRST)
        sentences.append(
            f"Weights fitted on queries for new items change the hybrid by {_interval(gain)} on queries for new "
            f"items, and by {_interval(cost)} on queries for known ones."
        )
    change = _change(outcome, HYBRID)
    sentences.append(f"Adding the items changes the hybrid on queries for known items by {_interval(change)}.")
    return " ".join(sentences)
