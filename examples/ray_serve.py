"""Serve a model with Ray Serve: several copies of the service behind one address, on one machine or a cluster.

Each replica is the whole service of `restd serve`: same routes, same limits, its own queue in front of its own model.
Ray starts the replicas, spreads requests over them, and replaces one that fails. Replicas take no updates of items;
they show those that the one writer's journal had when they started (`--state`).

    pip install 'ray[serve]' 'restd-retrieval[serve]'
    python examples/ray_serve.py --model demo/bundle --replicas 2
    curl http://127.0.0.1:8000/v1/search -H 'Content-Type: application/json' -d '{"query": "quiet mouse", "k": 3}'

The model's folder must have the same path on every machine of the cluster.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from ray import serve

from restd.serve import Limits, ModelSource, ServerState, make_app
from restd.serve.item_updates import with_updates
from restd.serve.keys import Keys
from restd.serve.request_log import RequestLog


def application(model: Path, *, replicas: int, state: Path | None = None, read_key: str | None = None) -> Any:
    """A Ray Serve application of this many copies of the service.

    Args:
        model: folder of a run, or a bundle.
        replicas: how many copies; each loads the model and uses one core.
        state: folder of the writer's changes of items; by default `served`, in the model's folder.
        read_key: key that requests must send; None for none.
    """
    limits = Limits()

    def make_replica() -> Any:
        # runs in the replica's own process: a model is loaded where it is used, and never sent
        keys = Keys() if read_key is None else Keys.parse([f"read: {read_key}"])
        server_state = ServerState.of(limits, keys=keys, state_root=state)
        server_state.log = RequestLog(sys.stderr)
        server_state.put(with_updates(server_state, ModelSource(model).load()))
        return make_app(server_state)

    replica = serve.deployment(
        name="restd",
        num_replicas=replicas,
        # the service's own queue refuses what is too much, with a sentence and Retry-After
        max_ongoing_requests=limits.queue,
        ray_actor_options={"num_cpus": 1},
    )(serve.ingress(make_replica)())
    return replica.bind()


def main() -> None:
    """Start Ray Serve, and serve until Ctrl+C."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="folder of a run, or a bundle")
    parser.add_argument("--replicas", type=int, default=2, help="copies of the service")
    parser.add_argument("--state", type=Path, help="folder of the writer's changes of items")
    parser.add_argument("--read-key", help="key that requests must send")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at")
    parser.add_argument("--port", type=int, default=8000, help="port to listen at")
    options = parser.parse_args()
    state = None if options.state is None else options.state.resolve()
    replicated = application(options.model.resolve(), replicas=options.replicas, state=state, read_key=options.read_key)
    serve.start(http_options={"host": options.host, "port": options.port})
    serve.run(replicated, name="restd", route_prefix="/", blocking=True)


if __name__ == "__main__":
    main()
