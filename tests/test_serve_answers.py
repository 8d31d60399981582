"""Answers from batches: bit by bit those of the library for the same batch, and within 1e-5 of those one by one."""

import asyncio
import threading

import pytest

from restd.search import HeadUse, SearchOptions
from restd.serve import ServedModel
from restd.serve.batching import BatchQueue
from restd.serve.search_work import SearchWork

QUERIES = ["oak desk", "glass lamp", "steel mug", "red kettle", "a chair of oak", "blue thing", "desk", "black glass"]
PATIENCE = 60
KINDS = {
    "plain": SearchOptions(k=5, beam=20),
    "narrow": SearchOptions(k=5, beam=5),
    "hybrid": SearchOptions(k=5, mode="hybrid"),
    "heads": SearchOptions(k=5, heads=HeadUse("fuse", weight=0.2)),
    "filtered": SearchOptions(k=5, where=["category=desk"]),
}


@pytest.fixture(scope="module")
def model(served_run):
    return ServedModel.load(served_run)


def answered(requests, **options):
    """Hits of requests that all wait while the model is busy with something else: lists of (work, query)."""
    gate = threading.Event()

    async def scenario():
        queue = BatchQueue(**options)
        queue.start()
        try:
            busy = asyncio.ensure_future(queue.run(lambda: gate.wait(PATIENCE)))
            while not queue.is_busy:
                await asyncio.sleep(0)
            pending = [asyncio.ensure_future(queue.submit(work, [query])) for work, query in requests]
            while queue.waiting < len(requests):
                await asyncio.sleep(0)
            gate.set()
            await busy
            answers = await asyncio.wait_for(asyncio.gather(*pending), PATIENCE)
        finally:
            gate.set()
            await queue.close()
        return [answer.answers[0].hits for answer in answers]

    return asyncio.run(scenario())


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_bit_by_bit_what_the_library_answers_to_the_same_queries(model, kind):
    options = KINDS[kind].settled("search")
    hits = answered([(SearchWork(model, options), query) for query in QUERIES], max_batch=len(QUERIES))
    expected = model.retriever.search(QUERIES, options=options)
    assert [[(hit.item, hit.score) for hit in one] for one in hits] == [
        [(hit.item, hit.score) for hit in one] for one in expected
    ]


def test_requests_of_all_kinds_at_once_get_what_each_would_get_alone(model):
    """Groups by options are never mixed, whatever the order of arrival and wherever batches end."""
    works = {kind: SearchWork(model, options.settled("search")) for kind, options in KINDS.items()}
    requests = [(kind, query) for query in QUERIES for kind in KINDS]
    hits = answered([(works[kind], query) for kind, query in requests], max_batch=3)
    for (kind, query), own in zip(requests, hits, strict=True):
        expected = model.retriever.search(query, options=KINDS[kind])
        assert [hit.item for hit in own] == [hit.item for hit in expected], (kind, query)
        assert [hit.score for hit in own] == pytest.approx([hit.score for hit in expected], abs=1e-5)
