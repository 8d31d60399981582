"""Tables of docs/results.md that put many measurements side by side, from results/search and results/supervision.

Each table shows what is there: copy further files into these folders and make the page again.

results/search has, by data set: `DATA-sN.json` (`restd evaluate --json` after step N), `DATA-plan.json` (updates of
each step, where steps have equal time), `DATA-ablate.json` (the same with `--ablate`), `DATA-old-quality.json` and
`DATA-al-quality.json` (quality.json of the two indexes).
results/supervision has, by study: `STUDY-generative.json` and `STUDY-hybrid.json` (comparison.json), `STUDY-valid.json`
(the same on validation queries), `STUDY-parts.json` and `STUDY-cold-start.json` (of `restd analyze`).
results/generator has `WAY-SEED.json` (`restd evaluate --json` on validation queries) for each way to train in `WAYS`.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from restd.analyses import Table, comparison_result, label
from restd.analyses.board_grid import NAMES, ordered, shown
from restd.analyses.result import best_of_columns
from restd.report import to_markdown

RESULTS = Path(__file__).parent.parent / "results"
SEARCH, SUPERVISION, GENERATOR = "search", "supervision", "generator"
MEASURES = ("NDCG@10", "Recall@10", "Recall@100")
FIRST, LAST = MEASURES[0], MEASURES[-1]
DATA = {
    "us20": "shop, English",
    "es20": "shop, Spanish",
    "jp20": "shop, Japanese",
    "mov": "films",
    "nf2": "NFCorpus",
}
INDEXES = {**DATA, "c5": "shop, English, of the studies below"}
"""Data whose indexes are compared; the last is 5,000 items without a held-out tenth."""
STEPS = {
    "s0": "default index, base",
    "s1": "aligned index",
    "s2": "… and geometry in the decoder",
    "s3": "… and four pseudo-queries per item",
    "s4": "… and `restd-output` (recipe `product`)",
}
STUDIES = {
    "all-al": "shop, aligned index, all pairs",
    "all-old": "shop, default index, all pairs",
    "p1-al": "shop, aligned index, one pair per item",
    "p0-al": "shop, aligned index, no pairs",
    "nf": "NFCorpus, aligned index, all pairs",
}
CONTROLS = "controls"
CHOICES = {"all-old": STUDIES["all-old"], "p1-al": STUDIES["p1-al"], CONTROLS: "shop, aligned index, all pairs"}
"""Studies whose objectives are compared on validation queries too, which is where a default may be chosen."""
WAYS = {
    "base": "the recipe without a teacher",
    "ema": "`train.ema=0.98`",
    "items": "`train.multi_positive=items`",
    "codes": "`train.multi_positive=codes`",
    "basetrie": "searched with `--score-norm trie_children`",
    "trie": "… and trained with `train.loss_norm=trie_children`",
    "steps": "`compact.steps=3` (latent steps)",
}
"""Other ways to train the generator."""
SEEDS = (42, 2027, 2028)
CHOSEN_FROM = ("base", "restd", "restd-output", "nontarget-output")
KINDS = ("generative", "hybrid", "parts", "cold-start")
LEXICAL_AND_DENSE, HYBRID, WITHOUT_HEADS = "bm25_dense", "hybrid", "without heads"
EVEN = "not distinguishable"
NOTHING = "Nothing of this table has been measured yet."


def stored(folder: str, name: str) -> dict[str, Any] | None:
    """A result, or None where it is not there."""
    path = RESULTS / folder / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def interval(gap: Mapping[str, Any] | None) -> str:
    """A difference with its interval, and a dagger where it survives Holm's correction."""
    if gap is None:
        return "–"
    mark = "†" if gap.get("adjusted") is not None and gap["adjusted"] < 0.05 else ""
    return f"{gap['mean']:+.2f} [{gap['low']:+.2f}, {gap['high']:+.2f}]{mark}"


def cell(entry: Mapping[str, Any] | None, measure: str) -> str:
    """A mean, and in parentheses the difference from the base with its interval."""
    if entry is None or measure not in entry:
        return "–"
    gap = entry.get("against_base", {}).get(measure)
    return f"{entry[measure]['mean']:.2f}" + ("" if gap is None else f" ({interval(gap)})")


def kept() -> Table | None:
    """What embeddings, latents and Semantic IDs can rank, in the default index and in the aligned one."""
    rows = []
    for data, title in INDEXES.items():
        for suffix, index in (("old", "default"), ("al", "aligned, `product-index`")):
            quality = stored(SEARCH, f"{data}-{suffix}-quality")
            if quality is not None:
                scores = (f"{own[measure]:.1f}" for own in quality["kept"].values() for measure in (FIRST, LAST))
                rows.append((title, index, *scores))
    names = [f"{kind}: {measure}" for kind in ("embeddings", "latents", "SIDs") for measure in (FIRST, LAST)]
    notes = ("Validation queries, by item, no model; `restd index inspect` prints these figures.",)
    return Table("kept", "What an index keeps", ("Data", "index", *names), tuple(rows), notes) if rows else None


