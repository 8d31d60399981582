"""The log of a run: one JSON line per update and per validation."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LOG = "log.jsonl"


class RunLog:
    """JSON lines of one run.

    Args:
        path: of the file.
        from_update: update of the checkpoint that the run resumes from; records of later ones are removed.
        enabled: whether this process writes.
    """

    def __init__(self, path: Path, *, from_update: int, enabled: bool = True) -> None:
        self._path, self._enabled = path, enabled
        if enabled and path.is_file():
            lines = [line for line in _lines(path) if json.loads(line)["update"] <= from_update]
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record; it is in the file when this returns."""
        if self._enabled:
            with self._path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(record) + "\n")


def _lines(path: Path) -> list[str]:
    """Whole lines only: a kill may have cut the last one."""
    text = path.read_text(encoding="utf-8")
    return [line for line in text[: text.rfind("\n") + 1].splitlines() if line]


def read_log(path: Path) -> list[dict[str, Any]]:
    """Every record of a run, in order."""
    return [json.loads(line) for line in _lines(path)]
