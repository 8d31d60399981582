"""What a stage of a study cost: seconds, processor time and memory, kept beside the study and measured once.

A stage that was interrupted and continued is the sum of its pieces. A piece that was killed leaves no record of what it
cost, so such a sum is a lower bound, and says so.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from restd.artifacts import write_atomically
from restd.memory import peak_bytes
from restd.timing import machine

FOLDER = "costs"


@dataclass(frozen=True, slots=True)
class Cost:
    """What a stage cost.

    Args:
        seconds: from beginning to end.
        cpu: seconds of processor time, over all threads.
        peak: largest resident memory of its process in bytes, with the libraries that it loaded.
        whole: whether all pieces of it were measured; otherwise these are lower bounds.
        own_process: whether it had a process of its own; otherwise `peak` is of all that its process did before, too.
        machine: what it ran on, with the number of threads.
        figures: what else the stage measured.
    """

    seconds: float
    cpu: float
    peak: int
    whole: bool
    own_process: bool
    machine: Mapping[str, Any]
    figures: Mapping[str, Any]


def cost_file(study: Path, stage: str, name: str) -> Path:
    """Where the cost of a stage is kept."""
    return study / FOLDER / f"{stage}-{name}.json"


def measure_cost(
    path: Path, work: Callable[[], Mapping[str, Any] | None], *, key: str = "", own_process: bool = False
) -> None:
    """Do some work and keep what it cost; what the work returns are figures that are kept with it.

    Args:
        path: file of the cost.
        work: the stage; one that is interrupted may be measured again, and its pieces are added up.
        key: of what the stage is made from: a stage of another key starts anew.
        own_process: whether this process does nothing else.
    """
    before = _read(path)
    pieces = before["pieces"] if before and not before["done"] and before["key"] == key else []
    record = {"key": key, "done": False, "own_process": own_process, "machine": machine(), "figures": {}}
    _write(path, {**record, "pieces": [*pieces, None]})  # so that a piece that is killed is known to have been there
    start, cpu = time.perf_counter(), time.process_time()
    try:
        record["figures"] = dict(work() or {})
        record["done"] = True
    finally:
        spent = {
            "seconds": time.perf_counter() - start, "cpu": time.process_time() - cpu, "peak": peak_bytes()
        }  # fmt: skip
        _write(path, {**record, "pieces": [*pieces, spent]})


def is_finished(path: Path, *, key: str = "") -> bool:
    """Whether a stage of this key was measured to its end."""
    record = _read(path)
    return record is not None and record["done"] and record["key"] == key


def read_cost(path: Path) -> Cost | None:
    """What a stage cost; None where nothing was measured."""
    record = _read(path)
    if record is None:
        return None
    pieces = [piece for piece in record["pieces"] if piece is not None]
    return Cost(
        seconds=sum(piece["seconds"] for piece in pieces),
        cpu=sum(piece["cpu"] for piece in pieces),
        peak=max((piece["peak"] for piece in pieces), default=0),
        whole=record["done"] and len(pieces) == len(record["pieces"]),
        own_process=record["own_process"],
        machine=record["machine"],
        figures=record["figures"],
    )


def _read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _write(path: Path, record: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, [json.dumps(record, indent=2).encode() + b"\n"])
