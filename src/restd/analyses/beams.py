"""Where beams lose what they look for: prefix recall by level, the gap to exact scoring, and single cases."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from restd.analyses.labels import label
from restd.analyses.result import AnalysisResult, Figure, Table
from restd.codes import Trie
from restd.data import Query, Task
from restd.errors import ConfigError, DataError
from restd.evaluate import Measure, TestSet, judge, some_queries, units
from restd.experiments.study import Study
from restd.index import SidIndex
from restd.models import Backbone, make_stepper, open_model
from restd.models.contract import Memory
from restd.models.decode_protocol import Stepper
from restd.progress import Advance, progress
from restd.search import Level, beam_search, exact_rank, exact_scores
from restd.search.trace import trace
from restd.snapshot import Items

_BATCH = 32
_EXACT_BATCH = 8
_LAST = 3
"""Items of a history that stand for it."""
_WIDTHS = (10, 100)
_SHOWN = (Measure("NDCG", 10), Measure("Recall", 100))


@dataclass(frozen=True, slots=True, eq=False)
class Searcher:
    """A model taken apart: what reads queries, and what steps through levels; the trie is on the model's device."""

    backbone: Backbone
    stepper: Stepper
    index: SidIndex
    trie: Trie
    device: torch.device

    @classmethod
    def of(cls, model: Path, index: SidIndex, *, device: torch.device | str | None = None) -> "Searcher":
        """Open a trained run, on a device; the CPU by default."""
        place = torch.device(device or "cpu")
        backbone, _ = open_model(model, device=place)
        backbone.eval()
        return cls(backbone, make_stepper(backbone), index, index.trie.to(place), place)

    @torch.inference_mode()
    def read(self, queries: Sequence[Query]) -> Memory:
        """Read queries."""
        prepared = self.backbone.prepare_queries(queries, self.index)
        return self.backbone.encode(prepared.batch(np.arange(len(queries))).to(self.device))


def prefix_recall(
    searcher: Searcher, tests: TestSet, index: SidIndex, *, width: int, advance: Advance
) -> tuple[Float[np.ndarray, "query level"], np.ndarray]:
    """Share of each query's positives whose prefix is still in the beam after each level, and the ranked rows."""
    levels = len(index.sizes)
    sids = torch.from_numpy(index.sids.astype(np.int64))
    recall, ranked = np.zeros((len(tests), levels)), []
    for start in range(0, len(tests), _BATCH):
        numbers = range(start, min(start + _BATCH, len(tests)))
        kept: list[Tensor] = []

        def watch(shown: Level, kept: list[Tensor] = kept) -> None:
            if shown.level:
                kept.append(shown.prefixes.cpu())

        memory = searcher.read([tests.texts[number] for number in numbers])
        beams = beam_search(searcher.stepper, memory, searcher.trie, width=width, watch=watch)
        kept.append(torch.where(beams.leaves[..., None] >= 0, beams.sids, -1).cpu())
        for place, number in enumerate(numbers):
            wanted = sids[torch.from_numpy(tests.rows[tests.positives(number)])]
            for level, prefixes in enumerate(kept):
                same = (prefixes[place][None] == wanted[:, None, : level + 1]).all(-1).any(1)
                recall[number, level] = float(same.float().mean())
            leaves = beams.leaves[place][beams.leaves[place] >= 0].cpu()
            ranked.append([row for items in index.trie.items_of(leaves) for row in items])
        advance(len(numbers))
    return 100 * recall, _padded(ranked)


def _padded(lists: Sequence[Sequence[int]]) -> np.ndarray:
    """Lists of rows as one array, -1 behind the shorter ones."""
    rows = np.full((len(lists), max(map(len, lists))), -1, np.int64)
    for number, ranked in enumerate(lists):
        rows[number, : len(ranked)] = ranked
    return rows


def exact_rows(searcher: Searcher, tests: TestSet, index: SidIndex, *, depth: int, advance: Advance) -> np.ndarray:
    """Items of the `depth` best Semantic IDs of every query, by exact scores."""
    ranked: list[list[int]] = []
    for start in range(0, len(tests), _EXACT_BATCH):
        texts = tests.texts[start : start + _EXACT_BATCH]
        scores = exact_scores(searcher.stepper, searcher.read(texts), searcher.trie)
        best = scores.sort(dim=1, descending=True, stable=True).indices[:, :depth].cpu()
        for leaves in best:
            ranked.append([row for items in index.trie.items_of(leaves) for row in items])
        advance(len(texts))
    return _padded(ranked)


