"""Names of commands and options: the new ones, the old ones with a warning, and what is listed in the help."""

import json

import pytest

from restd.cli.command import RENAMED
from restd.index import SidIndex
from tests.studies import SETTINGS, write_place
from tests.training import FAST, TINY
from tests.walks import walk


def warnings_of(err):
    return [line for line in err.splitlines() if "deprecated" in line]


@pytest.fixture
def index_folder(command, items_csv, tmp_path):
    code, _, err = command("index", "build", "--catalog", items_csv, "--encoder", "tfidf-svd", "--out", tmp_path / "i")
    assert code == 0, err
    assert warnings_of(err) == []
    return tmp_path / "i"


def test_index_with_options_alone_is_short_for_build(command, index_folder, items_csv):
    words = ("--catalog", items_csv, "--encoder", "tfidf-svd", "--out", index_folder)
    code, _, err = command("index", *words)
    assert code == 0
    assert err.count("Kept") == 3, "the same build, found finished"
    assert warnings_of(err) == []


def test_the_group_itself_has_a_help(command):
    for words in (("index",), ("index", "--help")):
        _, out, err = command(*words)
        for name in ("build", "import", "add", "remove", "inspect"):
            assert name in out + err
    code, _, err = command("index", "shop.csv")
    assert code == 2
    assert "No such command" in err


def test_commands_that_moved_go_on_working_with_a_warning(command, index_folder, tmp_path):
    (tmp_path / "new.csv").write_text("id,title,description\nn1,red steel mug,small\n")
    calls = {
        "inspect": (index_folder, "--json"),
        "add": ("--index", index_folder, "--catalog", tmp_path / "new.csv", "--json"),
        "remove": ("--index", index_folder, "--ids", "n1", "--json"),
    }
    for name, words in calls.items():
        code, out, err = command(name, *words)
        assert code == 0, err
        assert warnings_of(err) == [
            f"Warning: restd {name} is deprecated and will be removed in the next release; "
            f"use restd index {name} instead."
        ]
        assert json.loads(out)
        if name == "remove":
            assert command("index", "add", *calls["add"])[0] == 0
        code, _, err = command("index", name, *words)
        assert code == (2 if name == "add" else 0), "added twice"
        assert warnings_of(err) == []
    _, out, _ = command("--help")
    assert "│ add " not in out


def test_importing_with_the_options_of_build_goes_on_working_with_a_warning(command, index_folder, tmp_path):
    import pyarrow.parquet as pq

    stored = index_folder / "index" / "items.parquet"
    pq.write_table(pq.read_table(stored).drop_columns("raw"), tmp_path / "codes.parquet")
    books = index_folder / "index" / "codebooks.safetensors"
    code, _, err = command(
        "index", "--codes", tmp_path / "codes.parquet", "--codebooks", books, "--out", tmp_path / "j"
    )
    assert code == 0, err
    assert "use restd index import TABLE" in warnings_of(err)[0]
    code, _, err = command("index", "import", tmp_path / "codes.parquet", "--codebooks", books, "--out", tmp_path / "k")
    assert code == 0, err
    assert warnings_of(err) == []
    assert SidIndex.load(tmp_path / "j").layout() == SidIndex.load(tmp_path / "k").layout()


@pytest.fixture(scope="module")
def study_place(tmp_path_factory):
    return write_place(tmp_path_factory.mktemp("place"))


def new_and_old(command, words, old, value):
    """Run a command under both names of an option; returns what it printed, which must be the same."""
    printed = []
    for name in (RENAMED[old], old):
        code, out, err = command(*words, name, value)
        assert code == 0, err
        expected = [] if name != old else [old]
        assert [word for line in warnings_of(err) for word in RENAMED if f" {word} " in line] == expected
        printed.append(out)
    code, out, err = command(*words, f"{old}={value}")
    assert code == 0
    assert len(warnings_of(err)) == 1
    assert printed == [out] * 2
    return out


def test_old_options_of_search_and_evaluate(command, study_place):
    base = ("--model", study_place / "base", "--json")
    out = new_and_old(command, ("search", "oak desk", *base, "-k", 1, "--explain", "red-glass-kettle"), "--width", 3)
    assert json.loads(out)["beam"] == 3
    out = new_and_old(command, ("evaluate", *base, "--split", "valid"), "--width", 7)
    assert json.loads(out)["card"]["decoding"]["beam"] == 7


