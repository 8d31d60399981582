"""Scoreboards on disk: one artefact with the values of every query, so that a long analysis can go on later."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from restd.artifacts import create, open_artifact
from restd.evaluate.scoreboard import Scoreboard

KIND = "scoreboards"
SCHEMA = 1
_SEPARATOR = ":"


def save_boards(
    folder: Path,
    boards: Mapping[str, Scoreboard],
    *,
    facts: Mapping[str, Any] | None = None,
    parents: Mapping[str, str] | None = None,
) -> None:
    """Write scoreboards by name.

    Args:
        folder: of the artefact.
        boards: each becomes a table with one row per query.
        facts: plain values that belong to them.
        parents: hashes of what they were made from.
    """
    weights = {name: {ranker: dict(own) for ranker, own in board.weights.items()} for name, board in boards.items()}
    settings = {"weights": weights, "facts": dict(facts or {})}
    with create(folder, kind=KIND, schema=SCHEMA, settings=settings, parents=parents) as writer:
        for name, board in boards.items():
            columns = {
                f"{ranker}{_SEPARATOR}{measure}": pa.array(values)
                for ranker, by_measure in board.values.items()
                for measure, values in by_measure.items()
            }
            table = pa.table(columns)
            writer.table(name, table.to_batches(), schema=table.schema)


def load_boards(folder: Path) -> tuple[dict[str, Scoreboard], dict[str, Any]]:
    """Read what `save_boards` wrote: the boards, and the facts."""
    artifact = open_artifact(folder, kind=KIND, schema=SCHEMA)
    settings = artifact.manifest.settings
    boards = {}
    for name, weights in settings["weights"].items():
        table = artifact.table(name)
        values: dict[str, dict[str, Any]] = {}
        for column in table.column_names:
            ranker, _, measure = column.rpartition(_SEPARATOR)
            values.setdefault(ranker, {})[measure] = table[column].to_numpy()
        boards[name] = Scoreboard(values, weights)
    return boards, settings["facts"]
