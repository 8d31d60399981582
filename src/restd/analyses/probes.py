"""Probes: what frozen decoder states know of the quantiser's preferences, now and levels ahead."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from restd.analyses.labels import label
from restd.analyses.result import AnalysisResult, Figure, Table
from restd.analyses.teachers import Teachers, study_teachers
from restd.codes import spaces
from restd.data import Query, Task, read_judgments
from restd.distill import HorizonHeads
from restd.distill.equations import code_scores, kl_divergence
from restd.errors import DataError
from restd.evaluate import TestSet, read_tests
from restd.experiments.study import Study
from restd.index import SidIndex
from restd.models import open_model
from restd.progress import progress

_SEED = 4242
_EPOCHS, _BATCH, _RATE, _DECAY = 10, 64, 1e-3, 0.01
_FIT, _HELD_OUT = 1_024, 512
_RESAMPLES = 2_000

Cells = dict[tuple[int, int], np.ndarray]
"""By state and target level, 0-based: one value per query."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """One row per query and positive item: the query's number and the item's row."""

    texts: tuple[Query, ...]
    query: Int64[np.ndarray, "row"]
    item: Int64[np.ndarray, "row"]


def probe_queries(sets: Sequence[TestSet], *, seed: int) -> tuple[Rows, Rows]:
    """Two disjoint lots of held-out queries: up to 1,024 to fit on, and up to 512 (at most a third) to evaluate on."""
    pool = [(tests, number) for tests in sets for number in range(len(tests))]
    if len(pool) < 6:
        raise DataError(f"Expected at least 6 held-out queries to fit and evaluate a probe, got {len(pool)}.")
    order = np.random.default_rng(seed).permutation(len(pool))
    judged = min(_HELD_OUT, len(pool) // 3)
    lots = order[judged : judged + _FIT], order[:judged]
    fit, held_out = (_rows([pool[place] for place in lot]) for lot in lots)
    return fit, held_out


def _rows(chosen: Sequence[tuple[TestSet, int]]) -> Rows:
    texts = tuple(tests.texts[number] for tests, number in chosen)
    items = [tests.rows[tests.positives(number)] for tests, number in chosen]
    query = np.repeat(np.arange(len(chosen)), [len(rows) for rows in items])
    return Rows(texts, query, np.concatenate(items))


@torch.no_grad()
def decoder_states(
    model: Path, index: SidIndex, rows: Rows, *, levels: int, device: str | None = None
) -> Float[Tensor, "row level width"]:
    """States of a trained model under teacher forcing on each row's item, without dropout."""
    device = device or "cpu"
    backbone, _ = open_model(model, device=device)
    backbone.eval()
    prepared = backbone.prepare_queries(rows.texts, index)
    sids = torch.from_numpy(index.sids[rows.item].astype(np.int64))
    parts = []
    for start in range(0, len(rows.item), _BATCH):
        part = slice(start, start + _BATCH)
        memory = backbone.encode(prepared.batch(rows.query[part]).to(device))
        parts.append(backbone.states(memory, sids[part].to(device)).states[:, :levels].cpu())
    return torch.cat(parts)


def fit_probe(
    states: Float[Tensor, "row level width"],
    targets: Float[Tensor, "row level code"],
    teachers: Teachers,
    *,
    offset: int,
    seed: int = _SEED,
) -> HorizonHeads:
    """Fit one probe for all states that have a level so far ahead, on ten epochs of forward KL."""
    dim = teachers.teacher.geometry.codebooks.dim
    probe = HorizonHeads(states.shape[2], dim, horizon=1, seed=seed)
    optimizer = torch.optim.AdamW(probe.parameters(), lr=_RATE, weight_decay=_DECAY)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(_EPOCHS):
        for part in torch.randperm(len(states), generator=generator).split(_BATCH):
            optimizer.zero_grad()
            probe_divergence(probe, states[part], targets[part], teachers, offset=offset).mean().backward()
            optimizer.step()
    return probe


