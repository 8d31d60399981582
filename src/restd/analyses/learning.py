"""How the runs of a study learned: losses and validations epoch by epoch, and what the auxiliary loss weighed."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from restd.analyses.labels import label
from restd.analyses.result import AnalysisResult, Figure, Table
from restd.errors import DataError
from restd.evaluate import Spread
from restd.experiments.study import Study
from restd.train import read_log
from restd.train.log import LOG

Record = Mapping[str, float | int]
_PARTS = 10
_LOOKS_AT = {"loss": "validation loss, negative", "ndcg": "validation NDCG@10 (%)"}


@dataclass(frozen=True, slots=True)
class Course:
    """One run, part by part: its epochs, or tenths of it where it was not validated."""

    loss: tuple[float, ...]
    """Mean generation loss of the training pairs."""
    valid_loss: tuple[float, ...] = ()
    """Generation loss of the validation pairs at the end of each epoch; empty where nothing was validated."""
    validation: tuple[float, ...] = ()
    """What early stopping looked at, higher being better."""
    divergence: tuple[float, ...] = ()
    """Mean KL of what distils; empty where the objective does not."""
    share: float = 0.0
    """What distils, times its weight, over the generation loss; the mean of all updates."""
    capped: float = 0.0
    """Share of micro-batches in which the cap and not λ set the weight."""

    @classmethod
    def read(cls, log: Path) -> "Course":
        """Read the log of a run."""
        records = read_log(log) if log.is_file() else []
        steps = [record for record in records if "sid_loss" in record]
        if not steps:
            raise DataError(f"{log} has no record of an update, so its training cannot be analysed; train it again.")
        return cls.of(steps, [record for record in records if "validation" in record])

    @classmethod
    def of(cls, steps: Sequence[Record], validations: Sequence[Record]) -> "Course":
        """Take the records of updates and of validations, both in order.

        >>> steps = [{"update": n, "sid_loss": 4.0 - n, "kl": 2.0, "weight": 0.1, "capped": 0.0} for n in (1, 2)]
        >>> course = Course.of(steps, [{"update": 2, "valid_loss": 2.5, "validation": 7.0}])
        >>> course.loss, course.validation, round(course.share, 4)
        ((2.5,), (7.0,), 0.0833)
        """
        ends = [record["update"] for record in validations]
        if not ends:
            last = np.linspace(0, len(steps), min(_PARTS, len(steps)) + 1)[1:].astype(int) - 1
            ends = [steps[place]["update"] for place in last]
        part = np.searchsorted(ends, [record["update"] for record in steps]).clip(max=len(ends) - 1)

        def column(name: str) -> Float[np.ndarray, "update"]:
            return np.array([record[name] for record in steps])

        def means(values: Float[np.ndarray, "update"]) -> tuple[float, ...]:
            return tuple((np.bincount(part, values) / np.bincount(part)).tolist())

        # heads and output may both be supervised: `kl` and `output_kl`, each with a weight and a cap of its own
        kinds = [name.removesuffix("kl") for name in steps[0] if name.endswith("kl")]
        loss, parts = column("sid_loss"), [column(f"{kind}kl") for kind in kinds]
        weights = [column(f"{kind}weight") for kind in kinds]
        added = [(one * other / loss).mean() for one, other in zip(parts, weights, strict=True)]
        return cls(
            means(loss),
            tuple(record["valid_loss"] for record in validations),
            tuple(record["validation"] for record in validations),
            means(np.sum(parts, axis=0)) if parts else (),
            float(np.sum(added)),
            float(np.mean([column(f"{kind}capped") for kind in kinds])) if kinds else 0.0,
        )

    @property
    def best(self) -> int | None:
        """The epoch that was validated best, counted from 0, the first of equals."""
        return int(np.argmax(self.validation)) if self.validation else None


def learning(study: Study) -> AnalysisResult:
    """Every objective's course, averaged over seeds: was it long enough, did the cap bind, is the teacher learned?"""
    comparison, task = study.comparison, study.comparison.task
    courses = {
        name: [Course.read(study.model(name, seed) / LOG) for seed in comparison.seeds]
        for name in comparison.objectives
    }
    first = next(iter(courses.values()))[0]
    looks_at = _LOOKS_AT[comparison.config.train.select]
    labels = [
        str(number + 1) for number in range(max(len(course.loss) for runs in courses.values() for course in runs))
    ]
    losses: dict[str, list[float]] = {}
    scores: dict[str, list[float]] = {}
    for name, runs in courses.items():
        shown_name = label(name, task)
        losses[f"{shown_name}, training"] = _mean([course.loss for course in runs])
        if first.validation:
            losses[f"{shown_name}, validation"] = _mean([course.valid_loss for course in runs])
            scores[shown_name] = _mean([course.validation for course in runs])
    unit = "epoch" if first.validation else "tenth of the run"
    figures = [_figure("losses", "Generation loss", labels, losses, unit, "loss per code (nats)")]
    if comparison.config.train.select != "loss" and scores:
        figures.insert(0, _figure("validation", f"What early stopping saw: {looks_at}", labels, scores, unit, looks_at))
    return AnalysisResult(
        "learning",
        "How they learned",
        f"Generation loss and {looks_at} of every {unit}, from the runs' logs; mean over seeds "
        f"{', '.join(map(str, comparison.seeds))}. The share is what distillation adds to the generation loss.",
        (_table(courses, looks_at, {name: label(name, task) for name in courses}),),
        tuple(figures),
        {
            name: {str(seed): asdict(course) for seed, course in zip(comparison.seeds, runs, strict=True)}
            for name, runs in courses.items()
        },
    )


def _mean(runs: Sequence[Sequence[float]]) -> list[float]:
    """Part by part, over the parts that all runs have."""
    shortest = min(map(len, runs))
    return np.mean([values[:shortest] for values in runs], axis=0).tolist()


def _table(courses: Mapping[str, Sequence[Course]], looks_at: str, names: Mapping[str, str]) -> Table:
    def spread(values: Sequence[float]) -> str:
        return str(Spread.of(values)) if values else "–"

    rows = []
    for name, runs in courses.items():
        bests = [(course, course.best) for course in runs]
        known = [(course, best) for course, best in bests if best is not None]
        distils = [course for course in runs if course.divergence]
        rows.append(
            (
                names[name],
                ", ".join(str(best + 1) for _, best in known) or "–",
                spread([course.validation[best] for course, best in known]),
                spread([course.loss[-1] for course in runs]),
                spread([course.valid_loss[-1] for course, _ in known]),
                spread([course.divergence[-1] for course in distils]),
                spread([100 * course.share for course in distils]),
                spread([100 * course.capped for course in distils]),
            )
        )
    heads = ("Training objective", "best epoch", f"best {looks_at}", "training loss", "validation loss", "KL")
    notes = ("Losses and KL of the last epoch, in nats; share and capped micro-batches over the whole run.",)
    return Table("learning", "How they learned", (*heads, "share (%)", "capped (%)"), tuple(rows), notes)


def _figure(
    name: str, title: str, labels: list[str], series: Mapping[str, list[float]], unit: str, shown: str
) -> Figure:
    return Figure(
        f"learning-{name}", title, "lines", {"labels": labels, "series": series, "xlabel": unit, "ylabel": shown}
    )
