"""What the teachers of an index are like: how often they contradict stored codes, and how much a code leaves open."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from restd.analyses.result import AnalysisResult, Figure, Table
from restd.distill import ResidualTeacher
from restd.distill.equations import correction_weight, teacher_distribution
from restd.distill.geometry import Geometry
from restd.distill.temperature import find_temperatures
from restd.errors import DataError
from restd.experiments.study import Study
from restd.index import SidIndex
from restd.train import DistillSettings
from restd.train.objectives import AuxiliaryConfig

_ROWS = 4_096
_DECILES = 10
_PAIRS = 20_000


@dataclass(frozen=True, slots=True, eq=False)
class Teachers:
    """The teacher of an index as a run with these settings would have it."""

    teacher: ResidualTeacher
    margin: float
    floor: float

    @classmethod
    def of(cls, index: SidIndex, settings: DistillSettings) -> "Teachers":
        """Find temperatures and correction as training would."""
        geometry = Geometry.of_index(index)
        config = settings.config(levels=geometry.levels, horizon=None, auxiliary=AuxiliaryConfig())
        kind = None if index.quantizer is None else index.quantizer.settings["kind"]
        temperatures = find_temperatures(geometry, config.temperature, quantizer=kind)
        return cls(ResidualTeacher(geometry, temperatures, config.correction), settings.margin, settings.floor)

    def raw(self, rows: Int64[Tensor, "row"]) -> Float[Tensor, "row level code"]:
        """Distributions before correction."""
        geometry, books = self.teacher.geometry, self.teacher.geometry.codebooks
        return teacher_distribution(
            geometry.residuals(rows), books.values, books.mask, self.teacher.temperatures, space=books.space
        )

    def corrected(self, rows: Int64[Tensor, "row"]) -> Float[Tensor, "row level code"]:
        """Distributions as they teach."""
        return self.teacher.targets(rows).values

    def taught(self, items: int, *, level: int) -> Float[Tensor, "item code"]:
        """Of every item, its distribution at one level as it teaches."""
        return torch.cat([self.corrected(rows)[:, level] for rows in torch.arange(items).split(_ROWS)])


def study_teachers(study: Study) -> Teachers:
    """The teacher as the runs of a study had it."""
    return Teachers.of(study.index, study.comparison.config.distill)


def jensen_shannon(one: Float[Tensor, "*pair code"], other: Float[Tensor, "*pair code"]) -> Float[Tensor, "*pair"]:
    """Divergence of two distributions from their mean, in nats: 0 where they agree, ln 2 where they share nothing.

    >>> round(float(jensen_shannon(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))), 4)
    0.6931
    """
    mean = (one + other) / 2
    entropies = [torch.special.entr(distribution.double()).sum(-1) for distribution in (mean, one, other)]
    return (entropies[0] - (entropies[1] + entropies[2]) / 2).clamp_min(0.0)


def conflicts(index: SidIndex, settings: DistillSettings) -> AnalysisResult:
    """How often collision repair edited a code, how often the raw teacher prefers another, and what correcting takes.

    At level 1 both rates are one: the first residual is the latent itself, whatever was edited later.
    """
    teachers = Teachers.of(index, settings)
    geometry = teachers.teacher.geometry
    contradicted, needed = [], []
    for rows in torch.arange(len(index)).split(_ROWS):
        raw, stored = teachers.raw(rows), geometry.stored(rows)[..., None]
        own = raw.gather(-1, stored)
        rival = raw.scatter(-1, stored, 0.0).amax(-1, keepdim=True)
        contradicted.append((rival > own)[..., 0])
        needed.append(correction_weight(own, rival, margin=teachers.margin)[..., 0])
    conflict, epsilon = torch.cat(contradicted).numpy(), torch.cat(needed).numpy()
    edited = index.edited
    levels = [
        _level(level, edited[:, level], conflict[:, level], epsilon[:, level], floor=teachers.floor)
        for level in range(geometry.levels)
    ]
    cells = tuple(
        (
            str(entry["level"]),
            f"{entry['edited']:.2f}",
            f"{entry['conflict']:.2f}",
            *(f"{entry[name]:.3f}" if entry[name] is not None else "–" for name in ("mean", "median", "p90", "p95")),
            f"{entry['below_floor']:.1f}" if entry["below_floor"] is not None else "–",
        )
        for entry in levels
    )
    table = Table(
        "conflicts",
        "Stored codes against the residual's own preference, by level",
        ("Level", "SID edited (%)", "Raw conflict (%)", "ε* mean", "median", "P90", "P95", "ε* < floor (%)"),
        cells,
        ("ε* is over the items in conflict: the least weight of the stored code that lets it lead by the margin.",),
    )
    figure = Figure(
        "conflicts",
        "Edits and conflicts by level",
        "bars",
        {
            "labels": [f"level {entry['level']}" for entry in levels],
            "series": {
                "edited by collision repair": [entry["edited"] for entry in levels],
                "stored code is not the teacher's first": [entry["conflict"] for entry in levels],
            },
            "ylabel": "% of items",
        },
    )
    says = (
        f"{len(index):,} items, policy {index.policy}. A conflict is an item whose stored code is not the one its raw "
        "teacher prefers; training on it uncorrected would contradict the generation loss."
    )
    return AnalysisResult(
        "conflicts", "Conflicts between teacher and stored SID", says, (table,), (figure,), {"levels": levels}
    )


def _level(
    level: int, edited: np.ndarray, conflict: np.ndarray, epsilon: np.ndarray, *, floor: float
) -> dict[str, Any]:
    own = epsilon[conflict]
    some = len(own) > 0
    return {
        "level": level + 1,
        "edited": float(100 * edited.mean()),
        "conflict": float(100 * conflict.mean()),
        "mean": float(own.mean()) if some else None,
        "median": float(np.median(own)) if some else None,
        "p90": float(np.percentile(own, 90)) if some else None,
        "p95": float(np.percentile(own, 95)) if some else None,
        "below_floor": float(100 * (own < floor).mean()) if some else None,
    }


def variation(index: SidIndex, settings: DistillSettings, *, pairs: int = _PAIRS, seed: int = 0) -> AnalysisResult:
    """How different the level-1 teachers of two items are that share the code and the entropy.

    Pairs are drawn uniformly from all pairs of items with equal first code and equal decile of entropy: what such a
    pair disagrees on, neither the stored code nor the teacher's confidence can tell.
    """
    teacher = Teachers.of(index, settings).taught(len(index), level=0)
    entropy = torch.special.entr(teacher).sum(-1).numpy()
    order = np.argsort(entropy, kind="stable")
    decile = np.empty(len(index), np.int64)
    decile[order] = np.arange(len(index)) * _DECILES // len(index)
    first, second = _same_group_pairs(index.sids[:, 0].astype(np.int64) * _DECILES + decile, pairs, seed=seed)
    divergences = jensen_shannon(teacher[torch.from_numpy(first)], teacher[torch.from_numpy(second)]).numpy()
    numbers = {
        "pairs": len(divergences),
        "mean": float(divergences.mean()),
        "median": float(np.median(divergences)),
        "p95": float(np.percentile(divergences, 95)),
        "most_possible": float(np.log(2)),
    }
    cells = (f"{numbers['pairs']:,}", *(f"{numbers[name]:.4f}" for name in ("mean", "median", "p95")))
    table = Table(
        "variation",
        "Jensen–Shannon divergence within a code and an entropy decile (nats)",
        ("Teachers", "pairs", "mean", "median", "P95"),
        (("level 1, corrected", *cells),),
        ("0 would mean that code and confidence say everything; ln 2 = 0.6931 is the most possible.",),
    )
    counts, edges = np.histogram(divergences, bins=30)
    figure = Figure(
        "variation",
        "Divergence of teachers that share code and entropy",
        "bars",
        {
            "labels": [f"{edge:.3f}" for edge in edges[:-1]],
            "series": {"pairs": counts.tolist()},
            "ylabel": "pairs",
            "xlabel": "Jensen–Shannon divergence (nats)",
            "sparse": True,
        },
    )
    says = (
        f"The teachers of two items with the same code and entropy decile are {numbers['mean']:.4f} nats apart on "
        "average, of at most 0.6931. The stored code and its confidence do not determine this part of a teacher."
    )
    return AnalysisResult("variation", "Variation of teachers within a code", says, (table,), (figure,), numbers)


def _same_group_pairs(group: np.ndarray, count: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of different items of one group, uniform over all such pairs: a group weighs n (n - 1) / 2."""
    order = np.argsort(group, kind="stable")
    _, first, sizes = np.unique(group[order], return_index=True, return_counts=True)
    weight = sizes * (sizes - 1) / 2
    if not weight.any():
        raise DataError("No two items share their first code and entropy decile, so there is nothing to compare.")
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(sizes), count, p=weight / weight.sum())
    one = (rng.random(count) * sizes[chosen]).astype(np.int64)
    other = (rng.random(count) * (sizes[chosen] - 1)).astype(np.int64)
    other += other >= one
    return order[first[chosen] + one], order[first[chosen] + other]
