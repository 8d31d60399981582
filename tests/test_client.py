"""The client against the real service: the same calls give the same answers as the library."""

import subprocess
import sys
from typing import Protocol

import pytest

from restd import Client
from restd.client import AccessError, InvalidRequestError, Retries, UnavailableError
from restd.data import History
from restd.errors import ConfigError, DataError, RestdError
from restd.search import Explanation, HeadUse, Hit, Retriever, SearchOptions
from tests.serving import READ, WRITE, service, write_keys
from tests.walks import walk

QUERIES = ["oak desk", "glass lamp", "steel mug", "red kettle", "desk of glass"]


class Searcher(Protocol):
    """What code needs that moves from the library to a service."""

    def search(self, query: list[str], k: int | None = None, *, contributions: bool = False) -> list[list[Hit]]: ...
    def explain(self, query: str, item: str, k: int | None = None) -> Explanation: ...


def best_of_each(searcher: Searcher, queries: list[str]) -> tuple[list[list[str]], list[str]]:
    """A function that is written once, for both."""
    hits = searcher.search(queries, k=3)
    return [[hit.item for hit in own] for own in hits], [
        searcher.explain(query, own[-1].item).sentence() for query, own in zip(queries, hits, strict=True)
    ]


@pytest.fixture(scope="module")
def server(served_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("client")
    words = ("--model", served_run, "--api-key-file", write_keys(folder), "--state", folder / "state")
    with service(*words, "--max-queries", 2) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with Client(server.url, READ) as client:
        yield client


@pytest.fixture(scope="module")
def library(served_run):
    return Retriever.load(served_run, keep_heads=True, hybrid=True)


def same_hits(some, others):
    """Whether both are the same hits; the service may have computed a score in another batch."""
    assert [(hit.item, hit.title, hit.sid) for hit in some] == [(hit.item, hit.title, hit.sid) for hit in others]
    assert [hit.score for hit in some] == pytest.approx([hit.score for hit in others], abs=1e-5)
    for hit, other in zip(some, others, strict=True):
        assert (hit.parts is None) == (other.parts is None)
        if hit.parts is not None:
            assert hit.parts.keys() == other.parts.keys()
            assert [part.share for part in hit.parts.values()] == pytest.approx(
                [part.share for part in other.parts.values()], abs=1e-5
            )


@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"k": 3, "beam": 20, "score_norm": "trie_children"},
        {"k": 4, "where": ["category=desk", "title~oak"], "deny": ["red-oak-desk"]},
        {"allow": ["red-oak-desk", "blue-oak-desk"], "widen": False},
        {"mode": "hybrid", "contributions": True, "k": 7},
        {"heads": HeadUse("rerank", weight=0.2), "k": 5},
        {"options": SearchOptions(k=2, mode="hybrid"), "k": 6},
        {"seen": True},
    ],
    ids=str,
)
def test_a_search_is_that_of_the_library(client, library, keywords):
    same_hits(client.search("oak desk", **keywords), library.search("oak desk", **keywords))
    for own, others in zip(client.search(QUERIES, **keywords), library.search(QUERIES, **keywords), strict=True):
        same_hits(own, others)


def test_no_query_has_no_hits(client, library):
    assert client.search([]) == library.search([]) == []


@pytest.mark.parametrize(
    "keywords", [{}, {"beam": 1, "k": 1}, {"mode": "hybrid"}, {"deny": ["red-glass-kettle"]}], ids=str
)
def test_an_explanation_is_that_of_the_library(client, library, keywords):
    ours = client.explain("oak desk", "red-glass-kettle", **keywords)
    theirs = library.explain("oak desk", "red-glass-kettle", **keywords)
    assert isinstance(ours, Explanation)
    assert ours.sentence() == theirs.sentence()
    assert (ours.rank, ours.exact_rank, ours.beam_needed) == (theirs.rank, theirs.exact_rank, theirs.beam_needed)
    assert [(level.rank, level.kept, level.code) for level in ours.levels] == [
        (level.rank, level.kept, level.code) for level in theirs.levels
    ]
    assert (ours.parts is None) == (theirs.parts is None)


def test_one_function_serves_both(client, library):
    assert best_of_each(client, QUERIES) == best_of_each(library, QUERIES)


