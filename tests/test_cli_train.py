"""`restd train`: what it prints, recipes, and that every mistake ends in one sentence and exit code 2."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from restd.cli.train import configure
from restd.errors import ConfigError
from restd.index import SidIndex
from tests.training import FAST, TINY, make_index, write_world


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    data = write_world(folder / "data")
    return make_index(data, folder / "index"), data


@pytest.fixture
def train(world, tmp_path, command):
    def train(*extra, index=world[0], data=world[1], out=tmp_path / "run", settings=(*TINY["compact"], *FAST)):
        sets = [word for setting in settings for word in ("--set", setting)]
        return command("train", "--index", index, "--data", data, "--out", out, *sets, *extra)

    return train


def refused(result, *words):
    code, out, err = result
    assert code == 2, err
    assert out == ""
    assert "Traceback" not in err
    last = [line for line in err.splitlines() if line.startswith("restd: ")]
    assert len(last) == 1, err
    for word in words:
        assert word in last[0]


def test_a_run_says_what_it_will_cost_and_where_the_model_is(train, tmp_path):
    code, out, err = train("--updates", 6)
    assert code == 0, err
    assert "6 updates of about" in err
    assert "GB of memory (cpu)" in err
    assert "30 pairs of 15 queries" in err
    assert f"Model: {tmp_path / 'run' / 'model'} (objective base, 6 updates)" in out
    record = json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))
    assert record["told"]["train"]["updates"] == 6
    assert record["told"]["model"]["compact"]["width"] == 32
    assert {"processor", "threads", "precision"} <= record["machine"].keys()
    code, _, err = train("--updates", 6)
    assert code == 0
    assert "Kept the model" in err


def test_json_goes_alone_to_standard_output(train, tmp_path):
    code, out, err = train("--updates", 3, "--json", "--objective", "restd")
    assert code == 0, err
    summary = json.loads(out)
    assert summary.pop("hybrid")  # weights of its parts
    assert summary == {"model": str(tmp_path / "run" / "model"), "updates": 3, "validation": None}


def test_a_continuation_knows_its_backbone_and_shares_the_cache(train, tmp_path):
    assert train("--updates", 3, out=tmp_path / "base")[0] == 0
    code, _, err = train("--updates", 3, "--objective", "rbd", "--init", tmp_path / "base", settings=FAST)
    assert code == 0, err
    assert not (tmp_path / "run" / "cache").exists()


def test_a_checkpoint_of_another_index(train, world, tmp_path):
    assert train("--updates", 2, out=tmp_path / "base")[0] == 0
    other = make_index(world[1], tmp_path / "other", seed=5)
    refused(
        train("--updates", 2, "--init", tmp_path / "base", index=other), "was trained for codebooks", "train a model"
    )


def test_an_objective_that_needs_residuals_on_an_index_without(train, world, tmp_path):
    index = SidIndex.load(world[0])
    table = pa.table({"id": index.table.ids, "sid": pa.array(index.sids.tolist(), pa.list_(pa.int64()))})
    pq.write_table(table, tmp_path / "sids.parquet")
    from restd.index import import_index

    import_index(tmp_path / "sids.parquet").save(tmp_path / "imported")
    result = train("--updates", 2, "--objective", "restd", index=tmp_path / "imported")
    refused(result, "no residuals", "--codebooks and --latents")
    settings = (*TINY["compact"], *FAST, "compact.encoder=minilm")
    code, _, err = train("--updates", 2, index=tmp_path / "imported", settings=settings)
    assert code == 0, err


@pytest.mark.parametrize(("change", "word"), [({"split": "test"}, "'train'"), ({"grade": 0}, "0 have a grade above")])
def test_no_training_pairs_and_no_positives(train, world, tmp_path, change, word):
    lines = [json.loads(line) for line in (world[1] / "judgments.jsonl").read_text("utf-8").splitlines()]
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "judgments.jsonl").write_text("".join(json.dumps({**line, **change}) + "\n" for line in lines), "utf-8")
    refused(train("--updates", 2, data=bad), "has no training pairs", word)


def test_judgments_of_other_items(train, world, tmp_path):
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "judgments.jsonl").write_text('{"query": "a", "item": "nowhere"}\n', "utf-8")
    refused(train("--updates", 2, data=bad), "nowhere", "not in the catalogue")


def test_a_query_longer_than_the_limit_is_counted_and_told(train, world, tmp_path):
    long = tmp_path / "long"
    long.mkdir()
    lines = [json.loads(line) for line in (world[1] / "judgments.jsonl").read_text("utf-8").splitlines()]
    lines[0]["query"] = "kettle " * 500
    (long / "judgments.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    (long / "items.jsonl").write_text((world[1] / "items.jsonl").read_text("utf-8"), "utf-8")
    code, _, err = train("--backbone", "t5", "--updates", 2, data=long, settings=(*TINY["t5"], *FAST))
    assert code == 0, err
    assert "1 of 16 queries are longer than the model's limit and lost their end" in err


def test_a_hub_model_that_cannot_be_reached(train, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    settings = (*FAST, "t5.model=nobody/no-such-model")
    refused(
        train("--backbone", "t5", settings=settings), "'nobody/no-such-model' could not be loaded", "t5.model=fresh"
    )


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (("--objective", "magic"), ("Unknown objective 'magic'", "base, rbd")),
        (("--backbone", "bert"), ("backbone", "'bert'")),
        (("--set", "train.speed=9"), ("[train] has no setting 'speed'",)),
        (("--set", "magic.wand=1"), ("Unknown section [magic]", "continuation")),
        (("--set", "train.batch=7"), ("train.batch (7) must be divisible by train.micro",)),
        (("--init", "nowhere"), ("nowhere is not an artefact",)),
        (("--recipe", "nothing"), ("neither a .toml file nor one of",)),
        (("--set", "compact.heads=3"), ("compact.width (32) must be divisible by compact.heads (3)",)),
        (("--set", "train.tracker=nobody"), ("nobody",)),
    ],
)
def test_mistakes_end_in_a_sentence(train, extra, words):
    refused(train("--updates", 2, *extra), *words)


def test_an_out_that_is_not_ours(train, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("precious", "utf-8")
    refused(train("--updates", 2), "thesis.txt", "Choose another --out")


@pytest.mark.parametrize(
    "recipe", ["paper-esci-us", "paper-esci-es", "paper-esci-jp", "shop", "movies", "few-pairs", "dsi", "dsi-qg"]
)
def test_recipes_are_complete_and_differ_by_mode(recipe, tmp_path, monkeypatch):
    saved = {"kind": "t5", "body": "t5"} if "esci" in recipe else {"kind": "compact", "body": "compact"}
    monkeypatch.setattr("restd.train.configure.read_description", lambda folder: saved)
    model, base = configure(recipe, [])
    _, continued = configure(recipe, [], objective="restd", continued_from=tmp_path)
    assert base.train.epochs > 0
    assert continued.train.updates > 0
    if recipe.startswith("paper"):
        assert model.backbone == "calir"
        assert model.section("t5").model == ("google-t5/t5-base" if recipe.endswith("us") else "google/mt5-base")
        assert base.train.lr == (5e-4 if recipe.endswith("us") else 1e-4)
        assert (continued.train.updates, continued.train.batch, continued.train.micro) == (1_200, 128, 8)
        assert (continued.train.lr, continued.train.warm_up) == (1e-5, 120)
        assert (continued.distill.temperature, continued.distill.tau) == ("fixed", 0.2)


def test_the_small_tigers_recipe_is_for_recommending():
    model, config = configure("tiger-small", [])
    assert (model.task, model.section("tiger").causal, config.train.epochs) == ("recommend", True, 25)
    with pytest.raises(ConfigError, match="not for search"):
        configure("tiger-small", [], task="search")


def test_options_replace_what_a_recipe_says():
    _, config = configure("shop", ["train.lr=0.5"], options={"updates": 7})
    assert (config.train.updates, config.train.epochs, config.train.lr) == (7, 0, 0.5)
    _, config = configure(None, ["train.epochs=3"])
    assert (config.train.updates, config.train.epochs) == (0, 3)
    with pytest.raises(ConfigError, match="exactly one"):
        configure(None, ["train.epochs=3", "train.updates=4"])


def test_the_same_command_gives_the_same_bytes(train, tmp_path):
    """Two runs of one command on one machine give the same bytes."""
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        assert train("--updates", 3, out=folder)[0] == 0
    one, two = ((folder / "model" / "model.safetensors").read_bytes() for folder in folders)
    assert one == two
    assert np.frombuffer(one, np.uint8).any()
