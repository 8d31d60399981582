"""`restd search`: answers with titles and scores, traces a person understands, mistakes in one sentence."""

import json

import pytest

from tests.training import make_index, run, write_world


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    data = write_world(folder / "data")
    return run(make_index(data, folder / "index"), data, folder / "run", updates=60).folder.parent


@pytest.fixture
def search(model, command):
    return lambda *words: command("search", "--model", model, *words)


def test_answers_have_titles_scores_and_sids(search):
    code, out, err = search("oak desk", "-k", 3)
    assert code == 0, err
    assert "oak desk" in out
    assert out.count("-oak-desk") >= 1
    assert "Semantic ID" in out


def test_json_goes_alone_to_standard_output(search):
    code, out, _ = search("oak desk", "-k", 3, "--json", "--where", "category=desk")
    assert code == 0
    record = json.loads(out)
    assert record["query"] == "oak desk"
    assert len(record["hits"]) == 3
    assert all(hit["item"].endswith("desk") and len(hit["sid"]) == 3 for hit in record["hits"])


def test_many_queries_from_a_file(search, tmp_path):
    (tmp_path / "queries.txt").write_text("oak desk\n\nglass lamp\n", "utf-8")
    (tmp_path / "queries.csv").write_text("query,other\noak desk,1\nglass lamp,2\noak desk,3\n", "utf-8")
    answers = [search("--queries", tmp_path / name, "--json", "-k", 2)[1] for name in ("queries.txt", "queries.csv")]
    assert [record["query"] for record in json.loads(answers[0])] == ["oak desk", "glass lamp"]
    assert answers[0] == answers[1]


def test_an_explanation_is_a_table_and_a_sentence(search):
    code, out, _ = search("oak desk", "--explain", "red-glass-kettle", "--beam", 1, "-k", 1)
    assert code == 0
    assert "red-glass-kettle was lost at level 1" in out
    assert "finds it" in out
    assert "Scored exactly" in out
    code, out, _ = search("oak desk", "--explain", "red-glass-kettle", "--json")
    assert json.loads(out)["item"] == "red-glass-kettle"


def test_hybrid_in_one_call(search):
    code, out, err = search("oak desk", "--mode", "hybrid", "-k", 4, "--json")
    assert code == 0, err
    assert len(json.loads(out)["hits"]) == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "Pass either a query or --queries"),
        (("  ",), "has no text"),
        (("desk", "-k", 0), "k = 0"),
        (("desk", "--where", "colour=red"), "no column 'colour'"),
        (("desk", "--where", "title=nothing"), "No item meets the filter"),
        (("desk", "--explain", "nobody"), "'nobody'"),
        (("desk", "--index", "nowhere"), "nowhere"),
        (("desk", "--queries", "file.txt"), "Pass either a query or --queries"),
    ],
)
def test_mistakes_end_in_a_sentence(search, words, message):
    code, out, err = search(*words)
    assert code == 2
    assert out == ""
    assert message in err
    assert "Traceback" not in err


def test_odd_queries_are_answered(search):
    for query in ("x" * 100_000, "desk\x00\x1b[2J", "机 🪑"):
        code, out, err = search(query, "-k", 2, "--json")
        assert code == 0, err
        assert len(json.loads(out)["hits"]) == 2
    assert search("desk", "-k", 10_000, "--json")[0] == 0


def test_the_command_has_the_defaults_of_python():
    from inspect import signature

    from restd.cli.options import HEAD_WEIGHT
    from restd.cli.recommend import recommend
    from restd.cli.search import search
    from restd.search import HeadUse, SearchOptions

    defaults = SearchOptions()
    for command in (search, recommend):
        parameters = signature(command).parameters
        shared = {"k", "beam", "score_norm", "category_width"} & parameters.keys()
        assert {name: parameters[name].default for name in shared} == {name: getattr(defaults, name) for name in shared}
    assert HeadUse("fuse").weight == HEAD_WEIGHT