def test_bad_options_are_refused_as_in_the_library(client, library):
    for searcher in (client, library):
        with pytest.raises(ConfigError, match="Did you mean 'where'"):
            searcher.search("oak", wher=["x=1"])
        with pytest.raises(ConfigError, match="expected at least 1"):
            searcher.search("oak", k=0)
        with pytest.raises(RestdError):
            searcher.search("")
        with pytest.raises(RestdError, match="colour"):
            searcher.search("oak", where=["colour=red"])


def test_what_the_service_refuses_names_its_field(client):
    with pytest.raises(InvalidRequestError, match="no column 'colour'") as refused:
        client.search("oak", where=["colour=red"])
    assert (refused.value.status, refused.value.code, refused.value.field) == (422, "invalid", "where")
    with pytest.raises(InvalidRequestError, match="does not recommend"):
        client.recommend(["red-oak-desk"])
    with pytest.raises(DataError, match="cannot be written as JSON"):
        client.search("\ud800")


def test_keys_are_needed(server):
    with Client(server.url) as nobody, pytest.raises(AccessError, match="A key is needed"):
        nobody.search("oak")
    with Client(server.url, READ) as reader, pytest.raises(AccessError, match="read key"):
        reader.add([{"id": "new", "title": "New"}])
    with pytest.raises(ConfigError, match="characters that no key has"):
        Client(server.url, "secret key")


def test_items_are_added_and_removed_as_in_the_library(server, served_run):
    library = Retriever.load(served_run)
    items = [{"id": f"new-{number}", "title": f"Violet samovar {number}"} for number in range(3)]
    texts = [item["title"] for item in items]
    with Client(server.url, WRITE) as writer:
        before = writer.info()["snapshot"]
        for searcher in (writer, library):
            searcher.add(items, texts=texts)
        same_hits(writer.search("violet samovar", k=60), library.search("violet samovar", k=60))
        assert writer.info()["snapshot"] == library.snapshot_hash != before
        for searcher in (writer, library):
            searcher.remove([item["id"] for item in items])
        assert writer.info()["snapshot"] == library.snapshot_hash == before
        with pytest.raises(InvalidRequestError, match="no item 'new-0'") as unknown:
            writer.remove(["new-0"])
        assert unknown.value.status == 404
        writer.add([])
        writer.remove([])


def test_items_are_sent_in_as_many_requests_as_it_takes(server):
    items = [{"id": f"bulk-{number}", "title": f"bulk {number}", "note": "x" * 1000} for number in range(300)]
    with Client(server.url, WRITE) as writer:
        count, sequence = writer.info()["items"], writer.info()["sequence"] or 0
        writer.add(items, texts=[item["title"] for item in items])
        assert writer.info()["items"] == count + 300
        assert writer.info()["sequence"] - sequence == 2, "above 256 KiB"
        writer.remove([item["id"] for item in items])
        assert writer.info()["items"] == count


def test_recommendations_are_those_of_the_library(place):
    library = Retriever.load(place / "run")
    one, other = walk(place, 5), walk(place, 3, start=20)
    with service("--model", place / "run", "--max-queries", 2) as running, Client(running.url) as client:
        same_hits(client.recommend(one, k=5), library.recommend(one, k=5))
        same_hits(client.recommend(one, k=5, seen=True), library.recommend(one, k=5, seen=True))
        users = [History(tuple(one), "ann"), History(tuple(other), "bob"), History(tuple(one[:2]))]
        for own, others in zip(client.recommend(users, k=4), library.recommend(users, k=4), strict=True):
            same_hits(own, others)
        explained = client.explain(users[0], one[0])
        assert explained.excluded == "history"
        assert explained.sentence() == library.explain(users[0], one[0]).sentence()
        with pytest.raises(InvalidRequestError, match="does not search"):
            client.search("oak")


def test_a_service_that_is_gone_is_unavailable():
    retries = Retries(attempts=1)
    with (
        Client("http://127.0.0.1:9", retries=retries) as client,
        pytest.raises(UnavailableError, match="Nothing answers"),
    ):
        client.search("oak")


def test_importing_the_client_loads_no_model_and_no_web_framework():
    code = """
import sys
import restd
restd.Client("http://127.0.0.1:8000").close()
loaded = {"torch", "transformers", "faiss", "fastapi", "sklearn", "sentence_transformers"} & set(sys.modules)
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