def steps() -> Table | None:
    """The generator alone after each step, data set by data set."""
    rows = []
    for data, title in DATA.items():
        first, plan = None, stored(SEARCH, f"{data}-plan") or {}
        for step, name in STEPS.items():
            summary = stored(SEARCH, f"{data}-{step}")
            if summary is None:
                continue
            scores = summary["item"]
            first = first or scores
            change = "" if scores is first else f"{scores[FIRST] - first[FIRST]:+.2f}"
            updates = f"{plan[step]['updates']:,}" if step in plan else "500"
            rows.append((title, name, updates, *(f"{scores[measure]:.2f}" for measure in MEASURES), change))
    notes = (
        "Test queries, by item, beam 100, seed 42. One model per row: these differences have no interval. Shops: as "
        "many updates as three minutes of one core do; the others: 500 updates each.",
    )
    columns = ("Data", "step", "updates", *MEASURES, f"{FIRST} since the first step")
    return Table("steps", "The generator alone, step by step", columns, tuple(rows), notes) if rows else None


def search() -> Table | None:
    """What somebody would have used instead, the generator and the hybrid search, with the hybrid's lead."""
    rows, best = [], []
    for data, title in DATA.items():
        board = stored(SEARCH, f"{data}-ablate")
        if board is None:
            continue
        names = [name for name in ordered(board["rankers"]) if name in NAMES]
        values = [[board["rankers"][name][measure] for measure in MEASURES] for name in names]
        best += [(len(rows) + row, column + 1) for row, column in best_of_columns(values)]
        for name, scores in zip(names, values, strict=True):
            leads = board["hybrid_over"].get(name)
            cells = ("", "") if leads is None else (interval(leads[FIRST]), interval(leads[LAST]))
            rows.append((title, shown(name), *(f"{score:.2f}" for score in scores), *cells))
    notes = (
        "Test queries, by item; all weights were fitted on validation queries. Brackets: 95 % interval of the paired "
        "difference over queries; one model per data set.",
    )
    columns = ("Data", "", *MEASURES, f"hybrid's lead in {FIRST}", f"hybrid's lead in {LAST}")
    return Table("search", "What the search is worth", columns, tuple(rows), notes, tuple(best)) if rows else None


def ablation() -> Table | None:
    """What the hybrid search loses without each part."""
    boards = {data: board for data in DATA if (board := stored(SEARCH, f"{data}-ablate")) is not None}
    names = list(
        dict.fromkeys(name for board in boards.values() for name in board["hybrid_over"] if _is_ablation(name))
    )
    rows = [
        (DATA[data], *(interval(board["hybrid_over"].get(name, {}).get(FIRST)) for name in names))
        for data, board in boards.items()
    ]
    notes = (
        f"Points of {FIRST} that the hybrid search has over the same search without a part, whose weights are fitted "
        "anew. A dash: fitting had dropped the part.",
    )
    columns = ("Data", *(name.removeprefix("without ") for name in names))
    return Table("ablation", "What each part is worth", columns, tuple(rows), notes) if rows else None


def _is_ablation(name: str) -> bool:
    return name.startswith("without ")


def regimes() -> str:
    """How the models of each study were trained, in the words of its own comparison."""
    lines = []
    for study, title in STUDIES.items():
        summary = stored(SUPERVISION, f"{study}-generative") or stored(SUPERVISION, f"{study}-hybrid")
        if summary is not None:
            compact, pairs = summary["settings"]["model"]["compact"], summary["settings"]["train"]["pseudo_queries"]
            decoder = f"Decoder of {compact['blocks']} × {compact['width']}, {pairs} pseudo-queries per item."
            lines.append(f"* **{title}.** {comparison_result(summary).says} {decoder}")
    return "\n".join(lines) or NOTHING


def supervision(measure: str) -> Table | None:
    """Objectives by study: the generator alone, the heads, the hybrid search with and without heads."""
    rows = []
    for study, title in STUDIES.items():
        sources = {kind: stored(SUPERVISION, f"{study}-{kind}") for kind in KINDS}
        for objective in _objectives(sources):
            parts = _parts(sources["parts"], objective)
            rows.append(
                (
                    title,
                    label(objective),
                    cell(parts.get("generator") or _condition(sources["generative"], objective), measure),
                    cell(parts.get("heads"), measure),
                    cell(parts.get(WITHOUT_HEADS), measure),
                    cell(parts.get(HYBRID) or _condition(sources["hybrid"], objective), measure),
                )
            )
    notes = (
        f"{measure}, mean over seeds; in parentheses the difference from {label('base')} with its 95 % interval over "
        "queries. † after Holm's correction over all objectives, rankers and measures of the analysis behind a column. "
        "`base` and `nontarget-output` train no heads, so their two hybrid columns agree. A dash: not measured, or no "
        "heads.",
    )
    columns = ("Study", "objective", "generator", "heads alone", "hybrid without heads", "hybrid with heads")
    return Table("supervision", "Where residual supervision pays", columns, tuple(rows), notes) if rows else None


