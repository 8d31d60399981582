"""Tables and figures of matched objectives: means over seeds, differences from Base-FT and their significance."""

from collections.abc import Mapping
from typing import Any

from restd.analyses.labels import BASE, label
from restd.analyses.result import AnalysisResult, Figure, Table, best_of_columns
from restd.evaluate import Spread, relative_improvement
from restd.experiments.evaluations import START
from restd.experiments.learning_rates import best_rate
from restd.experiments.objective_sets import CONTROLS

Summary = Mapping[str, Any]
"""What `comparison.json` holds."""
_ALPHA = 0.05


def comparison_result(summary: Summary, *, name: str = "comparison") -> AnalysisResult:
    """Tables and figures of a comparison."""
    conditions = summary["conditions"]
    controls = [objective for objective in conditions if objective in CONTROLS]
    matched = [objective for objective in conditions if objective not in CONTROLS]
    tables = [_overall_table(summary)] if summary["beside"] else []
    tables.append(_objective_table(summary, matched, "objectives", "Matched training objectives"))
    if controls:
        references = [objective for objective in ("base", "restd") if objective in conditions]
        tables.append(_objective_table(summary, [*references, *controls], "controls", "Teacher-target controls"))
    if recalls := [measure for measure in conditions[BASE] if measure.startswith("category_recall")]:
        tables.append(_routing_table(summary, recalls[0]))
    if summary.get("rates"):
        tables.append(_rate_table(summary))
    if len(conditions) > 1:
        tables.append(_gain_table(summary))
        figures = (_gain_figure(summary),)
    else:
        figures = ()
    sentences = (_training_sentence(summary), _weight_sentence(summary["settings"]["distill"]), _verdict(summary))
    return AnalysisResult(
        name, "Matched objectives", " ".join(filter(None, sentences)), tuple(tables), figures, summary
    )


def _label(summary: Summary, name: str) -> str:
    """Name of an objective or ranker in this comparison's tables."""
    return label(name, summary.get("task", "search"))  # results from before there were two tasks do not name theirs


def _training_sentence(summary: Summary) -> str:
    """How the cells were trained and on what they were evaluated."""
    train, seeds, card = summary["settings"]["train"], summary["seeds"], summary["card"]
    length = f"{train['updates']:,} updates" if train["updates"] else f"{train['epochs']} epochs"
    how = "from one checkpoint" if summary["mode"] == "continuation" else "from the same first weights, jointly"
    chosen_rates = {objective: best_rate(rates["probes"]) for objective, rates in summary.get("rates", {}).items()}
    rates = ", ".join(f"{rate:g} ({_label(summary, objective)})" for objective, rate in chosen_rates.items() if rate)
    unit = "users" if summary.get("task") == "recommend" else "queries"
    split = {"valid": "validation", "train": "training"}.get(card["split"], card["split"])
    return (
        f"Every objective was trained {how} for {length} of {train['batch']} pairs "
        f"with a learning rate of {rates or format(train['lr'], 'g')} "
        f"and {len(seeds)} paired seed{'s' if len(seeds) > 1 else ''} ({', '.join(map(str, seeds))}), and evaluated on "
        f"{card['queries']['judged']:,} {split} {unit}."
    )


def _weight_sentence(distill: Mapping[str, Any]) -> str:
    """Weights and caps of the auxiliary losses; an objective whose weight is unset has the paper's."""
    if distill["weight"] is None and distill["output_weight"] is None and distill["cap"] is None:
        return "Weights and caps are the paper's."
    heads = "the paper's" if distill["weight"] is None else f"{distill['weight']:g}"
    output = heads if distill["output_weight"] is None else f"{distill['output_weight']:g}"
    cap = "the paper's" if distill["cap"] is None else distill["cap"]
    return f"λ is {heads} for losses on heads and {output} for losses on the output; cap: {cap}."


def _verdict(summary: Summary) -> str:
    """Whether ResTD gained, lost, or neither."""
    difference = summary["conditions"].get("restd", {}).get("against_base", {}).get("NDCG@10")
    if difference is None:
        return ""
    if difference["low"] > 0:
        verdict = "a gain"
    elif difference["high"] < 0:
        verdict = "a loss"
    else:
        verdict = "not distinguishable from zero"
    return f"ResTD against {_label(summary, BASE)} in NDCG@10: {_with_interval(difference)}: {verdict}."


def _with_interval(difference: Mapping[str, Any]) -> str:
    return f"{difference['mean']:+.2f} [{difference['low']:+.2f}, {difference['high']:+.2f}]"


def _objective_table(summary: Summary, objectives: list[str], name: str, title: str) -> Table:
    """Scores of some objectives, with a mark where they differ from the base."""
    measures = summary["measures"]
    rows, values = [], []
    for objective in objectives:
        condition = summary["conditions"][objective]
        differences = condition.get("against_base", {})
        scores = [f"{Spread(**condition[measure])}{_mark(differences.get(measure))}" for measure in measures]
        rows.append((_label(summary, objective), *scores))
        values.append([condition[measure]["mean"] for measure in measures])
    shown = "mean ± sample standard deviation over seeds" if len(summary["seeds"]) > 1 else "one seed"
    notes = [
        f"{shown}; † differs from {_label(summary, BASE)} after Holm's correction over the whole comparison "
        f"(permutation test, 5 %), {summary['statistics']}."
    ]
    if any("*" in row[0] for row in rows):
        notes.append("* beyond the paper.")
    return Table(name, title, ("Training objective", *measures), tuple(rows), tuple(notes), best_of_columns(values))


