"""Finished parts of a long job, in a folder of their own: a run that was killed continues with them."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from restd.artifacts.store import explain_full_disk
from restd.artifacts.swap import fsync_file


def open_partial(target: Path, plan: Mapping[str, Any]) -> Path:
    """Return the folder of shards finished so far for `target`; shards of another plan are deleted."""
    folder = target.with_name(f".{target.name}.partial")
    written = folder / "plan.json"
    text = json.dumps(plan, sort_keys=True)
    if not written.is_file() or written.read_text(encoding="utf-8") != text:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        written.write_text(text, encoding="utf-8")
    return folder


def write_shard(path: Path, values: Mapping[str, np.ndarray]) -> None:
    """Write a shard so that it appears whole or not at all."""
    unfinished = path.with_suffix(".writing")
    with explain_full_disk(path.parent):
        save_file({name: np.ascontiguousarray(value) for name, value in values.items()}, unfinished)
        fsync_file(unfinished)
        unfinished.rename(path)
