"""The table of matched objectives: means over seeds, differences from Base-FT query by query, their significance."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from restd.artifacts import hash_json, read_manifest
from restd.config import plain
from restd.data import Task
from restd.data.trec import write_atomically
from restd.errors import DataError
from restd.evaluate import CONDITIONAL, Difference, Spread, holm_grid, paired_difference, relative_improvement
from restd.models.store import model_folder
from restd.study.comparison import CONTROLS, FILE, START, Compared, Comparison, Tell, run_comparison
from restd.study.finding import Figure, Finding, Table, best_of_columns
from restd.study.rates import best_rate, read_rates
from restd.train import OBJECTIVES

logger = logging.getLogger(__name__)
BASE = "base"
LABELS = {
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
_ALPHA = 0.05


def summarise(compared: Compared) -> dict[str, Any]:
    """Every number of a comparison as plain values, from which tables and figures are made."""
    comparison, level = compared.comparison, "sid"
    measures = [str(measure) for measure in comparison.measures]
    conditions: dict[str, Any] = {}
    for objective in comparison.objectives:
        held = {seed: compared.cells[objective, seed] for seed in comparison.seeds}
        conditions[objective] = {
            "seeds": {
                str(seed): {kind: found.summary()[kind] for kind in ("sid", "item", "groups")}
                for seed, found in held.items()
            },
            **{measure: plain(Spread.of([found.mean(measure) for found in held.values()])) for measure in measures},
            **_routing(comparison, objective),
        }
    against = holm_grid(
        {
            objective: {measure: _difference(compared, objective, measure, level) for measure in measures}
            for objective in comparison.objectives
            if objective != BASE
        }
    )
    for objective, found in against.items():
        conditions[objective]["against_base"] = {name: held.to_dict() for name, held in found.items()}
    first = next(iter(compared.cells.values()))
    return {
        "kind": "comparison",
        "task": comparison.task,
        "mode": "continuation" if comparison.init is not None else "joint",
        "measures": measures,
        "seeds": list(comparison.seeds),
        "settings": {"model": comparison.model.used if comparison.init is None else {}, **_shared(comparison.config)},
        "card": {**first.card.to_dict(), "seeds": list(comparison.seeds)},
        "statistics": CONDITIONAL,
        **({"rates": read_rates(comparison.out)} if comparison.rates else {}),
        "conditions": conditions,
        "beside": {
            name: {**found.summary()["sid"], "decoding": dict(found.card.decoding)}
            for name, found in compared.beside.items()
        },
    }


def _routing(comparison: Comparison, objective: str) -> dict[str, Any]:
    """For models that search a few categories: how many of the validation queries' positives these hold."""
    summaries = [
        read_manifest(model_folder(comparison.run(objective, seed))).settings["summary"] for seed in comparison.seeds
    ]
    names = [name for name in summaries[0] if name.startswith("category_recall")]
    return {name: plain(Spread.of([summary[name] for summary in summaries])) for name in names}


def compare(comparison: Comparison, *, at_once: int = 1, tell: Tell = logger.info) -> dict[str, Any]:
    """Run what is not finished of a comparison, write `comparison.json` and return what it holds."""
    held = summarise(run_comparison(comparison, at_once=at_once, tell=tell))
    write_atomically(comparison.out / FILE, [json.dumps(held, indent=2, ensure_ascii=False).encode() + b"\n"])
    return held


def read_comparison(folder: Path) -> dict[str, Any]:
    """Read what `compare` wrote to a folder."""
    path = folder / FILE
    if not path.is_file():
        raise DataError(f"{folder} holds no {FILE}; make it with restd compare --out {folder}.")
    return json.loads(path.read_text(encoding="utf-8"))


def comparison_identity(held: Mapping[str, Any]) -> str:
    """What analyses of a comparison depend on: rules, settings and seeds; more objectives are no change."""
    rules = {name: value for name, value in held["card"].items() if name != "versions"}
    return hash_json({"rules": rules, "settings": held["settings"], "seeds": held["seeds"], "mode": held["mode"]})


def _shared(config: Any) -> dict[str, Any]:
    said = plain(config)
    said.pop("objective")
    said["train"].pop("seed")
    return said


def _difference(compared: Compared, objective: str, measure: str, level: str) -> Difference:
    """Averaged over seeds first, query by query."""
    ours, theirs = (
        np.mean([compared.cells[name, seed].values[level][measure] for seed in compared.comparison.seeds], axis=0)
        for name in (objective, BASE)
    )
    return paired_difference(ours, theirs)