def _objectives(sources: Mapping[str, Mapping[str, Any] | None]) -> Iterable[str]:
    names = [name for kind in ("generative", "hybrid") for name in (sources[kind] or {}).get("conditions", {})]
    return dict.fromkeys([*names, *((sources["parts"] or {}).get("data", {}).get("objectives", {}))])


def _condition(summary: Mapping[str, Any] | None, objective: str) -> Mapping[str, Any] | None:
    return None if summary is None else summary["conditions"].get(objective)


def _parts(result: Mapping[str, Any] | None, objective: str) -> Mapping[str, Any]:
    return {} if result is None else result["data"]["objectives"].get(objective, {})


def items(measure: str) -> Table | None:
    """Seen, rare and unseen items: queries by training pairs of their answers, and queries for new items."""
    rows = []
    for study, title in STUDIES.items():
        parts, cold = (stored(SUPERVISION, f"{study}-{kind}") for kind in ("parts", "cold-start"))
        groups = [] if parts is None else parts["data"]["slices"]
        for group in reversed(groups):
            name = f"{group['pairs']} pairs ({group['queries']:,} queries)"
            rows += [_item_row(title, name, objective, own, measure) for objective, own in group["objectives"].items()]
        if cold is not None:
            new = cold["data"]["new"]
            name = f"added later ({cold['data']['queries']['new']:,} queries)"
            rows += [_item_row(title, name, objective, own, measure) for objective, own in new["objectives"].items()]
            own = new["beside"][LEXICAL_AND_DENSE]
            rows.append((title, name, NAMES[LEXICAL_AND_DENSE], "–", "–", "–", cell(own, measure)))
    notes = (
        f"{measure}, mean over seeds; differences from {label('base')} as above; † within a group of queries only. "
        "Items that were added later were in no training pair, pseudo-query or alignment.",
    )
    columns = ("Study", "answers", "objective", "generator", "heads alone", "hybrid without heads", "hybrid")
    return Table("items", "Seen, rare and unseen items", columns, tuple(rows), notes) if rows else None


def _item_row(title: str, group: str, objective: str, own: Mapping[str, Any], measure: str) -> tuple[str, ...]:
    scores = (cell(own.get(name), measure) for name in ("generator", "heads", WITHOUT_HEADS, HYBRID))
    return (title, group, label(objective), *scores)


def controls() -> Table | None:
    """Every objective and control, in this regime: the generator alone and the hybrid search."""
    generative, hybrid = (stored(SUPERVISION, f"{CONTROLS}-{kind}") for kind in ("generative", "hybrid"))
    objectives = dict.fromkeys(name for summary in (generative, hybrid) if summary for name in summary["conditions"])
    rows = [
        (
            label(name),
            *(
                cell(_condition(summary, name), measure)
                for summary in (generative, hybrid)
                for measure in (FIRST, LAST)
            ),
        )
        for name in objectives
    ]
    notes = (
        f"In parentheses the difference from {label('base')} with its 95 % interval over queries. † after "
        "Holm's correction over the comparison.",
    )
    columns = ("objective", *(f"{kind}, {measure}" for kind in ("generator", "hybrid") for measure in (FIRST, LAST)))
    return Table("controls", "Controls", columns, tuple(rows), notes) if rows else None


def choice() -> Table | None:
    """Objectives on the validation queries: the generator alone."""
    rows = []
    for study, title in CHOICES.items():
        summary = stored(SUPERVISION, f"{study}-valid")
        if summary is None:
            continue
        chosen = [name for name in summary["conditions"] if name in CHOSEN_FROM]
        rows += [
            (title, label(name), *(cell(summary["conditions"][name], measure) for measure in MEASURES))
            for name in chosen
        ]
    notes = (
        f"Validation queries, by Semantic ID, mean over {len(SEEDS)} seeds; in parentheses the difference from "
        f"{label('base')} with its 95 % interval over queries. † after Holm's correction over the comparison.",
    )
    columns = ("Study", "objective", *MEASURES)
    return Table("choice", "Which objective", columns, tuple(rows), notes) if rows else None