def beam(study: Study, *, queries: int = 200, objectives: Sequence[str] = ("base", "restd")) -> AnalysisResult:
    """Prefix recall by level and beam width, and what a beam loses against scoring every Semantic ID."""
    tests, seed = some_queries(study.tests, queries), study.comparison.seeds[0]
    unit_of, task = units(study.snapshot, "sid"), study.comparison.task
    entries: list[dict[str, Any]] = []
    shown = list(dict.fromkeys(objectives))
    _refuse_missing(study, shown)
    with progress("Following beams", total=len(shown) * (len(_WIDTHS) + 1) * len(tests)) as advance:
        for objective in shown:
            searcher = Searcher.of(study.model(objective, seed), study.index, device=study.comparison.device)
            lists: dict[str, np.ndarray] = {}
            for width in _WIDTHS:
                recall, lists[str(width)] = prefix_recall(searcher, tests, study.index, width=width, advance=advance)
                entries.append({"objective": objective, "width": width, "prefix_recall": recall.mean(0).tolist()})
            depth = max(measure.k for measure in _SHOWN)
            lists["exact"] = exact_rows(searcher, tests, study.index, depth=depth, advance=advance)
            scores = {
                name: {
                    str(measure): float(measure.of(judge(rows, tests, unit_of, depth=depth)).mean())
                    for measure in _SHOWN
                }
                for name, rows in lists.items()
            }
            entries.append({"objective": objective, "scores": scores})
    return AnalysisResult(
        "beam",
        "Where beams lose positives",
        f"{len(tests):,} queries, seed {seed}. The whole catalogue is searched and every positive gains 1. What leaves "
        "the beam cannot come back: the last level bounds recall.",
        (_recall_table(entries, task), _gap_table(entries, task)),
        (_recall_figure(entries, task),),
        {"entries": entries, "queries": len(tests)},
    )


def _recall_table(entries: list[dict[str, Any]], task: Task) -> Table:
    recalls = [entry for entry in entries if "prefix_recall" in entry]
    levels = len(recalls[0]["prefix_recall"])
    rows = tuple(
        (
            f"{label(entry['objective'], task)}, width {entry['width']}",
            *(f"{value:.1f}" for value in entry["prefix_recall"]),
        )
        for entry in recalls
    )
    columns = ("Model", *(f"level {level}" for level in range(1, levels + 1)))
    return Table("prefix-recall", "Positives whose prefix is in the beam (%)", columns, rows)


def _gap_table(entries: list[dict[str, Any]], task: Task) -> Table:
    names = [str(measure) for measure in _SHOWN]
    rows = []
    for entry in entries:
        for kind, scores in entry.get("scores", {}).items():
            search = "exact" if kind == "exact" else f"beam {kind}"
            rows.append((f"{label(entry['objective'], task)}, {search}", *(f"{scores[name]:.2f}" for name in names)))
    return Table("beam-gap", "Beam search against scoring everything", ("Search", *names), tuple(rows))


def _recall_figure(entries: list[dict[str, Any]], task: Task) -> Figure:
    recalls = [entry for entry in entries if "prefix_recall" in entry]
    series = {f"{label(entry['objective'], task)}, width {entry['width']}": entry["prefix_recall"] for entry in recalls}
    labels = [f"level {level + 1}" for level in range(len(recalls[0]["prefix_recall"]))]
    data = {"labels": labels, "series": series, "ylabel": "positives in the beam (%)"}
    return Figure("prefix-recall", "Prefix recall by level", "lines", data)


def _refuse_missing(study: Study, names: Sequence[str]) -> None:
    for name in names:
        if name not in study.comparison.objectives:
            raise DataError(f"The study has no objective {name!r}; it has: {', '.join(study.comparison.objectives)}.")