def probe_divergence(
    probe: HorizonHeads,
    states: Float[Tensor, "row level width"],
    targets: Float[Tensor, "row level code"],
    teachers: Teachers,
    *,
    offset: int,
) -> Float[Tensor, "row pair"]:
    """KL(Q̃_{t+s} ‖ probe) of every state t that has a level t + s."""
    geometry, levels = teachers.teacher.geometry, states.shape[1]
    read = states[:, : levels - offset]
    points = probe.ahead(read.flatten(0, 1))[0].unflatten(0, read.shape[:2])
    books, mask = geometry.codebooks.values[offset:], geometry.codebooks.mask[offset:]
    space, temperatures = geometry.codebooks.space, teachers.teacher.temperatures[offset:]
    points = spaces.into_space(points, space)
    student = code_scores(points, books, mask, temperatures, space=space).log_softmax(-1)
    return kl_divergence(targets[:, offset:], student)


def probe_model(
    model: Path,
    index: SidIndex,
    teachers: Teachers,
    fit: Rows,
    held_out: Rows,
    *,
    offsets: int,
    device: str | None = None,
) -> Cells:
    """Held-out KL of every cell (state, target level), averaged within each query; 0-based."""
    levels = teachers.teacher.geometry.levels
    read, shown = (decoder_states(model, index, rows, levels=levels, device=device) for rows in (fit, held_out))
    learned, wanted = (teachers.corrected(torch.from_numpy(rows.item)) for rows in (fit, held_out))
    cells: Cells = {}
    counts = np.bincount(held_out.query)
    for offset in range(offsets):
        probe = fit_probe(read, learned, teachers, offset=offset)
        with torch.no_grad():
            divergence = probe_divergence(probe, shown, wanted, teachers, offset=offset).numpy()
        for state in range(levels - offset):
            cells[state, state + offset] = np.bincount(held_out.query, weights=divergence[:, state]) / counts
    return cells


def probes(study: Study) -> AnalysisResult:
    """Current targets: RBD against Base-FT. Future targets: ResTD against RBD, every state and later level."""
    task = study.comparison.task
    sets = [
        read_tests(study.comparison.data, study.snapshot, split=split, task=task) for split in _held_out_splits(study)
    ]
    teachers = study_teachers(study)
    levels = teachers.teacher.geometry.levels
    objectives, seeds = study.comparison.objectives, study.comparison.seeds
    total = ("rbd" in objectives and 2) + ("rbd" in objectives and "restd" in objectives and 2 * len(seeds))
    if not total:
        raise DataError("Probes compare rbd with base, and restd with rbd; add both to the study's objectives.")
    tables, figures, numbers = [], [], {}
    with progress("Probing", total=total) as advance:
        fit, held_out = probe_queries(sets, seed=_SEED)
        current = _measured(study, ("rbd", "base"), seeds[:1], teachers, fit, held_out, 1, advance)
        numbers["current"] = [
            {"level": level + 1, **_reduction(current["rbd"], current["base"], (level, level))}
            for level in range(levels)
        ]
        tables.append(_current_table(numbers["current"], study.comparison.task))
        if "restd" in objectives:
            fit, held_out = probe_queries(sets, seed=_SEED + 1)
            future = _measured(study, ("restd", "rbd"), seeds, teachers, fit, held_out, levels, advance)
            cells = sorted(future["restd"][0])
            numbers["future"] = [
                {"state": cell[0] + 1, "target": cell[1] + 1, **_reduction(future["restd"], future["rbd"], cell)}
                for cell in cells
            ]
            figures.append(_heat_map(numbers["future"], levels))
            tables.append(_future_table(numbers["future"], levels))
    numbers["queries"] = {"fit": len(fit.texts), "judged": len(held_out.texts)}
    says = (
        f"Frozen states, {numbers['queries']['fit']:,} held-out queries to fit a probe, and {len(held_out.texts):,} "
        "others to evaluate it. Above zero, the probe reads the quantiser's preferences better from the states."
    )
    return AnalysisResult(
        "probes", "Probes of current and future preferences", says, tuple(tables), tuple(figures), numbers
    )