def _mark(difference: Mapping[str, Any] | None) -> str:
    significant = difference is not None and difference["adjusted"] is not None and difference["adjusted"] < _ALPHA
    return "†" if significant else ""


def _routing_table(summary: Summary, measure: str) -> Table:
    rows = tuple(
        (_label(summary, objective), str(Spread(**condition[measure])))
        for objective, condition in summary["conditions"].items()
    )
    width = measure.partition("@")[2]
    notes = (
        f"Share of the validation queries' positives inside the {width} categories a model routes them to, in percent; "
        "items outside cannot be found.",
    )
    return Table("routing", "Categories", ("Training objective", f"Category recall@{width}"), rows, notes)


def _rate_table(summary: Summary) -> Table:
    """Validation scores of each learning rate for each objective, from short runs."""
    probed = summary["rates"]
    rates = sorted({rate for entry in probed.values() for rate in entry["probes"]}, key=float, reverse=True)
    ranked = summary["settings"]["train"]["select"] == "ndcg"
    rows, best_cells = [], []
    for number, (objective, entry) in enumerate(probed.items()):
        scores = [entry["probes"].get(rate) for rate in rates]
        rows.append((_label(summary, objective), *(_rate_cell(score, ranked=ranked) for score in scores)))
        if (best := best_rate(entry["probes"])) is not None:
            best_cells.append((number, 1 + list(map(float, rates)).index(best)))
    epochs = {entry["epochs"] for entry in probed.values()}
    notes = (
        f"Generation loss on validation{', and NDCG@10 in brackets,' if ranked else ''} after "
        f"{' or '.join(map(str, sorted(epochs)))} epoch{'s' if max(epochs) > 1 else ''}, seed {summary['seeds'][0]}; "
        f"each objective was trained at the rate with its {'highest NDCG@10' if ranked else 'lowest loss'}.",
    )
    return Table("rates", "Learning rates", ("Training objective", *rates), tuple(rows), notes, tuple(best_cells))


def _rate_cell(score: Mapping[str, float] | None, *, ranked: bool) -> str:
    if score is None:
        return "fails"
    return f"{score['loss']:.3f} ({score['validation']:.2f})" if ranked else f"{score['loss']:.3f}"


def _overall_table(summary: Summary) -> Table:
    """Base and ResTD beside the baselines and the checkpoint they continue from."""
    measures, references = summary["measures"], summary["beside"]
    baselines = {name: scores for name, scores in references.items() if name != START}
    rows, values = [], []
    for name, scores in references.items():
        rows.append((_label(summary, name), *(f"{scores[measure]:.2f}" for measure in measures)))
        values.append([scores[measure] for measure in measures])
    for name in ("base", "restd"):
        if name in summary["conditions"]:
            means = [summary["conditions"][name][measure]["mean"] for measure in measures]
            rows.append((_label(summary, name), *(f"{mean:.2f}" for mean in means)))
            values.append(means)
    decodings = {_label(summary, name): scores["decoding"] for name, scores in baselines.items()}
    decodings["the models"] = summary["card"]["decoding"]
    described = "; ".join(f"{name}: {_described(decoding)}" for name, decoding in decodings.items())
    notes = ["The same queries, catalogue, labels and metric code.", f"Decoding differs: {described}."]
    if summary.get("without_heads"):
        names = ", ".join(_label(summary, name) for name in summary["without_heads"])
        notes.append(f"Searched without heads, as their objectives train none: {names}.")
    if "restd" in summary["conditions"] and baselines:
        improved = []
        for measure in measures:
            best = round(max(scores[measure] for scores in baselines.values()), 2)
            ours = round(summary["conditions"]["restd"][measure]["mean"], 2)
            improved.append(f"{relative_improvement(ours, best):+.2f}" if best else "–")
        rows.append(("ResTD over the best baseline (%)", *improved))
        notes.append("Relative improvements are of the displayed values, over the strongest baseline of each column.")
    return Table(
        "overall", "Beside the baselines", ("Ranker", *measures), tuple(rows), tuple(notes), best_of_columns(values)
    )


def _described(decoding: Mapping[str, Any]) -> str:
    """How a ranker ranks, in a few words."""
    options = [
        str(value) if name == "parameters" else f"{name} {value}"
        for name, value in decoding.items()
        if name not in ("ranker", "search")
    ]
    return ", ".join([str(decoding.get("search", "")), *options])


def _gain_table(summary: Summary) -> Table:
    rows = [
        (_label(summary, objective), *(_with_interval(condition["against_base"][name]) for name in summary["measures"]))
        for objective, condition in summary["conditions"].items()
        if "against_base" in condition
    ]
    notes = (f"Points, with 95 % intervals of a paired bootstrap over queries; {summary['statistics']}.",)
    title = f"Differences from {_label(summary, BASE)}"
    return Table("gains", title, ("Training objective", *summary["measures"]), tuple(rows), notes)


def _gain_figure(summary: Summary) -> Figure:
    measures = summary["measures"]
    shown = [measure for measure in ("NDCG@10", "Recall@100") if measure in measures] or measures[:2]
    series = {
        measure: [
            {"label": _label(summary, objective), **condition["against_base"][measure]}
            for objective, condition in summary["conditions"].items()
            if "against_base" in condition
        ]
        for measure in shown
    }
    base = _label(summary, BASE)
    return Figure(
        "gains",
        f"Difference from {base}, in points",
        "intervals",
        {"series": series, "xlabel": f"points over {base} (95 % interval over queries)"},
        "An interval that crosses the line is not distinguishable from zero on these queries.",
    )
