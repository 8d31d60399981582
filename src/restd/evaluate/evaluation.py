"""`evaluate`: a ranking, judged; saved with its protocol and with every query's own values."""

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
from restd.snapshot import Ranker, Snapshot, refuse_foreign

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
        summary: dict[str, Any] = {
            level: {name: float(values.mean()) for name, values in by_measure.items()}
            for level, by_measure in self.values.items()
        }
        summary["groups"] = {
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
        return summary

    def save(self, folder: Path, *, parents: Mapping[str, str] | None = None) -> None:
        """Write averages, card and one row per query."""
        columns: dict[str, Any] = {
            "query_id": pa.array(self.queries, pa.string()),
            "group": pa.array([GROUPS[number] for number in self.groups]),
        }
        for level, by_measure in self.values.items():
            columns.update({f"{level}{_SEPARATOR}{name}": pa.array(values) for name, values in by_measure.items()})
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


def depth_needed(snapshot: Snapshot, measures: Iterable[Measure]) -> int:
    """Items to rank so that enough distinct Semantic IDs are among them."""
    return min(max(measure.k for measure in measures) * largest_group(snapshot), len(snapshot))


def evaluate(
    ranker: Ranker,
    tests: TestSet,
    snapshot: Snapshot,
    *,
    name: str,
    measures: Sequence[Measure] = PAPER,
    graded: bool = False,
    decoding: Mapping[str, Any] | None = None,
    seeds: tuple[int, ...] = (),
) -> tuple[Evaluation, Ranking]:
    """Rank for every query and judge the result, by Semantic ID (the paper's protocol) and by item.

    Args:
        ranker: anything with `rank`, made for this snapshot.
        tests: queries and their positives, read for this snapshot.
        snapshot: the items that are ranked.
        name: what the result is called in tables.
        measures: metrics and cut-offs.
        graded: let a positive gain its grade instead of 1.
        decoding: how the ranker ranks, for the protocol card.
        seeds: of the model behind it, for the card.
    """
    refuse_foreign(f"The ranker {name}", ranker.snapshot_hash, snapshot.hash, remedy="Make it for this snapshot.")
    ranking = rank_all(ranker, tests, depth=depth_needed(snapshot, measures), name=name)
    evaluation = judge_ranking(
        ranking,
        tests,
        snapshot,
        name=name,
        measures=measures,
        graded=graded,
        decoding={"ranker": name, **(decoding or {})},
        seeds=seeds,
    )
    return evaluation, ranking


def judge_ranking(
    ranking: Ranking,
    tests: TestSet,
    snapshot: Snapshot,
    *,
    name: str,
    measures: Sequence[Measure] = PAPER,
    graded: bool = False,
    decoding: Mapping[str, Any],
    seeds: tuple[int, ...] = (),
) -> Evaluation:
    """Judge a ranking that is there already."""
    for what, made_for in (("ranking", ranking.snapshot_hash), ("test queries", tests.snapshot_hash)):
        refuse_foreign(f"The {what} of {name}", made_for, snapshot.hash, remedy="Read or rank them for this snapshot.")
    deepest = max(measure.k for measure in measures)
    values = {}
    for level in LEVELS:
        judged = judge(ranking.rows, tests, units(snapshot, level), graded=graded, depth=deepest)
        values[level] = {str(measure): measure.of(judged) for measure in measures}
    card = ProtocolCard.of(tests, snapshot, graded=graded, decoding=decoding, seeds=seeds)
    return Evaluation(name, card, tests.ids, tests.groups(), values)


def refuse_incomparable(first: Evaluation, second: Evaluation) -> None:
    """Refuse to compare two results unless the same queries were judged by the same rules."""
    conflicts = first.card.conflicts(second.card)
    if conflicts:
        shown = "; ".join(f"{name}: {_short(first, name)} against {_short(second, name)}" for name in conflicts)
        raise ArtifactError(
            f"{first.name} and {second.name} were measured under different rules ({shown}), so their scores cannot be "
            "compared; evaluate both on the same index, data and split."
        )


def _short(evaluation: Evaluation, name: str) -> str:
    value = getattr(evaluation.card, name)
    if name in ("judgments", "snapshot"):
        return value[:8]
    return ", ".join(f"{key} {entry}" for key, entry in value.items()) if isinstance(value, Mapping) else str(value)
