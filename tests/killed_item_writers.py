"""Item updates in children that are killed; a process of its own, because only one without threads may fork.

python -m tests.killed_item_writers RUN STATE WRITERS SERVERS SEED: kills so many bare writers, then so many servers.
It prints a JSON list with the number of acknowledged updates and of those that are there, for every kill.
"""

import contextlib
import http.client
import json
import os
import random
import select
import signal
import sys
import time
from pathlib import Path

import pyarrow as pa

from restd.serve import ServerState, serve
from restd.serve.item_updates import ItemUpdates, binding_of, replayed, with_updates
from restd.serve.journal import read_records
from restd.serve.keys import Keys
from restd.serve.model_state import ModelSource
from tests.item_batches import after, after_all, batch, titles_of
from tests.serving import WAIT, WRITE

LONGEST = 0.1
"""Seconds from an update to the kill: about as long as two updates take."""
FOLD_ABOVE = 8_000
"""Bytes: so that some are killed while the journal is folded."""


def write_until_killed(served, state, acknowledged):
    updates = ItemUpdates(served, state, publish=lambda _: None, fold_above=FOLD_ABOVE)
    titles = titles_of(updates.served)
    while True:
        change = batch(updates.sequence + 1, titles)
        kind, what = change
        update = updates.put(what) if kind == "put" else updates.delete(what)
        titles = after(change, titles)
        os.write(acknowledged, update.sequence.to_bytes(4))


def serve_until_killed(served, state, ready):
    shared = ServerState.of(keys=Keys.parse([f"write: {WRITE}"]), state_root=state)
    serve(
        shared,
        host="127.0.0.1",
        port=0,
        load=lambda: {"main": with_updates(shared, served)},
        ready=lambda url: os.write(ready, url.encode() + b"\n"),
    )


def forked(work, *arguments):
    """Run work in a child that writes to a pipe; returns the child and the end to read from."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work(*arguments, writing)
        finally:
            os._exit(1)
    os.close(writing)
    return child, reading


def read_within(reading, size):
    """The next bytes of a pipe, as many as there are; none at its end."""
    ready, _, _ = select.select([reading], [], [], WAIT)
    assert ready, "the child did nothing for too long"
    return os.read(reading, size)


def kill(child):
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def kill_a_writer(served, state, draws, before):
    """Kill a writer some time after an update; returns the number of the last acknowledged one."""
    child, reading = forked(write_until_killed, served, state)
    last = before
    for _ in range(draws.randint(1, 3)):
        last = int.from_bytes(read_within(reading, 4))
    time.sleep(draws.uniform(0, LONGEST))
    kill(child)
    while number := os.read(reading, 4):
        last = int.from_bytes(number)
    os.close(reading)
    return last


def kill_a_server(served, state, draws, before):
    """The same for the whole service, asked over HTTP."""
    child, reading = forked(serve_until_killed, served, state)
    address = read_within(reading, 200).decode().strip().removeprefix("http://")
    titles, last = titles_of(restarted(served, state)), before
    for _ in range(draws.randint(1, 3)):
        change = batch(last + 1, titles)
        last = acknowledged(send(address, change))
        titles = after(change, titles)
    answer = send(address, batch(last + 1, titles))
    time.sleep(draws.uniform(0, LONGEST))
    kill(child)
    with contextlib.suppress(ConnectionError, http.client.HTTPException):
        last = acknowledged(answer)
    os.close(reading)
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


def restarted(served, state):
    """What a service begins with now."""
    return replayed(served, read_records(state, binding_of(served)))


def updates_there(served, state, acknowledged, titles):
    """How many updates are there after a kill: those that were acknowledged, and perhaps the one under way; whole."""
    rows = list(titles_of(restarted(served, state)).items())
    for count in (acknowledged, acknowledged + 1):
        if rows == list(after_all(count, titles).items()):
            return count
    raise AssertionError(f"neither {acknowledged} updates nor one more are there, but {rows}")


def main():
    run, state = Path(sys.argv[1]), Path(sys.argv[2])
    writers, servers, seed = map(int, sys.argv[3:])
    pa.set_cpu_count(1)
    served, draws, outcome, last = ModelSource(run).load(), random.Random(seed), [], 0
    titles = titles_of(served)
    for number in range(writers + servers):
        victim = kill_a_writer if number < writers else kill_a_server
        before = victim(served, state, draws, last)
        last = updates_there(served, state, before, titles)
        outcome.append((before, last))
    sys.stdout.write(json.dumps(outcome) + "\n")


if __name__ == "__main__":
    main()
