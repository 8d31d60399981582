"""Send thousands of generated requests to the real service, and report every answer that is not as described.

    make fuzz-service
    python tools/fuzz_service.py --cases 600

Two tiny models are trained and served, one that searches and one that recommends, with keys and with writing on.
schemathesis makes requests from the OpenAPI document of each: as described, not as described, and as described with
names that the service knows. Each answer must have a documented status, headers and body; a 5xx, a traceback in the log
or a process that ended is a fault.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.service_fuzz import GenerationMode, Names, Sent, faults_in, operations_of, read_document, send_cases
from tests.serving import WRITE, Service, service, write_keys, write_run
from tests.walks import made

BODIES = ("POST", "PUT", "DELETE")
"""Operations with a body have more to vary than those with parameters alone."""
FEWER = 5
RECOMMENDER = ("POST /v1/recommend", "POST /v1/explain", "POST /v1/map/query", "PUT /v1/items", "DELETE /v1/items")
LONGER = ("--deadline-ms", 60_000)
"""A busy machine must not look like a fault."""


def fuzz(server: Service, labels: tuple[str, ...], *, cases: int, seconds: float, seed: int) -> Sent:
    """Send requests to operations of one server.

    Args:
        server: the running service.
        labels: operations to try, such as "POST /v1/search"; none for all.
        cases: requests for each operation with a body, and for each kind of request.
        seconds: for each operation and kind.
        seed: what the requests are drawn from.
    """
    total, names = Sent(), known_names(server)
    kinds = [("as described", GenerationMode.POSITIVE, None), ("not as described", GenerationMode.NEGATIVE, None)]
    kinds += [("with known names", GenerationMode.POSITIVE, names)]
    for label, operation in operations_of(read_document(server.url)).items():
        for kind, mode, known in kinds:
            if (labels and label not in labels) or (known is not None and not label.startswith(BODIES)):
                continue
            began, count = time.monotonic(), cases if label.startswith(BODIES) else cases // FEWER
            sent = send_cases(operation, mode, cases=count, names=known, seconds=seconds, first_seed=seed)
            total.add(sent)
            spent = time.monotonic() - began
            print(f"{label:24} {kind:16} {dict(sorted(sent.statuses.items()))} in {spent:.0f} s", flush=True)
            for fault in sent.faults.items():
                print("FAULT {}\n    {}".format(*fault), flush=True)
            if server.process.poll() is not None:
                total.faults[label] = f"the process ended with {server.process.returncode}"
                return total
    for number, line in enumerate(faults_in(server.log)):
        total.faults[f"log {number}"] = line[-2000:]
    return total


def known_names(server: Service) -> Names:
    """Items and columns of the catalogue that is served."""
    with server.client(WRITE) as client:
        info = client.get("/v1/info").json()
        points = client.get("/v1/map", params={"points": 50}).json()
    return Names(points["items"], info["columns"], info["task"])


def main() -> None:
    """Train, serve, send, report; ends with an error where there is a fault."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=600, help="requests per operation and kind")
    parser.add_argument("--seconds", type=float, default=60.0, help="at most, per operation and kind")
    parser.add_argument("--seed", type=int, default=0, help="what the requests are drawn from")
    parser.add_argument(
        "--operation", action="append", default=[], help='only this one: "POST /v1/search" (repeatable)'
    )
    options = parser.parse_args()
    only = tuple(options.operation)
    total = Sent()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        keys = ("--api-key-file", write_keys(folder), *LONGER)
        for run, labels in (
            (write_run(folder / "search"), only),
            (made(folder / "walks") / "run", only or RECOMMENDER),
        ):
            with service("--model", run, *keys, "--reload", f"again={run}") as server:
                total.add(fuzz(server, labels, cases=options.cases, seconds=options.seconds, seed=options.seed))
    print(f"{total.requests:,} requests: {dict(sorted(total.statuses.items()))}; {len(total.faults)} faults")
    for fault in total.faults.items():
        print("{}\n    {}".format(*fault))
    sys.exit(bool(total.faults))


if __name__ == "__main__":
    main()