def comparison_finding(held: Mapping[str, Any], *, name: str = "comparison") -> Finding:
    """Tables and figures of a comparison's summary."""
    conditions = held["conditions"]
    controls = [objective for objective in conditions if objective in CONTROLS]
    matched = [objective for objective in conditions if objective not in CONTROLS]
    tables = [_beside_table(held)] if held["beside"] else []
    tables.append(_table(held, matched, "objectives", "Matched training objectives"))
    if controls:
        beside = [objective for objective in ("base", "restd") if objective in conditions]
        tables.append(_table(held, [*beside, *controls], "controls", "Teacher-target controls"))
    if routing := [name for name in conditions[BASE] if name.startswith("category_recall")]:
        tables.append(_routing_table(held, routing[0]))
    if held.get("rates"):
        tables.append(_rate_table(held))
    if len(conditions) > 1:
        tables.append(_gain_table(held))
        figures = (_gain_figure(held),)
    else:
        figures = ()
    said = " ".join(sentence for sentence in (_mode_sentence(held), _gist(held)) if sentence)
    return Finding(name, "Matched objectives", said, tuple(tables), figures, held)


def _mode_sentence(held: Mapping[str, Any]) -> str:
    train, seeds = held["settings"]["train"], held["seeds"]
    length = f"{train['updates']:,} updates" if train["updates"] else f"{train['epochs']} epochs"
    how = "from one checkpoint" if held["mode"] == "continuation" else "from the same first weights, jointly"
    probed = {objective: best_rate(found["probes"]) for objective, found in held.get("rates", {}).items()}
    rates = ", ".join(f"{value:g} ({label(objective, _task(held))})" for objective, value in probed.items() if value)
    rate = rates or f"{train['lr']:g}"
    asked = "queries" if _task(held) == "search" else "users"
    return (
        f"Every objective was trained {how} for {length} of {train['batch']} pairs at {rate}, "
        f"with {len(seeds)} paired seed{'s' if len(seeds) > 1 else ''} ({', '.join(map(str, seeds))}), and asked "
        f"{held['card']['queries']['judged']:,} {held['card']['split']} {asked}. "
        f"{_weights(held['settings']['distill'])}"
    )


def _weights(distill: Mapping[str, Any]) -> str:
    """How much an objective may weigh; where nothing was said, each has the paper's own."""
    if distill["weight"] is None and distill["output_weight"] is None and distill["cap"] is None:
        return "Weights and caps are the paper's."
    heads = "the paper's" if distill["weight"] is None else f"{distill['weight']:g}"
    output = heads if distill["output_weight"] is None else f"{distill['output_weight']:g}"
    cap = "the paper's" if distill["cap"] is None else distill["cap"]
    return f"λ is {heads} for what supervises heads and {output} for what supervises the output; cap: {cap}."


def _gist(held: Mapping[str, Any]) -> str:
    """What became of ResTD, whatever it is."""
    found = held["conditions"].get("restd", {}).get("against_base", {}).get("NDCG@10")
    if found is None:
        return ""
    verdict = (
        "a gain" if found["low"] > 0 else "a loss" if found["high"] < 0 else "no difference that can be told from 0"
    )
    return f"ResTD against {label(BASE, _task(held))} in NDCG@10: {_gap(found)}: {verdict}."


def _gap(found: Mapping[str, Any]) -> str:
    return f"{found['mean']:+.2f} [{found['low']:+.2f}, {found['high']:+.2f}]"


def _table(held: Mapping[str, Any], objectives: list[str], name: str, title: str) -> Table:
    measures = held["measures"]
    rows, values = [], []
    for objective in objectives:
        condition = held["conditions"][objective]
        cells = []
        for measure in measures:
            mark = _mark(condition.get("against_base", {}).get(measure))
            cells.append(f"{Spread(**condition[measure])}{mark}")
        rows.append((label(objective, _task(held)), *cells))
        values.append([condition[measure]["mean"] for measure in measures])
    seeds = len(held["seeds"])
    what = "mean ± sample standard deviation over seeds" if seeds > 1 else "one seed"
    base = label(BASE, _task(held))
    notes = [
        f"{what}; † differs from {base} after Holm's correction over the whole comparison (permutation test, 5 %), "
        f"{held['statistics']}."
    ]
    if any("*" in label(objective, _task(held)) for objective in objectives):
        notes.append("* beyond the paper.")
    return Table(name, title, ("Training objective", *measures), tuple(rows), tuple(notes), best_of_columns(values))


def _routing_table(held: Mapping[str, Any], name: str) -> Table:
    rows = tuple(
        (label(objective, _task(held)), str(Spread(**held["conditions"][objective][name])))
        for objective in held["conditions"]
    )
    width = name.partition("@")[2]
    notes = (
        f"Share of the validation queries' positives inside the {width} categories a model routes them to, in percent; "
        "what lies outside cannot be found.",
    )
    return Table("routing", "Categories", ("Training objective", f"Category recall@{width}"), rows, notes)


