"""Generated requests for a running service, made from its own OpenAPI document: nothing breaks, all is as described."""

import time
from collections import Counter
from dataclasses import dataclass, field
from urllib.parse import quote

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky, Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.serving import WAIT, WRITE

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
REFUSALS = [400, 401, 403, 404, 408, 409, 413, 422, 429]
"""Statuses of a refusal; a generated body may also be too large."""
LINES, LINE, LONGEST = 20, 300, 2_000
"""Shown of a fault: generated requests may be long."""
ADDRESS = 40_000
"""Bytes of an address; uvicorn itself refuses longer ones, and closes the connection while they are being sent."""


@dataclass
class Sent:
    """What became of generated requests."""

    statuses: Counter = field(default_factory=Counter)
    faults: dict[str, str] = field(default_factory=dict)
    """What was not as described, by its kind: the first of each."""

    @property
    def requests(self):
        return sum(self.statuses.values())

    def add(self, other):
        self.statuses += other.statuses
        self.faults = {**other.faults, **self.faults}


@dataclass(frozen=True)
class Names:
    """Names that a service knows: a generated name is hardly ever one of them."""

    items: list[str]
    columns: list[str]
    task: str

    def put_into(self, body, draw):
        """Replace generated names in the body of a request by known ones, so that the model has something to do."""
        if not isinstance(body, dict):
            return body
        item, column = st.sampled_from(self.items), st.sampled_from(self.columns)
        ids, text = st.lists(item, min_size=1, max_size=5, unique=True), st.text(min_size=1, max_size=20)
        known = {
            "query": st.builds("oak {}".format, text),
            "queries": st.lists(st.builds("{} desk".format, text), min_size=1, max_size=3),
            "history": ids,
            "histories": st.lists(ids, min_size=1, max_size=3),
            "ids": ids,
            "item": item,
            "allow": ids,
            "deny": ids,
            "fields": st.lists(column, max_size=3),
            "where": st.lists(
                st.builds("{}{}{}".format, column, st.sampled_from(["!=", "~"]), st.just("o")), max_size=2
            ),
            "items": st.lists(
                st.fixed_dictionaries({"id": item, "title": text}),
                min_size=1,
                max_size=3,
                unique_by=lambda row: row["id"],
            ),
            "texts": st.none(),
            "model": st.just("main"),
        }
        named = {name: draw(known[name]) if name in known else value for name, value in body.items()}
        if {"query", "queries", "history", "histories", "item"} & set(
            named
        ):  # a search, a recommendation or an explanation
            one, other = ("query", "queries") if self.task == "search" else ("history", "histories")
            kept = draw(st.sampled_from([one, other])) if other in named else one
            for name in ("query", "queries", "history", "histories"):
                named.pop(name, None)
            named[kept] = draw(known[kept])
            named.pop("seen" if self.task == "search" else "mode", None)
        if named.get("heads") is not None:
            named["mode"] = "generative"
        return named


def read_document(url):
    """The OpenAPI document that a service shows."""
    config = schemathesis.Config.from_dict({"checks": {"negative_data_rejection": {"expected-statuses": REFUSALS}}})
    return schemathesis.openapi.from_url(f"{url}/openapi.json", config=config, timeout=WAIT)


def operations_of(document):
    """Every operation of a document, by its method and path."""
    return {operation.label: operation for operation in (result.ok() for result in document.get_all_operations())}


def send_cases(source, mode, *, cases, names=None, seconds=float("inf"), first_seed=None):
    """Send generated requests with a key that may do everything, and check the answers.

    Args:
        source: a document, or one operation of it.
        mode: whether the requests are as described, or not.
        cases: requests to send.
        names: known names, which take the place of generated ones; a request stays as described.
        seconds: time after which no more are sent.
        first_seed: what the requests are drawn from; without it, the same ones every time.
    """
    sent, until = Sent(), time.monotonic() + seconds
    requests = source.as_strategy(generation_mode=mode)

    @given(data=st.data())
    @settings(
        max_examples=cases,
        suppress_health_check=list(HealthCheck),
        database=None,
        derandomize=first_seed is None,
        deadline=None,
        phases=(Phase.generate,),
    )
    def send(data):
        if time.monotonic() > until:
            return
        case = data.draw(requests)
        if names is not None:
            case.body = names.put_into(case.body, data.draw)
        if len(quote(str(case.query))) > ADDRESS:
            return
        response = case.call(headers={"Authorization": f"Bearer {WRITE}"}, timeout=WAIT)
        sent.statuses[response.status_code] += 1
        if "Traceback" in response.text:
            sent.faults.setdefault(f"{case.operation.label}: a traceback", response.text[:LONGEST])
        try:
            case.validate_response(response, checks=CHECKS)
        except (Failure, FailureGroup) as error:
            for failure in getattr(error, "exceptions", (error,)):
                kind = f"{case.operation.label}, {mode.value}, {response.status_code}: {type(failure).__name__}"
                sent.faults.setdefault(kind, f"{shortened(failure)}\n    {str(case.body)[:LONGEST]}")

    try:
        (send if first_seed is None else seed(first_seed)(send))()
    except Unsatisfiable:  # without parameters there is no wrong request
        pass
    except Flaky:  # time was up in the middle of an example
        if time.monotonic() <= until:
            raise
    return sent


def shortened(failure):
    """What a failed check says, without the whole of a long request."""
    lines = [line[:LINE] for line in str(failure).splitlines() if line.strip()]
    return "\n    ".join(lines[:LINES])


def faults_in(log):
    """Lines of a service's log that tell of a fault of the service."""
    return [line for line in log if "Traceback" in line or '"status": 5' in line]


__all__ = ["GenerationMode", "Names", "Sent", "faults_in", "operations_of", "read_document", "send_cases"]
