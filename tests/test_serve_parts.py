"""The parts of the service one by one: options of a request, limits, keys, log, the command's mistakes."""

import dataclasses
import io
import json
import socket
import threading
import time

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError

from restd.errors import ConfigError
from restd.search import HeadUse, SearchOptions
from restd.search.options import SearchKeywords
from restd.serve import Limits, ServedModel, ServerState, make_app
from restd.serve.keys import Keys
from restd.serve.problems import ForbiddenError, UnauthorizedError
from restd.serve.request_log import RequestLog
from restd.serve.schema import OPTIONS, argument_descriptions, option_fields, request_models
from restd.serve.search_work import SearchWork
from restd.snapshot import Condition
from tests.serving import wait_for

FIELDS = [field.name for field in dataclasses.fields(SearchOptions)]


def test_requests_have_exactly_the_options_of_the_library():
    models = request_models(Limits())
    assert set(OPTIONS) == set(FIELDS) == set(option_fields(Limits()))
    assert set(FIELDS) == {"k", *SearchKeywords.__annotations__}
    common = {"model", "contributions", "fields"}
    assert set(models.search.model_fields) == {*FIELDS, *common, "query", "queries"} - {"seen"}
    assert set(models.recommend.model_fields) == {*FIELDS, *common, "history", "histories"}
    assert set(models.explain.model_fields) == {*FIELDS, *common, "query", "history", "item"}


def test_what_a_request_leaves_out_is_what_the_library_leaves_out():
    models = request_models(Limits())
    assert models.search.model_validate({"query": "x"}).search_options("generative") == SearchOptions()
    assert models.search.model_validate({"query": "x"}).search_options("hybrid") == SearchOptions(mode="hybrid")
    assert models.recommend.model_validate({"history": ["x"]}).search_options("generative") == SearchOptions()
    for field in dataclasses.fields(SearchOptions):
        default = models.explain.model_fields[field.name].default
        expected = {"where": [], "deny": [], "mode": None}.get(field.name, field.default)
        assert default == expected, field.name
    heads = models.search.model_validate({"query": "x", "heads": {}}).search_options("generative").heads
    assert heads == HeadUse()


def test_every_option_arrives_as_it_was_sent():
    values = {
        "k": 3,
        "beam": 9,
        "widen": False,
        "score_norm": "level_codes",
        "where": ["price<=3"],
        "allow": ["a"],
        "deny": ["b"],
        "category_width": 0,
        "mode": "hybrid",
        "heads": {"mode": "rerank", "weight": 1.5, "extra_candidates": 7},
        "seen": True,
    }
    assert set(values) == set(FIELDS)
    body = request_models(Limits()).recommend.model_validate({"history": ["x"], **values})
    heads = HeadUse("rerank", 1.5, 7)
    assert body.search_options("generative") == SearchOptions(**{**values, "heads": heads})


def test_the_document_has_the_words_of_the_library_and_the_limits_of_this_service():
    schema = request_models(Limits(max_k=7, max_beam=9, max_queries=3)).search.model_json_schema()["properties"]
    descriptions = argument_descriptions(SearchOptions)
    assert set(descriptions) == set(FIELDS)
    assert all(schema[name]["description"] == descriptions[name] for name in FIELDS if name != "seen")
    assert schema["k"]["maximum"] == 7
    assert schema["beam"]["anyOf"][0]["maximum"] == 9
    assert schema["queries"]["anyOf"][0]["maxItems"] == 3


def test_a_history_is_one_list_or_many():
    recommend = request_models(Limits(max_history=2)).recommend
    one = recommend.model_validate({"history": ["a", "b"]}).users()
    assert [history.items for history in one] == [("a", "b")]
    many = recommend.model_validate({"histories": [["a"], ["b", "c"]]}).users()
    assert [history.items for history in many] == [("a",), ("b", "c")]
    for bad in ({"history": []}, {"histories": [[]]}, {"history": ["a"] * 3}, {"history": "a"}, {"history": [1]}):
        with pytest.raises(ValidationError):
            recommend.model_validate(bad)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Limits)])
def test_impossible_limits_are_refused(name):
    for value in (-1, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match=name):
            Limits(**{name: value})


def test_a_condition_of_blanks_is_refused_at_once():
    """Blanks around an operator once cost time in the cube of their number."""
    began = time.process_time()
    for text in (" " * 20_000, "a" + " " * 20_000, " " * 20_000 + "=b"):
        with pytest.raises(ConfigError, match="not of the form"):
            Condition.parse(text)
    assert Condition.parse("  a b  <=  3 \n 4 ") == Condition("a b", "<=", "3 \n 4")
    assert time.process_time() - began < 5


