"""Run training in children that are killed; a process of its own, because only one without threads may fork.

python -m tests.killed_runs FOLDER KILL,KILL,… : FOLDER holds data and index; the run is FOLDER/run.
"""

import os
import signal
import sys
import time
from pathlib import Path

from restd.errors import Interrupted
from tests.training import run

SETTINGS = ("train.checkpoint=3", "train.indexing=title")
UPDATES = 40


def child(folder):
    try:
        run(
            folder / "index",
            folder / "data",
            folder / "run",
            *SETTINGS,
            objective="restd",
            updates=UPDATES,
        )
    except Interrupted as error:
        os._exit(error.exit_code)
    os._exit(0)


def updates_done(folder):
    log = folder / "run" / "log.jsonl"
    return log.read_text("utf-8").count("\n") if log.is_file() else 0


def start_and_signal(folder, at, number):
    """Start a run, send it a signal once it has logged update `at`, and return how it ended."""
    process = os.fork()
    if process == 0:
        child(folder)
    while updates_done(folder) < at:
        if os.waitpid(process, os.WNOHANG)[0]:
            return 0
        time.sleep(0.001)
    os.kill(process, number)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def main():
    folder = Path(sys.argv[1])
    ends = []
    for word in sys.argv[2].split(",") if sys.argv[2] else []:
        name, at = word.split("@")
        ends.append(start_and_signal(folder, int(at), getattr(signal, name)))
    process = os.fork()
    if process == 0:
        child(folder)
    ends.append(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
    sys.stdout.write(",".join(map(str, ends)) + "\n")


if __name__ == "__main__":
    main()