def _held_out_splits(study: Study) -> list[str]:
    """The validation queries, where the data has any, and those of the study."""
    if study.comparison.task == "recommend":
        return [study.comparison.split]  # a user is in every split, and must not be fitted on and judged
    splits = set(read_judgments(study.comparison.data)["split"].to_pylist())
    return [split for split in dict.fromkeys(("valid", study.comparison.split)) if split in splits]


def _measured(
    study: Study,
    objectives: Sequence[str],
    seeds: Sequence[int],
    teachers: Teachers,
    fit: Rows,
    held_out: Rows,
    offsets: int,
    advance: Any,
) -> dict[str, list[Cells]]:
    cells_by_objective: dict[str, list[Cells]] = {}
    for objective in objectives:
        for seed in seeds:
            model = study.model(objective, seed)
            device = study.comparison.device
            cells = probe_model(model, study.index, teachers, fit, held_out, offsets=offsets, device=device)
            cells_by_objective.setdefault(objective, []).append(cells)
            advance(1)
    return cells_by_objective


def _reduction(
    ours: list[Cells],
    theirs: list[Cells],
    cell: tuple[int, int],
) -> dict[str, float]:
    """100 (1 - KL_ours / KL_theirs) of seed-averaged KL, with a paired interval over queries."""
    one, other = (np.mean([cells[cell] for cells in side], axis=0) for side in (ours, theirs))
    draws = np.random.default_rng(0).integers(len(one), size=(_RESAMPLES, len(one)))
    drawn = 100 * (1 - one[draws].mean(1) / other[draws].mean(1))
    low, high = np.percentile(drawn, [2.5, 97.5])
    return {
        "reduction": float(100 * (1 - one.mean() / other.mean())),
        "low": float(low),
        "high": float(high),
        "ours": float(one.mean()),
        "theirs": float(other.mean()),
    }


def _current_table(entries: list[dict[str, Any]], task: Task) -> Table:
    rows = tuple(
        (
            str(entry["level"]),
            f"{entry['theirs']:.4f}",
            f"{entry['ours']:.4f}",
            f"{entry['reduction']:+.2f}",
            f"[{entry['low']:+.2f}, {entry['high']:+.2f}]",
        )
        for entry in entries
    )
    columns = ("Level", f"KL {label('base', task)}", f"KL {label('rbd', task)}", "reduction (%)", "95 % interval")
    return Table("current", "Current targets: one probe for all levels, one pair of models", columns, rows)


def _future_table(entries: list[dict[str, Any]], levels: int) -> Table:
    entry_of = {(entry["state"], entry["target"]): entry for entry in entries}
    rows = tuple(
        (
            f"state {state}",
            *(
                f"{entry_of[state, target]['reduction']:+.2f} [{entry_of[state, target]['low']:+.2f}, "
                f"{entry_of[state, target]['high']:+.2f}]"
                if (state, target) in entry_of
                else ""
                for target in range(1, levels + 1)
            ),
        )
        for state in range(1, levels + 1)
    )
    columns = ("", *(f"level {target}" for target in range(1, levels + 1)))
    return Table("future", "KL reduction (%) of ResTD over RBD, by state and target level", columns, rows)


def _heat_map(entries: list[dict[str, Any]], levels: int) -> Figure:
    values: list[list[float | None]] = [[None] * levels for _ in range(levels)]
    for entry in entries:
        values[entry["state"] - 1][entry["target"] - 1] = entry["reduction"]
    data = {
        "values": values,
        "rows": [f"state {number}" for number in range(1, levels + 1)],
        "columns": [f"level {number}" for number in range(1, levels + 1)],
        "unit": "%",
    }
    says = "Diagonal: the level a state predicts. To the right: later levels."
    return Figure("future-probes", "Probe KL reduction of ResTD over RBD", "heatmap", data, says)