@pytest.mark.parametrize("text", ["", "a", "=b", "a!b=c", "!=3", "a!b"])
def test_other_texts_are_no_conditions(text):
    with pytest.raises(ConfigError, match="not of the form"):
        Condition.parse(text)


def test_keys_are_kept_as_hashes_and_compared_whole(tmp_path):
    path = tmp_path / "keys.txt"
    path.write_text(
        "\n# a comment\nread: first-key-to-read\nread:second-key-to-read\n  write : the-key-to-write\n", "utf-8"
    )
    keys = Keys.load(path)
    assert "key" not in repr(keys).replace("Keys", "")
    for key in ("first-key-to-read", "second-key-to-read", "the-key-to-write"):
        keys.check(f"Bearer {key}", writing=False)
    for header in (None, "", "Bearer", "Bearer first-key-to-rea", "Bearer first-key-to-read2", "first-key-to-read"):
        with pytest.raises(UnauthorizedError):
            keys.check(header, writing=False)
    with pytest.raises(UnauthorizedError):
        keys.check(None, writing=True)
    with pytest.raises(ForbiddenError, match="read key"):
        keys.check("Bearer first-key-to-read", writing=True)
    keys.check("Bearer the-key-to-write", writing=True)


def test_without_a_read_key_everybody_reads_and_without_a_write_key_nobody_writes():
    Keys().check(None, writing=False)
    with pytest.raises(ForbiddenError, match="--api-key-file"):
        Keys().check(None, writing=True)
    only_write = Keys.parse(["write: the-key-to-write"])
    only_write.check(None, writing=False)
    with pytest.raises(UnauthorizedError):
        only_write.check(None, writing=True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no key"),
        ("admin: long-enough-a-key", "line 1: expected 'read: KEY'"),
        ("# one\nread: short", "line 2: the key has 5 characters"),
        ("read: with blanks in the key", "line 1: expected"),
        ("read: schlüssel-zum-lesen-hier", "line 1: expected"),
    ],
)
def test_a_file_of_keys_with_mistakes_is_refused(tmp_path, text, said):
    path = tmp_path / "keys.txt"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=said):
        Keys.load(path)


def test_a_file_of_keys_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "keys").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not a text file"):
        Keys.load(tmp_path / "keys")


def test_the_log_writes_json_lines():
    stream = io.StringIO()
    log = RequestLog(stream)
    for number in range(50):
        log.add({"status": number, "path": "/v1/\n"})
    log.close()
    assert [json.loads(line)["status"] for line in stream.getvalue().splitlines()] == list(range(50))


def test_a_stream_that_blocks_or_breaks_costs_lines_and_nothing_else():
    gate, dropped = threading.Event(), []

    class Stuck(io.StringIO):
        def write(self, text):
            gate.wait(30)
            raise OSError("full")

    log = RequestLog(Stuck(), dropped=lambda: dropped.append(1))
    for number in range(10_050):
        log.add({"status": number})
    assert len(dropped) >= 40
    gate.set()
    wait_for(lambda: len(dropped) >= 10_050, what="the end of the queue")
    log.close()


def test_mistakes_of_the_command_are_sentences(command, served_run, tmp_path):
    code, _, err = command("serve", "--model", served_run, "--max-queries", 500)
    assert (code, "max_queries (500) is above queue (256)" in err) == (2, True)
    code, _, err = command("serve", "--model", served_run, "--api-key-file", tmp_path / "none.txt")
    assert (code, "none.txt" in err) == (2, True)
    code, _, err = command("serve", "--model", served_run, "--reload", "next")
    assert (code, "expected NAME=FOLDER" in err) == (2, True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, _, err = command("serve", "--model", served_run, "--port", taken.getsockname()[1])
        assert (code, "Choose another --host or --port" in err) == (2, True)


def test_a_model_that_cannot_be_loaded_ends_the_command(command, tmp_path):
    code, out, err = command("serve", "--model", tmp_path / "nothing", "--port", 0)
    assert code == 2
    assert "nothing" in err
    assert "restd serves" not in out


def test_a_query_that_the_deadline_cut_is_said_to_be(served_run, monkeypatch):
    answer = SearchWork.__call__

    def slow(work, queries):
        time.sleep(0.2)
        return answer(work, queries)

    monkeypatch.setattr(SearchWork, "__call__", slow)
    state = ServerState.of(Limits(deadline_ms=500, max_batch=1))
    state.put(ServedModel.load(served_run))
    with TestClient(make_app(state)) as client:
        response = client.post("/v1/search", json={"queries": ["oak", "mug", "lamp", "desk"], "k": 2})
    assert response.status_code == 200, response.text
    first, *_, last = response.json()["results"]
    assert (len(first["hits"]), first["partial"], first["timed_out"]) == (2, False, False)
    assert (last["hits"], last["partial"], last["timed_out"]) == ([], True, True)
