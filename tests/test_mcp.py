"""`restd mcp` as a real process, used by the client of the mcp package: tools, answers, refusals."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters

import restd
from restd.search import Retriever
from restd.serve import Limits, ServedModel, ServerState
from restd.serve.mcp_tools import ToolBox
from tests.serving import WAIT
from tests.walks import walk


def server(*words):
    """The command, as a desktop assistant would start it."""
    env = {**os.environ, "PYTHONPATH": str(Path(restd.__file__).parent.parent), "OMP_NUM_THREADS": "1"}
    return StdioServerParameters(command=sys.executable, args=["-m", "restd", "mcp", *map(str, words)], env=env)


def conversation(parameters, calls):
    """Tools of a server, and its answers to calls."""

    async def talk():
        async with asyncio.timeout(WAIT), Client(parameters) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            return tools, [await client.call_tool(name, arguments) for name, arguments in calls]

    return asyncio.run(talk())


def test_a_search_model_searches_and_explains(served_run):
    library = Retriever.load(served_run, hybrid=True)
    tools, answers = conversation(
        server("--model", served_run, "--max-k", 50),
        [
            ("search", {"query": "oak desk", "k": 3, "mode": "generative", "fields": ["category"]}),
            ("search", {"queries": ["oak desk", "glass lamp"], "k": 2, "where": ["category=desk"]}),
            ("explain", {"query": "oak desk", "item": "red-glass-kettle", "beam": 1, "k": 1, "mode": "generative"}),
            ("search", {"query": "oak desk", "k": 51}),
            ("search", {"query": "oak desk", "colour": "red"}),
            ("search", {"query": "oak desk", "where": ["colour=red"]}),
            ("search", {"query": "\x00"}),
            ("search", {}),
            ("recommend", {"history": ["red-oak-desk"]}),
            ("search", {"query": "oak desk", "allow": ["../../etc/passwd"]}),
        ],
    )
    assert set(tools) == {"search", "explain"}
    search = tools["search"]
    assert "60 items" in search.description
    assert "title, category" in search.description
    assert search.input_schema["properties"]["k"]["maximum"] == 50
    assert "model" not in search.input_schema["properties"]
    assert "history" not in tools["explain"].input_schema["properties"]
    assert search.annotations.read_only_hint
    assert search.output_schema["properties"]["results"]["type"] == "array"

    one, many, explained, *refused = answers
    hits = one.structured_content["results"][0]["hits"]
    assert [hit["item"] for hit in hits] == [hit.item for hit in library.search("oak desk", k=3)]
    assert set(hits[0]["fields"]) == {"category"}
    assert json.loads(one.content[0].text) == one.structured_content
    assert many.structured_content["mode"] == "hybrid"
    assert [result["query"] for result in many.structured_content["results"]] == ["oak desk", "glass lamp"]
    assert (
        explained.structured_content["sentence"]
        == library.explain("oak desk", "red-glass-kettle", beam=1, k=1).sentence()
    )
    assert not any(answer.is_error for answer in (one, many, explained))

    assert all(answer.is_error and answer.structured_content is None for answer in refused)
    sentences = [answer.content[0].text for answer in refused]
    for sentence, part in zip(
        sentences,
        (
            "less than or equal to 50",
            "no field 'colour'",
            "no column 'colour'",
            "at least one word",
            "either 'query' or 'queries'",
            "no tool 'recommend' here; there are: search, explain",
            "allow",
        ),
        strict=True,
    ):
        assert part in sentence
        assert "Traceback" not in sentence


def test_a_recommender_recommends_and_explains(place):
    library, history = Retriever.load(place / "run"), walk(place, 4)
    tools, (recommended, explained, bad) = conversation(
        server("--model", place / "run"),
        [
            ("recommend", {"history": history, "k": 3}),
            ("explain", {"history": history, "item": history[0]}),
            ("recommend", {"history": []}),
        ],
    )
    assert set(tools) == {"recommend", "explain"}
    assert "query" not in tools["explain"].input_schema["properties"]
    hits = recommended.structured_content["results"][0]["hits"]
    assert [hit["item"] for hit in hits] == [hit.item for hit in library.recommend(history, k=3)]
    assert "in the history" in explained.structured_content["sentence"]
    assert bad.is_error


def test_a_missing_model_is_an_error_and_standard_output_stays_empty(command, tmp_path):
    code, out, err = command("mcp", "--model", tmp_path / "nothing")
    assert (code, out) == (2, "")
    assert "nothing" in err


@pytest.fixture(scope="module")
def box(served_run):
    state = ServerState.of(Limits(max_body_kb=1))
    state.put(ServedModel.load(served_run))
    return ToolBox(state)


def test_large_arguments_and_faults_are_errors_of_the_tool(box, caplog):
    large = asyncio.run(box.call("search", {"query": "oak", "allow": ["x" * 500] * 9}))
    assert large.is_error
    assert "at most 1024 are read" in large.content[0].text
    not_started = asyncio.run(box.call("search", {"query": "oak"}))
    assert "not ready" in not_started.content[0].text
    odd = asyncio.run(box.call("search", {"query": float("nan")}))
    assert odd.is_error

    async def broken(trace, body):
        raise ZeroDivisionError("of the test")

    object.__setattr__(box.tools["search"], "run", broken)
    failed = asyncio.run(box.call("search", {"query": "oak"}))
    assert failed.is_error
    assert "of the test" not in failed.content[0].text
    assert "of the test" in caplog.text
