"""Item updates in children that are killed; a process of its own, because only one without threads may fork.

python -m tests.killed_item_writers RUN STATE WRITERS SERVERS SEED: kills so many bare writers, then so many servers.
It prints a JSON list with the number of acknowledged updates and of those that are there, for every kill.

Starting Python costs more than loading the tiny model. So this process imports everything and computes nothing, because
computing starts threads; whatever needs the model is done in a child that loads it.
"""

import contextlib
import http.client
import importlib
import json
import os
import random
import select
import signal
import sys
import time
import traceback
from pathlib import Path

from restd.serve import ServerState, serve
from restd.serve.item_updates import ItemUpdates, binding_of, replayed, with_updates
from restd.serve.journal import read_records
from restd.serve.keys import Keys
from restd.serve.model_state import ModelSource
from tests.item_batches import after, after_all, batch, titles_of
from tests.serving import WAIT, WRITE

SHARED = ("bm25s", "fastapi", "sklearn", "transformers", "uvicorn", "restd.serve.gate")
"""What every child would otherwise import for itself."""
LONGEST = 0.1
"""Seconds from an update to the kill: about as long as two updates take."""
FOLD_ABOVE = 8_000
"""Bytes: so that some are killed while the journal is folded."""


def write_until_killed(run, state, acknowledged):
    updates = ItemUpdates(ModelSource(run).load(), state, publish=lambda _: None, fold_above=FOLD_ABOVE)
    titles = titles_of(updates.served)
    while True:
        change = batch(updates.sequence + 1, titles)
        kind, what = change
        update = updates.put(what) if kind == "put" else updates.delete(what)
        titles = after(change, titles)
        os.write(acknowledged, update.sequence.to_bytes(4))


def serve_until_killed(run, state, ready):
    shared = ServerState.of(keys=Keys.parse([f"write: {WRITE}"]), state_root=state)
    serve(
        shared,
        host="127.0.0.1",
        port=0,
        load=lambda: {"main": with_updates(shared, ModelSource(run).load())},
        ready=lambda url: os.write(ready, url.encode() + b"\n"),
    )


def say_titles(run, state, answer):
    """The titles by id after a restart, in the order of the rows."""
    served = ModelSource(run).load()
    served = replayed(served, read_records(state, binding_of(served)))
    with open(answer, "w", encoding="utf-8") as stream:
        json.dump(titles_of(served), stream)


def forked(work, *arguments):
    """Run work in a child that writes to a pipe; returns the child and the end to read from."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(2, 1)  # whoever reads our output must not wait for a child
        try:
            work(*arguments, writing)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writing)
    return child, reading


def titles_there(run, state):
    """What `say_titles` says in a child."""
    child, reading = forked(say_titles, run, state)
    with open(reading, encoding="utf-8") as stream:
        titles = json.load(stream)
    assert os.waitpid(child, 0)[1] == 0
    return titles


def read_within(reading, size):
    """The next bytes of a pipe, as many as there are; none at its end."""
    ready, _, _ = select.select([reading], [], [], WAIT)
    assert ready, "the child did nothing for too long"
    return os.read(reading, size)


@contextlib.contextmanager
def victim(work, *arguments):
    """A child and its pipe; the child does not outlive the block, whatever happens in it."""
    child, reading = forked(work, *arguments)
    try:
        yield child, reading
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.close(reading)


def kill(child):
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def kill_a_writer(run, state, draws, before):
    """Kill a writer some time after an update; returns the number of the last acknowledged one."""
    with victim(write_until_killed, run, state) as (child, reading):
        last = before
        for _ in range(draws.randint(1, 3)):
            last = int.from_bytes(read_within(reading, 4))
        time.sleep(draws.uniform(0, LONGEST))
        kill(child)
        while number := os.read(reading, 4):
            last = int.from_bytes(number)
        return last


def kill_a_server(run, state, draws, before):
    """The same for the whole service, asked over HTTP."""
    with victim(serve_until_killed, run, state) as (child, reading):
        address = read_within(reading, 200).decode().strip().removeprefix("http://")
        titles, last = titles_there(run, state), before
        for _ in range(draws.randint(1, 3)):
            change = batch(last + 1, titles)
            last = acknowledged(send(address, change))
            titles = after(change, titles)
        answer = send(address, batch(last + 1, titles))
        time.sleep(draws.uniform(0, LONGEST))
        kill(child)
        with contextlib.suppress(ConnectionError, http.client.HTTPException):
            last = acknowledged(answer)
        return last


def send(address, change):
    """Send an update and do not wait for the answer."""
    kind, what = change
    method, field = ("PUT", "items") if kind == "put" else ("DELETE", "ids")
    connection = http.client.HTTPConnection(address, timeout=WAIT)
    headers = {"Authorization": f"Bearer {WRITE}", "Content-Type": "application/json"}
    connection.request(method, "/v1/items", json.dumps({field: what}), headers)
    return connection


def acknowledged(connection):
    """The number of the update that was sent, once it is acknowledged."""
    response = connection.getresponse()
    body = response.read()
    assert response.status == 200, body
    return json.loads(body)["sequence"]


def updates_there(run, state, acknowledged, titles):
    """How many updates are there after a kill: those that were acknowledged, and perhaps the one under way; whole."""
    rows = list(titles_there(run, state).items())
    for count in (acknowledged, acknowledged + 1):
        if rows == list(after_all(count, titles).items()):
            return count
    raise AssertionError(f"neither {acknowledged} updates nor one more are there, but {rows}")


def main():
    run, state = Path(sys.argv[1]), Path(sys.argv[2])
    writers, servers, seed = map(int, sys.argv[3:])
    for name in SHARED:
        importlib.import_module(name)
    draws, outcome, last = random.Random(seed), [], 0
    titles = titles_there(run, state)
    for number in range(writers + servers):
        kill_one = kill_a_writer if number < writers else kill_a_server
        before = kill_one(run, state, draws, last)
        last = updates_there(run, state, before, titles)
        outcome.append((before, last))
    sys.stdout.write(json.dumps(outcome) + "\n")


if __name__ == "__main__":
    main()
