"""A service to test: a tiny model that was trained once, and the real server as a process of its own."""

import os
import re
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

import restd
from restd.search import Fusion
from tests.training import make_index, run, write_world

READ, WRITE = "read-key-of-the-tests", "write-key-of-the-tests"
WAIT = 120
"""Seconds until a process is given up: machines that run tests may be slow."""


def write_run(folder: Path, *, updates: int = 30, seed: int = 0) -> Path:
    """The tiny world, and a run on it."""
    return train_run(folder, write_world(folder / "data"), updates=updates, seed=seed)


def train_run(folder: Path, data: Path, *, updates: int = 30, seed: int = 0) -> Path:
    """A run with heads, and with weights for a hybrid search of bm25 and the model."""
    index = make_index(data, folder / "index", seed=seed)
    trained = run(index, data, folder / "run", objective="restd", updates=updates).folder.parent
    Fusion({"generator": 1.0, "bm25": 0.5}).save(trained / "fusion")
    return trained


def write_keys(folder: Path) -> Path:
    path = folder / "keys.txt"
    path.write_text(f"# of the tests\nread: {READ}\nwrite: {WRITE}\n", encoding="utf-8")
    return path


@dataclass
class Service:
    """A server that runs as a process."""

    process: subprocess.Popen
    url: str
    line: str
    log: list[str] = field(default_factory=list)

    def client(self, key: str | None = None, **options) -> httpx.Client:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=WAIT, **options)

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(WAIT)


def wait_for(condition, *, what: str):
    """Wait until a condition holds, and return its value."""
    deadline = time.monotonic() + WAIT
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"{what} did not happen within {WAIT} s")


@contextmanager
def process(*words):
    """Run `restd serve` with these words; it is killed in the end if it still runs."""
    env = {**os.environ, "PYTHONPATH": str(Path(restd.__file__).parent.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "restd", "serve", *map(str, words)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    try:
        yield running
    finally:
        running.kill()
        running.wait(WAIT)
        running.stdout.close()
        running.stderr.close()


@contextmanager
def service(*words):
    """Run `restd serve` with these words on a free port until it is ready; stop it in the end."""
    with process("--port", 0, *words) as running:
        log: list[str] = []
        reader = threading.Thread(target=lambda: log.extend(running.stderr), daemon=True)
        reader.start()
        try:
            line = running.stdout.readline()
            match = re.search(r" on (http://\S+) ", line)
            if match is None:
                running.wait(WAIT)
                reader.join(WAIT)
                raise AssertionError(f"the server printed {line!r} and {''.join(log)!r}")
            yield Service(running, match.group(1), line, log)
        finally:
            running.kill()
            reader.join(WAIT)