def cases(
    study: Study, *, ours: str = "restd", theirs: str = "base", count: int = 4, width: int = 10
) -> AnalysisResult:
    """Queries that one model answers much better than the other, both ways, with traces of the target's prefix."""
    _refuse_missing(study, (ours, theirs))
    if ours == theirs:
        raise ConfigError(f"Cases compare two models, and both are {ours!r}. Name another with --theirs.")
    seed, index = study.comparison.seeds[0], study.index
    measure = "NDCG@10" if any(str(known) == "NDCG@10" for known in study.comparison.measures) else None
    measure = measure or str(study.comparison.measures[0])
    gaps = study.cell(ours, seed).values["sid"][measure] - study.cell(theirs, seed).values["sid"][measure]
    order = np.argsort(-gaps, kind="stable")
    chosen = list(dict.fromkeys([*order[: -(-count // 2)].tolist(), *order[::-1][: count // 2].tolist()]))
    models = {
        name: Searcher.of(study.model(name, seed), study.index, device=study.comparison.device)
        for name in (ours, theirs)
    }
    catalog = study.catalog()
    items = Items(index.table.ids, catalog)
    titles, ids = items.titles().to_pylist(), index.table.ids.to_pylist()
    entries = []
    with progress("Following cases", total=len(chosen)) as advance:
        for number in chosen:
            entries.append(
                _case(number, models, study, titles, ids, width=width, gain=float(gaps[number]), measure=measure)
            )
            advance(1)
    names = {name: label(name, study.comparison.task) for name in (ours, theirs)}
    figures = tuple(_trace_figure(place, entry, names) for place, entry in enumerate(entries, start=1))
    return AnalysisResult(
        "cases",
        "Cases",
        f"Queries with the largest differences in {measure} between {names[ours]} and {names[theirs]} (seed {seed}), "
        f"gains and losses alike. Rank* counts all Semantic IDs, scored exactly; traces have a beam "
        f"of {width} over the whole catalogue.",
        (_case_table(entries, names, measure),),
        figures,
        {"cases": entries},
    )


def _case(
    number: int,
    models: dict[str, Searcher],
    study: Study,
    titles: list[str],
    ids: list[str],
    *,
    width: int,
    gain: float,
    measure: str,
) -> dict[str, Any]:
    tests, index = study.tests, study.index
    rows = tests.rows[tests.positives(number)]
    grades = dict(zip(rows.tolist(), tests.grades[tests.positives(number)].tolist(), strict=True))
    sids = torch.from_numpy(index.sids[rows].astype(np.int64))
    leaves = index.trie.find(sids)
    ranks, first = {}, {}
    memories = {name: model.read([tests.texts[number]]) for name, model in models.items()}
    for name, model in models.items():
        scores = exact_scores(model.stepper, memories[name], model.trie).cpu()
        ranks[name] = exact_rank(scores.expand(len(leaves), -1), leaves).tolist()
        best = index.trie.items_of(scores[0].argmax()[None])[0][0]
        grade = grades.get(int(best))
        first[name] = {"item": ids[best], "title": titles[best], "grade": grade}
    one, other = (np.log(ranks_of_model) for ranks_of_model in ranks.values())
    spread = np.abs(one - other)
    target = int(spread.argmax())  # the positive the two models disagree on most
    traces = {}
    for name, model in models.items():
        sid = sids[target].to(model.device)
        levels, rank = trace(model.stepper, memories[name], model.trie, sid, width=width, trie_normalized=False)
        traces[name] = {"levels": [level.to_dict() for level in levels], "rank": rank}
    return {
        "query": _query_text(tests.texts[number], ids, titles),
        "gain": gain,
        "measure": measure,
        "width": width,
        "target": {"item": ids[rows[target]], "title": titles[rows[target]], "grade": grades[int(rows[target])]},
        "sid": list(index.table.shown(rows[[target]])[0]),
        "exact_rank": {name: own[target] for name, own in ranks.items()},
        "first": first,
        "traces": traces,
    }


def _query_text(query: Query, ids: Sequence[str], titles: Sequence[str]) -> str:
    """A query for a person: its words, or the titles of what was taken last."""
    if isinstance(query, str):
        return query
    title_of = dict(zip(ids, titles, strict=True))
    return " → ".join(title_of[item] for item in query.items[-_LAST:])


def _case_table(entries: list[dict[str, Any]], names: dict[str, str], measure: str) -> Table:
    ours, theirs = names
    rows = []
    for place, entry in enumerate(entries, start=1):
        lost = {}
        for name in (ours, theirs):
            gone = next((level["level"] + 1 for level in entry["traces"][name]["levels"] if not level["kept"]), None)
            rank = entry["traces"][name]["rank"]
            lost[name] = f"rank {rank}" if rank else f"lost at level {gone}"
        rows.append(
            (
                f"{place}. {entry['query']}",
                f"{entry['gain']:+.1f}",
                f"{entry['target']['title']} ({entry['target']['grade']:g})",
                f"{entry['exact_rank'][ours]:,} / {entry['exact_rank'][theirs]:,}",
                f"{lost[ours]} / {lost[theirs]}",
                " / ".join(_first_answer(entry["first"][name]) for name in (ours, theirs)),
            )
        )
    pair = " / ".join(names.values())
    columns = ("Query", f"Δ {measure}", "Target (grade)", f"Rank*, {pair}", f"Beam, {pair}", f"First answer, {pair}")
    note = "The target is the positive whose Rank* differs most. A first answer without a grade is not a positive."
    return Table("cases", "Cases, best and worst", columns, tuple(rows), (note,))


def _first_answer(first: dict[str, Any]) -> str:
    return first["title"] + ("" if first["grade"] is None else f" ({first['grade']:g})")


def _trace_figure(place: int, entry: dict[str, Any], names: dict[str, str]) -> Figure:
    data = {
        "width": entry["width"],
        "series": {
            shown_name: [
                {"rank": level["rank"], "kept": level["kept"], "gap": level["gap"]}
                for level in entry["traces"][name]["levels"]
            ]
            for name, shown_name in names.items()
        },
        "codes": entry["sid"],
    }
    says = f"Target: {entry['target']['title']}, SID {'-'.join(map(str, entry['sid']))}."
    return Figure(f"case-{place}", f"“{entry['query']}”: rank of the target's prefix", "trace", data, says)
