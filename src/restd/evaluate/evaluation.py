"""`evaluate`: a ranking, judged; kept with its protocol and with every query's own values."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int64

from restd.artifacts import create, open_artifact
from restd.errors import ArtifactError
from restd.evaluate.card import ProtocolCard
from restd.evaluate.judging import LEVELS, Ranking, judge, largest_group, rank_all, units
from restd.evaluate.metrics import PAPER, Measure
from restd.evaluate.queries import GROUPS, TestSet
from restd.index import SidIndex
from restd.search.fusion import Ranker

KIND = "evaluation"
SCHEMA = 1
_SEPARATOR = ":"


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """What a ranker is worth: values of every query, by level and measure, and the rules they were measured under."""

    name: str
    card: ProtocolCard
    queries: tuple[str, ...]
    groups: Int64[np.ndarray, "query"]
    values: Mapping[str, Mapping[str, Float[np.ndarray, "query"]]]
    """By level (`sid`, `item`), then by measure."""

    def mean(self, measure: str, *, level: str = "sid") -> float:
        """Average over queries."""
        return float(self.values[level][measure].mean())

    def summary(self) -> dict[str, Any]:
        """Averages by level and measure, and by whether training named the positives; the paper's level is `sid`."""
        found: dict[str, Any] = {
            level: {name: float(values.mean()) for name, values in held.items()} for level, held in self.values.items()
        }
        found["groups"] = {
            group: {
                "queries": int((self.groups == number).sum()),
                **{
                    name: float(values[self.groups == number].mean())
                    for name, values in self.values["sid"].items()
                    if (self.groups == number).any()
                },
            }
            for number, group in enumerate(GROUPS)
        }
        return found

    def save(self, folder: Path, *, parents: Mapping[str, str] | None = None) -> None:
        """Write averages, card and one row a query."""
        columns: dict[str, Any] = {
            "query_id": pa.array(self.queries, pa.string()),
            "group": pa.array([GROUPS[number] for number in self.groups]),
        }
        for level, held in self.values.items():
            columns.update({f"{level}{_SEPARATOR}{name}": pa.array(values) for name, values in held.items()})
        table = pa.table(columns)
        settings = {"name": self.name, "card": self.card.to_dict(), "summary": self.summary()}
        with create(folder, kind=KIND, schema=SCHEMA, settings=settings, parents=parents) as writer:
            writer.table("queries", table.to_batches(), schema=table.schema)

    @classmethod
    def load(cls, folder: Path) -> "Evaluation":
        """Open what `save` wrote."""
        artifact = open_artifact(folder, kind=KIND, schema=SCHEMA)
        table, settings = artifact.table("queries"), artifact.manifest.settings
        values: dict[str, dict[str, np.ndarray]] = {}
        for name in table.column_names:
            level, separator, measure = name.partition(_SEPARATOR)
            if separator:
                values.setdefault(level, {})[measure] = table[name].to_numpy()
        groups = np.array([GROUPS.index(name) for name in table["group"].to_pylist()], np.int64)
        card = ProtocolCard.from_dict(settings["card"])
        return cls(settings["name"], card, tuple(table["query_id"].to_pylist()), groups, values)


def depth_needed(index: SidIndex, measures: Iterable[Measure]) -> int:
    """Items to rank so that enough distinct Semantic IDs are among them."""
    return min(max(measure.k for measure in measures) * largest_group(index), len(index))


def evaluate(
    ranker: Ranker,
    tests: TestSet,
    index: SidIndex,
    *,
    name: str,
    measures: Sequence[Measure] = PAPER,
    graded: bool = False,
    decoding: Mapping[str, Any] | None = None,
    seeds: tuple[int, ...] = (),
) -> tuple[Evaluation, Ranking]:
    """Rank for every query and judge the result, by Semantic ID (the paper's protocol) and by item.

    Args:
        ranker: anything with `rank`.
        tests: queries and their positives.
        index: whose rows are ranked.
        name: what the result is called in tables.
        measures: metrics and cut-offs.
        graded: let a positive gain its grade instead of 1.
        decoding: how the ranker ranks, for the protocol card.
        seeds: of the model behind it, for the card.
    """
    ranking = rank_all(ranker, tests, depth=depth_needed(index, measures), name=name)
    said = {"ranker": name, **(decoding or {})}
    found = judge_ranking(
        ranking, tests, index, name=name, measures=measures, graded=graded, decoding=said, seeds=seeds
    )
    return found, ranking


def judge_ranking(
    ranking: Ranking,
    tests: TestSet,
    index: SidIndex,
    *,
    name: str,
    measures: Sequence[Measure] = PAPER,
    graded: bool = False,
    decoding: Mapping[str, Any],
    seeds: tuple[int, ...] = (),
) -> Evaluation:
    """Judge a ranking that is there already."""
    deepest = max(measure.k for measure in measures)
    values = {}
    for level in LEVELS:
        judged = judge(ranking.rows, tests, units(index, level), graded=graded, depth=deepest)
        values[level] = {str(measure): measure.of(judged) for measure in measures}
    card = ProtocolCard.of(tests, index, graded=graded, decoding=decoding, seeds=seeds)
    return Evaluation(name, card, tests.ids, tests.groups(), values)


def refuse_incomparable(first: Evaluation, second: Evaluation) -> None:
    """Two results may be held against each other only where the same queries were judged by the same rules."""
    conflicts = first.card.conflicts(second.card)
    if conflicts:
        shown = "; ".join(f"{name}: {_short(first, name)} against {_short(second, name)}" for name in conflicts)
        raise ArtifactError(
            f"{first.name} and {second.name} were measured under different rules ({shown}), so their scores cannot be "
            "compared; evaluate both on the same index, data and split."
        )


def _short(found: Evaluation, name: str) -> str:
    value = getattr(found.card, name)
    if name in ("judgments", "index"):
        return value[:8]
    return ", ".join(f"{key} {held}" for key, held in value.items()) if isinstance(value, Mapping) else str(value)