def _rate_table(held: Mapping[str, Any]) -> Table:
    """What each learning rate was worth to each objective, in short runs."""
    rates = sorted({rate for found in held["rates"].values() for rate in found["probes"]}, key=float, reverse=True)
    ranked = held["settings"]["train"]["select"] == "ndcg"
    rows, chosen = [], []
    for number, (objective, found) in enumerate(held["rates"].items()):
        answers = [found["probes"].get(rate) for rate in rates]
        rows.append((label(objective, _task(held)), *(_rate_cell(answer, ranked=ranked) for answer in answers)))
        if (best := best_rate(found["probes"])) is not None:
            chosen.append((number, 1 + list(map(float, rates)).index(best)))
    epochs = {found["epochs"] for found in held["rates"].values()}
    notes = (
        f"Generation loss of validation{', and NDCG@10 in brackets,' if ranked else ''} after "
        f"{' or '.join(map(str, sorted(epochs)))} epoch{'s' if max(epochs) > 1 else ''}, seed {held['seeds'][0]}; each "
        f"objective was trained at the rate with its {'highest NDCG@10' if ranked else 'lowest loss'}.",
    )
    return Table("rates", "Learning rates", ("Training objective", *rates), tuple(rows), notes, tuple(chosen))


def _rate_cell(answer: Mapping[str, float] | None, *, ranked: bool) -> str:
    if answer is None:
        return "fails"
    return f"{answer['loss']:.3f} ({answer['validation']:.2f})" if ranked else f"{answer['loss']:.3f}"


def _mark(found: Mapping[str, Any] | None) -> str:
    return "†" if found is not None and found["adjusted"] is not None and found["adjusted"] < _ALPHA else ""


def _task(held: Mapping[str, Any]) -> Task:
    return held.get("task", "search")  # results from before there were two tasks do not say


def label(name: str, task: Task = "search") -> str:
    """How a condition is called in tables.

    >>> label("base"), label("base", "recommend"), label("restd", "recommend")
    ('Base-FT', 'TIGER', 'TIGER + ResTD')
    """
    found = LABELS.get(name, name)
    if task == "search" or name not in OBJECTIVES:
        return found
    # the paper's horizon of four is that of four levels; here it is as many as there are
    return "TIGER" if name == BASE else f"TIGER + {found.removesuffix(' (H=4)')}"


def _beside_table(held: Mapping[str, Any]) -> Table:
    measures = held["measures"]
    rows, values = [], []
    for name, found in held["beside"].items():
        rows.append((label(name, _task(held)), *(f"{found[measure]:.2f}" for measure in measures)))
        values.append([found[measure] for measure in measures])
    for name in ("base", "restd"):
        if name in held["conditions"]:
            condition = held["conditions"][name]
            rows.append((label(name, _task(held)), *(f"{condition[measure]['mean']:.2f}" for measure in measures)))
            values.append([condition[measure]["mean"] for measure in measures])
    notes = ["The same queries, catalogue, labels and metric code."]
    ways = {label(name, _task(held)): found["decoding"] for name, found in held["beside"].items() if name != START}
    ways["the models"] = held["card"]["decoding"]
    notes.append(f"Decoding differs: {'; '.join(f'{name}: {_way(way)}' for name, way in ways.items())}.")
    external = [found for name, found in held["beside"].items() if name != START]
    if "restd" in held["conditions"] and external:
        improved = []
        for measure in measures:
            best = max(found[measure] for found in external)
            ours = round(held["conditions"]["restd"][measure]["mean"], 2)
            improved.append(f"{relative_improvement(ours, round(best, 2)):+.2f}" if round(best, 2) else "–")
        rows.append(("ResTD over the best baseline (%)", *improved))
        notes.append("Relative improvements are of the displayed values, over the strongest baseline of each column.")
    return Table(
        "overall", "Beside the baselines", ("Ranker", *measures), tuple(rows), tuple(notes), best_of_columns(values)
    )


def _way(decoding: Mapping[str, Any]) -> str:
    """How a ranker ranks, in a few words."""
    rest = [
        str(value) if name == "parameters" else f"{name} {value}"
        for name, value in decoding.items()
        if name not in ("ranker", "search")
    ]
    return ", ".join([str(decoding.get("search", "")), *rest])


def _gain_table(held: Mapping[str, Any]) -> Table:
    rows = [
        (label(objective, _task(held)), *(_gap(condition["against_base"][measure]) for measure in held["measures"]))
        for objective, condition in held["conditions"].items()
        if "against_base" in condition
    ]
    notes = (f"Points, with 95 % intervals of a paired bootstrap over queries; {held['statistics']}.",)
    title = f"Differences from {label(BASE, _task(held))}"
    return Table("gains", title, ("Training objective", *held["measures"]), tuple(rows), notes)


def _gain_figure(held: Mapping[str, Any]) -> Figure:
    shown = [measure for measure in ("NDCG@10", "Recall@100") if measure in held["measures"]] or held["measures"][:2]
    series = {
        measure: [
            {"label": label(objective, _task(held)), **condition["against_base"][measure]}
            for objective, condition in held["conditions"].items()
            if "against_base" in condition
        ]
        for measure in shown
    }
    return Figure(
        "gains",
        f"Difference from {label(BASE, _task(held))}, in points",
        "intervals",
        {"series": series, "xlabel": f"points over {label(BASE, _task(held))} (95 % interval over queries)"},
        "A bar that crosses the line cannot be told from no difference on these queries.",
    )
