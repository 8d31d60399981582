"""A model to serve, and `restd serve` as a process of its own."""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

import restd
from restd.data import Catalog, write_dataset
from restd.errors import RestdError
from restd.index import IndexConfig, SidIndex, build_index, with_shape
from restd.models import CompactBackbone, CompactConfig
from restd.models.query_encoder import find_encoder
from restd.models.store import FOLDER as MODEL_FOLDER
from restd.search.bundle import INDEX, ITEMS
from restd.shop import ShopSpec, shop_source
from restd.train.checkpoint import write_model

_LEVELS, _CODES = 4, 256
_LONGEST = 300.0
"""Seconds after which a server that has not begun is given up."""


def write_shop_model(folder: Path, items: int) -> Path:
    """Write a bundle of the generated shop and a compact model with random weights; their values cost no time."""
    write_dataset(shop_source(ShopSpec(items=items)), folder / ITEMS)
    config = with_shape(IndexConfig(encoder="tfidf-svd"), levels=_LEVELS, codes=min(_CODES, items // 4))
    build_index(Catalog(folder / ITEMS), folder / INDEX, config)
    index = SidIndex.load(folder / INDEX)
    backbone = CompactBackbone(find_encoder("index", index, folder / INDEX), index.sizes, CompactConfig(), seed=0)
    settings = {"layout": index.layout(), "index_generation": index.generation}
    weights = backbone.state_dict()
    write_model(folder / MODEL_FOLDER, backbone, weights, ids=index.table.ids, settings=settings, parents={})
    return folder


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A server that takes requests."""

    url: str
    process: psutil.Process

    def resident_bytes(self) -> int:
        """Resident size of the server now."""
        return self.process.memory_info().rss

    def cpu_seconds(self) -> float:
        """Processor time of the server so far."""
        times = self.process.cpu_times()
        return times.user + times.system


@contextmanager
def server_of(model: Path, *words: str | int) -> Iterator[ServerProcess]:
    """Run `restd serve` for a model with these options, on a free port and with as many threads as we have.

    Args:
        model: a run or a bundle.
        words: more options of the command.
    """
    threads = str(torch.get_num_threads())
    source = str(Path(restd.__file__).parent.parent)
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": threads}
    command = [sys.executable, "-m", "restd", "serve", "--model", str(model), "--port", "0", *map(str, words)]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=env)
        assert running.stdout is not None
        guard = threading.Timer(_LONGEST, running.kill)
        guard.start()
        try:
            line = running.stdout.readline()  # its only line, once requests are answered
            guard.cancel()
            _, found, rest = line.partition(" on http://")
            if not found:
                running.wait()
                log.seek(0)
                raise RestdError(f"The server did not start; its last words: {log.read()[-500:].strip()}")
            yield ServerProcess(f"http://{rest.split()[0]}", psutil.Process(running.pid))
        finally:
            guard.cancel()
            running.kill()
            running.wait()
            running.stdout.close()