def generator() -> Table | None:
    """Ways to train the generator, on validation queries: means over seeds, and differences of every seed."""
    rows = []
    runs = {way: [stored(GENERATOR, f"{way}-{seed}") for seed in SEEDS] for way in WAYS}
    for way, title in WAYS.items():
        pairs = [(run["item"], base["item"]) for run, base in zip(runs[way], runs["base"], strict=True) if run and base]
        if not pairs:
            continue
        means = (f"{sum(own[measure] for own, _ in pairs) / len(pairs):.2f}" for measure in MEASURES)
        gains = " / ".join(f"{own[FIRST] - base[FIRST]:+.2f}" for own, base in pairs)
        rows.append((title, *means, "" if way == "base" else gains))
    notes = (f"Validation queries, by item, mean over seeds {', '.join(map(str, SEEDS))}.",)
    columns = ("Way to train", *MEASURES, f"{FIRST} over the first row, seed by seed")
    return Table("generator", "Ways to train the generator", columns, tuple(rows), notes) if rows else None


def says_search() -> str:
    """Where the hybrid search is first, and where an interval says so."""
    lines = []
    for data, title in DATA.items():
        board = stored(SEARCH, f"{data}-ablate")
        if board is None:
            continue
        others = [name for name in board["hybrid_over"] if not _is_ablation(name)]
        leads = []
        for measure in MEASURES:
            best = max(others, key=lambda name: board["rankers"][name][measure])
            gap = board["hybrid_over"][best][measure]
            leads.append(f"{measure} {interval(gap)} over {NAMES.get(best, best)} ({_verdict(gap)})")
        lines.append(f"* **{title}**, hybrid against the best of the others: {'; '.join(leads)}.")
    return "\n".join(lines) or NOTHING


def says_supervision() -> str:
    """Which differences from the base exclude zero, study by study and ranker by ranker."""
    lines = []
    for study, title in STUDIES.items():
        sources = {kind: stored(SUPERVISION, f"{study}-{kind}") for kind in KINDS}
        for ranker in ("generator", WITHOUT_HEADS, HYBRID):
            findings = [
                f"{label(objective)} {measure} {interval(gap)}"
                for objective in _objectives(sources)
                for measure in (FIRST, LAST)
                if (gap := _gap(sources, ranker, objective, measure)) is not None and _verdict(gap) != EVEN
            ]
            if any(_gap(sources, ranker, objective, FIRST) for objective in _objectives(sources)):
                said = "; ".join(findings) or "no objective differs from Base-FT by its interval"
                lines.append(f"* **{title}**, {shown(ranker)}: {said}.")
    return "\n".join(lines) or NOTHING


def _gap(
    sources: Mapping[str, Mapping[str, Any] | None], ranker: str, objective: str, measure: str
) -> Mapping[str, Any] | None:
    whole = {"generator": "generative", HYBRID: "hybrid"}
    entry = _parts(sources["parts"], objective).get(ranker)
    if entry is None and ranker in whole:
        entry = _condition(sources[whole[ranker]], objective)
    return (entry or {}).get("against_base", {}).get(measure)


def _verdict(gap: Mapping[str, Any]) -> str:
    if gap["low"] > 0:
        return "ahead"
    return "behind" if gap["high"] < 0 else EVEN


def _of(table: Callable[..., Table | None], *arguments: str) -> str:
    made = table(*arguments)
    return NOTHING if made is None else to_markdown(made)


BLOCKS: Mapping[str, Callable[[], str]] = {
    "kept": lambda: _of(kept),
    "steps": lambda: _of(steps),
    "search": lambda: _of(search),
    "ablation": lambda: _of(ablation),
    "search-says": says_search,
    "regimes": regimes,
    "supervision-ndcg10": lambda: _of(supervision, FIRST),
    "supervision-recall100": lambda: _of(supervision, LAST),
    "supervision-says": says_supervision,
    "items-ndcg10": lambda: _of(items, FIRST),
    "items-recall100": lambda: _of(items, LAST),
    "controls": lambda: _of(controls),
    "choice": lambda: _of(choice),
    "generator": lambda: _of(generator),
}
"""Blocks of the page by name: `<!-- made: NAME -->`."""


def known_files() -> set[Path]:
    """Files that some table reads."""
    search_names = [f"{data}-{part}" for data in DATA for part in (*STEPS, "ablate", "plan")]
    search_names += [f"{data}-{index}-quality" for data in INDEXES for index in ("old", "al")]
    studies = [f"{study}-{kind}" for study in STUDIES for kind in KINDS]
    studies += [f"{CONTROLS}-{kind}" for kind in ("generative", "hybrid")]
    studies += [f"{study}-valid" for study in CHOICES]
    ways = [f"{way}-{seed}" for way in WAYS for seed in SEEDS]
    names = {SEARCH: search_names, SUPERVISION: studies, GENERATOR: ways}
    return {RESULTS / folder / f"{name}.json" for folder, own in names.items() for name in own}