def test_old_options_of_recommend(command, place):
    out = new_and_old(
        command, ("recommend", "--model", place / "run", "--history", walk(place, 1)[0], "--json"), "--width", 9
    )
    assert json.loads(out)["hits"]


def test_the_old_name_of_head_mode(command, study_place):
    words = ("search", "oak desk", "--model", study_place / "base", "--json")
    for name in ("--head-mode", "--keep-heads"):
        code, _, err = command(*words, name, "guess")
        assert code == 2
        assert "--head-mode must be one of rerank" in err
        assert len(warnings_of(err)) == (name == "--keep-heads")


def test_the_old_name_of_learning_rates(command, place, tmp_path):
    where = ("--index", place / "index", "--data", place / "data", "--out", tmp_path / "run", "--task", "recommend")
    for name in ("--learning-rates", "--rates"):
        for run in ("train", "compare"):
            code, _, err = command(run, *where, name, "fast")
            assert code == 2
            assert "--learning-rates must be numbers" in err
            assert len(warnings_of(err)) == (name == "--rates")


def test_every_renamed_option_is_accepted_somewhere_and_listed_nowhere(command):
    for old, new in RENAMED.items():
        listed = []
        for name in ("train", "search", "recommend", "evaluate", "compare"):
            _, out, _ = command(name, "--help")
            assert f"{old} " not in out
            listed.append(f"{new} " in out)
        assert any(listed)


def test_a_value_that_looks_like_an_old_option_is_a_value(command, study_place):
    code, out, err = command("search", "--model", study_place / "base", "--json", "--", "--width")
    assert code == 0, err
    assert json.loads(out)["query"] == "--width"
    assert warnings_of(err) == []


def test_a_study_is_an_argument_and_its_old_option_warns(command, study_place):
    sets = [word for setting in (*TINY["compact"], *FAST, *SETTINGS) for word in ("--set", setting)]
    where = ("--index", study_place / "index", "--data", study_place / "data", "--out", study_place / "study")
    words = ("--split", "valid", "--seeds", "1", "--updates", 3, "--init", study_place / "base", "--width", 11)
    code, out, err = command("compare", *where, *sets, *words, "--objectives", "base", "--json")
    assert code == 0, err
    assert json.loads(out)["card"]["decoding"]["beam"] == 11
    assert len(warnings_of(err)) == 1
    code, out, err = command("analyze", "conflicts", study_place / "study", "--json")
    assert code == 0
    assert warnings_of(err) == []
    code, again, err = command("analyze", "conflicts", "--study", study_place / "study", "--json")
    assert code == 0
    assert json.loads(again) == json.loads(out)
    assert "use restd analyze conflicts STUDY" in warnings_of(err)[0]
    code, _, err = command("analyze", "conflicts")
    assert code == 2
    assert "restd analyze conflicts STUDY" in err


def test_a_history_is_one_option_per_item(command, place):
    items = walk(place, 3)
    words = ("recommend", "--model", place / "run", "-k", 4, "--json")
    repeated = [word for item in items for word in ("--history", item)]
    code, out, err = command(*words, *repeated)
    assert code == 0
    assert warnings_of(err) == []
    assert json.loads(out)["history"] == list(items)
    code, again, err = command(*words, "--history", ",".join(items))
    assert code == 0
    assert again == out
    assert "use --history ID --history ID" in warnings_of(err)[0]


def test_ids_of_a_history_may_contain_commas():
    import pyarrow as pa

    from restd.cli.recommend import history_items

    ids = pa.array(["a,b", "a", "b"])
    assert history_items(["a,b"], ids) == ("a,b",)
    assert history_items(["b,a"], ids) == ("b", "a")
    assert history_items(["b,a", "c"], ids) == ("b,a", "c"), "never split where there are several"


def test_the_version(command):
    from restd import __version__

    code, out, _ = command("--version")
    assert (code, out) == (0, f"restd {__version__}\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_offered(monkeypatch, command, shell):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    code, out, _ = command("--show-completion", shell)
    assert code == 0
    assert "_RESTD_COMPLETE" in out


def test_a_device_that_is_not_there_is_named_with_those_that_are(command, items_csv, tmp_path):
    words = ("index", "--catalog", items_csv, "--encoder", "tfidf-svd", "--out", tmp_path / "i")
    code, _, err = command(*words, "--device", "cuda:7")
    assert code == 2
    assert "--device cuda:7 is not available here. Available: " in err
    assert "cpu" in err
    assert command(*words, "--device", "cpu")[0] == 0
