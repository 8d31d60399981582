"""The command line: what it prints, and that every mistake ends in one sentence and exit code 2."""

import errno
import json
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from restd.artifacts import store
from restd.index import SidIndex


@pytest.fixture
def run(command):
    return command


@pytest.fixture
def indexed(run, items_csv, tmp_path):
    code, _, err = run("index", "--catalog", items_csv, "--encoder", "tfidf-svd", "--out", tmp_path / "idx")
    assert code == 0, err
    return tmp_path / "idx"


def test_from_csv_to_an_index_in_one_command(run, indexed, items_csv):
    code, out, _ = run("index", "inspect", indexed)
    assert code == 0
    assert "300 items, 100.00% unique SIDs" in out
    quality = json.loads((indexed / "quality.json").read_text())
    assert quality["unique"] == 1.0
    assert quality["levels"][0]["dead"] == 0
    assert (indexed / "quality.png").read_bytes().startswith(b"\x89PNG")
    before = SidIndex.load(indexed).sids
    code, _, err = run("index", "--catalog", items_csv, "--encoder", "tfidf-svd", "--out", indexed)
    assert code == 0
    assert err.count("Kept") == 3
    assert np.array_equal(SidIndex.load(indexed).sids, before)


def test_json_goes_alone_to_standard_output(run, indexed, tmp_path):
    code, out, _ = run("index", "inspect", indexed, "--json", "--png", tmp_path / "picture.png")
    assert code == 0
    assert json.loads(out)["items"] == 300
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_shop_check_index(run, tmp_path):
    assert run("data", "shop", "--items", 500, "--locale", "jp", "--out", tmp_path / "shop")[0] == 0
    code, out, _ = run("data", "check", tmp_path / "shop")
    assert code == 0
    assert "Queries by number of positives" in out
    code, out, _ = run("data", "check", tmp_path / "shop", "--json")
    assert json.loads(out)["judgments"]["queries_in_two_splits"] == 0
    arguments = ("--encoder", "tfidf-svd", "--codes", "8,16,32", "--levels", 3, "--policy", "suffix")
    code, out, _ = run("index", "--catalog", tmp_path / "shop", "--out", tmp_path / "idx", *arguments, "--json")
    assert code == 0
    assert [level["codes"] for level in json.loads(out)["levels"]][:3] == [8, 16, 32]


def test_recipes_and_settings(run, items_csv, tmp_path):
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        '[index]\nencoder = "tfidf-svd"\nquantizer = "rqvae"\n[rqvae]\nepochs = 2\nhidden = [16]\ndim = 8\n'
    )
    arguments = ("--recipe", recipe, "--set", "rqvae.levels=2", "--codes", 32, "--catalog", items_csv)
    code, out, err = run("index", *arguments, "--out", tmp_path / "idx", "--json")
    assert code == 0, err
    assert len(json.loads(out)["levels"]) == 2
    manifest = json.loads((tmp_path / "idx" / "quantizer" / "manifest.json").read_text())
    assert manifest["settings"]["config"]["epochs"] == 2
    named = ("--recipe", "recommendation-index", "--codes", 16, "--encoder", "tfidf-svd", "--catalog", items_csv)
    code, out, err = run("index", *named, "--out", tmp_path / "rec", "--json")
    assert code == 0, err
    assert [level["codes"] for level in json.loads(out)["levels"]][:3] == [16] * 3
    assert json.loads(out)["policy"] == "suffix"


@pytest.mark.parametrize("name", ["paper-index", "recommendation-index"])
def test_packaged_recipes_are_valid(name):
    from restd.cli.index_settings import index_config

    config = index_config(name, [], {}, levels=None, codes=None, dim=None, seed=None)
    assert config.fit.codes == 256


def test_add_and_remove(run, indexed, tmp_path):
    (tmp_path / "new.csv").write_text("id,title,description\nn1,red steel mug,small\nn2,oak desk,large\n")
    code, out, _ = run("index", "add", "--index", indexed, "--catalog", tmp_path / "new.csv")
    assert code == 0
    assert "2 items added to 300" in out
    assert len(SidIndex.load(indexed)) == 302
    code, out, _ = run("index", "remove", "--index", indexed, "--ids", "n1,i0", "--json")
    assert json.loads(out) == {"removed": 2, "items": 300}


def test_import(run, indexed, tmp_path):
    built = SidIndex.load(indexed)
    pq.write_table(pa.table({"asin": built.table.ids, "sid": built.sids.tolist()}), tmp_path / "codes.parquet")
    np.save(tmp_path / "books.npy", built.codebooks.values.numpy())
    np.save(tmp_path / "latents.npy", built.latents)
    files = (tmp_path / "codes.parquet", "--codebooks", tmp_path / "books.npy")
    code, out, err = run(
        "index",
        "import",
        *files,
        "--latents",
        tmp_path / "latents.npy",
        "--map",
        "id=asin",
        "--out",
        tmp_path / "i",
        "--json",
    )
    assert code == 0, err
    assert json.loads(out)["unique"] == 1.0
    assert np.array_equal(SidIndex.load(tmp_path / "i").sids, built.sids)


def test_vectors(run, items_csv, tmp_path, rng):
    np.save(tmp_path / "v.npy", rng.normal(size=(300, 40)).astype(np.float32))
    code, _, err = run("index", "--catalog", items_csv, "--vectors", tmp_path / "v.npy", "--out", tmp_path / "idx")
    assert code == 0, err


def csv(tmp_path, text):
    path = tmp_path / "bad.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def many(count, row):
    return "id,title\n" + "".join(row.format(n=n) + "\n" for n in range(count))


def index_of(table, *more):
    return lambda tmp_path: ("index", "--catalog", csv(tmp_path, table), "--encoder", "tfidf-svd", *more)


def index_vectors(values):
    def arguments(tmp_path):
        np.save(tmp_path / "v.npy", values)
        return ("index", "--catalog", csv(tmp_path, many(300, "{n},item {n}")), "--vectors", tmp_path / "v.npy")

    return arguments


NAN = np.ones((300, 4), np.float32)
NAN[3, 1] = np.nan

MISTAKES = {
    "missing column": (index_of("name,title\n1,mug\n"), "no column 'id'"),
    "mapped column missing": (index_of("a,title\n1,mug\n", "--map", "id=b"), "no column 'b'"),
    "map without equals": (index_of("id\n1\n", "--map", "id"), "Expected --map OURS=YOURS"),
    "duplicate id": (index_of("id,title\n1,a\n1,b\n"), "'1' is already in row 2"),
    "not UTF-8": (index_of(b"id,title\n1,a\n2,\xff\n"), "row 3, column 'title': the bytes are not UTF-8"),
    "NaN vectors": (index_vectors(NAN), "vector 3 contains NaN"),
    "too few vectors": (index_vectors(np.ones((7, 4), np.float32)), "contains 7 vectors, but"),
    "vectors in one row": (index_vectors(np.ones(300, np.float32)), "shape (300,)"),
    "fewer items than codes": (index_of(many(40, "{n},item {n}"), "--codes", "64"), "only 40"),
    "all items identical": (index_of(many(50, "{n},same words"), "--codes", "4"), "same vector"),
    "no text anywhere": (index_of(many(50, "{n},")), "contains a word"),
    "more items than addresses": (
        index_of(many(50, "{n},item {n} is no {n}"), "--codes", "4", "--levels", "2"),
        "50 items do not fit the 16 addresses",
    ),
    "unknown policy": (index_of("id\n1\n", "--policy", "hope"), "single_substitution"),
    "unknown quantizer": (index_of("id\n1\n", "--quantizer", "opq"), "Unknown quantiser 'opq'"),
    "unknown setting": (index_of("id\n1\n", "--set", "kmeans.speed=9"), "no setting 'speed'"),
    "unknown section": (index_of("id\n1\n", "--set", "kmean.codes=9"), "Unknown section [kmean]"),
    "setting without value": (index_of("id\n1\n", "--set", "kmeans"), "section.name=value"),
    "setting of a wrong type": (index_of("id\n1\n", "--set", "kmeans.levels=many"), "[kmeans] levels = 'many'"),
    "unknown recipe": (index_of("id\n1\n", "--recipe", "cake"), "paper-index"),
    "codes that are no number": (index_of("id\n1\n", "--codes", "lots"), "must be auto, a number"),
    "no such file": (lambda tmp_path: ("index", "--catalog", tmp_path / "nothing.csv"), "does not exist"),
    "no catalogue": (lambda tmp_path: ("index",), "--catalog is missing"),
    "codebooks without codes": (index_of("id\n1\n", "--codebooks", "x.npy"), "restd index import TABLE"),
    "shop too small": (lambda tmp_path: ("data", "shop", "--items", 3), "500"),
    "unknown locale": (lambda tmp_path: ("data", "shop", "--locale", "fr"), "us, es"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_end_in_one_sentence(run, tmp_path, mistake):
    arguments, message = MISTAKES[mistake]
    code, out, err = run(*arguments(tmp_path), "--out", tmp_path / "out")
    assert code == 2, (out, err)
    errors = [line for line in err.splitlines() if line.startswith("restd:")]
    assert len(errors) == 1
    assert message in errors[0]
    assert "Traceback" not in err
    assert errors[0] == err.splitlines()[-1]


def check_of(judgments):
    def arguments(tmp_path):
        (tmp_path / "set").mkdir()
        (tmp_path / "set" / "items.csv").write_text("id,title\n1,mug\n2,pot\n")
        (tmp_path / "set" / "judgments.csv").write_text(judgments)
        return ("data", "check", tmp_path / "set")

    return arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (check_of("query,item,grade\nmug,1,Z\n"), "unknown grade 'Z'. Expected one of E, S, C, I"),
        (check_of("query,item\nmug,7\n"), "'7' is not in the catalogue"),
        (lambda tmp_path: ("index", "inspect", tmp_path), "is not an artefact"),
        (lambda tmp_path: ("data", "check", tmp_path), "no file named items.*"),
        (lambda tmp_path: ("bench", "vibes"), "Known: index, trie, shop, overhead, teacher"),
    ],
)
def test_mistakes_of_other_commands(run, tmp_path, arguments, message):
    code, _, err = run(*arguments(tmp_path))
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_an_output_folder_that_holds_something_else(run, items_csv, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    for arguments in (("index", "--catalog", items_csv), ("data", "shop", "--items", 500)):
        code, _, err = run(*arguments, "--out", tmp_path / "out")
        assert code == 2
        assert "choose another" in err.lower()
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


def test_a_full_disk_keeps_the_old_index(run, indexed, items_csv, monkeypatch):
    before = SidIndex.load(indexed).sids

    def full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store, "fsync_file", full)
    code, _, err = run(
        "index", "--catalog", items_csv, "--encoder", "tfidf-svd", "--out", indexed, "--policy", "suffix"
    )
    assert code == 2
    assert "The disk is full" in err
    monkeypatch.undo()
    assert np.array_equal(SidIndex.load(indexed).sids, before)


def test_damage_is_told(run, indexed):
    path = indexed / "index" / "items.parquet"
    path.write_bytes(path.read_bytes()[:-3])
    code, _, err = run("index", "inspect", indexed)
    assert code == 2
    assert "items.parquet has" in err


def test_a_collapse_is_told(run, items_csv, tmp_path):
    # an encoder that shrinks its input far below random codewords, and no cure: all items take the smallest codeword
    settings = ("epochs=6", "kmeans_init=false", "reset_dead=false", "learning_rate=1e-9", f"hidden={[16] * 12}")
    sets = [part for setting in settings for part in ("--set", f"rqvae.{setting}")]
    arguments = ("--catalog", items_csv, "--encoder", "tfidf-svd", "--quantizer", "rqvae", *sets)
    code, _, err = run("index", *arguments, "--out", tmp_path / "idx")
    assert code == 0
    assert "has collapsed" in err
    assert "learning_rate" in err


def test_help_is_quick_and_needs_no_torch():
    script = "import sys; sys.argv = ['restd', '--help']\ntry:\n import restd.cli; restd.cli.main()\n"
    script += "except SystemExit: pass\nassert 'torch' not in sys.modules and 'faiss' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for command in ("data", "index", "train", "search", "bench", "--version", "--show-completion"):
        assert command in done.stdout


def test_public_names():
    import restd

    for name in restd.__all__:
        assert getattr(restd, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = restd.nothing


def test_the_same_command_after_an_add_does_not_undo_it(run, indexed, items_csv, tmp_path):
    (tmp_path / "new.csv").write_text("id,title,description\nn1,red steel mug,small\n")
    assert run("index", "add", "--index", indexed, "--catalog", tmp_path / "new.csv")[0] == 0
    code, _, err = run("index", "--catalog", items_csv, "--encoder", "tfidf-svd", "--out", indexed)
    assert code == 2
    assert "would undo that" in err
    assert len(SidIndex.load(indexed)) == 301
    assert not (indexed / "quality.json").exists(), "the report of the old index is stale"


def test_new_items_are_read_as_the_old_ones_were(run, tmp_path):
    words = ["red", "blue", "oak", "mug", "desk", "lamp", "tall", "round"]
    lines = [f"{n},{words[n % 8]} {words[n // 8 % 8]} {words[n // 64 % 8]},noise{n}" for n in range(200)]
    (tmp_path / "a.csv").write_text("asin,name,junk\n" + "\n".join(lines) + "\n")
    (tmp_path / "b.csv").write_text("asin,name,junk\nx,red blue oak,other noise\n")
    arguments = ("--map", "id=asin", "--map", "title=name", "--text", "name", "--encoder", "tfidf-svd")
    assert run("index", "--catalog", tmp_path / "a.csv", *arguments, "--out", tmp_path / "i")[0] == 0
    code, out, err = run("index", "add", "--index", tmp_path / "i", "--catalog", tmp_path / "b.csv")
    assert code == 0, err
    assert "still fit" in out


def test_embeddings_of_another_index_are_refused_by_add(run, indexed, tmp_path):
    import shutil

    (tmp_path / "other.csv").write_text("id,title\n" + "".join(f"{n},thing {n} of {n % 7}\n" for n in range(80)))
    assert run("index", "--catalog", tmp_path / "other.csv", "--encoder", "tfidf-svd", "--out", tmp_path / "o")[0] == 0
    shutil.rmtree(indexed / "embeddings")
    (tmp_path / "new.csv").write_text("id,title,description\nn1,red steel mug,small\n")
    code, _, err = run("index", "add", "--index", indexed, "--catalog", tmp_path / "new.csv")
    assert code == 2
    assert "no embeddings beside the index" in err
    shutil.copytree(tmp_path / "o" / "embeddings", indexed / "embeddings")
    code, _, err = run("index", "add", "--index", indexed, "--catalog", tmp_path / "new.csv")
    assert code == 2
    assert "was made with" in err


def test_a_damaged_cache_says_what_to_delete_and_does_not_hide_the_index(run, indexed, items_csv):
    shard = next((indexed / "embeddings").glob("shard-*"))
    shard.write_bytes(shard.read_bytes()[:-1])
    code, out, err = run("index", "inspect", indexed)
    assert code == 0
    assert "300 items" in out
    code, _, err = run("index", "--catalog", items_csv, "--encoder", "tfidf-svd", "--out", indexed)
    assert code == 2
    assert "It only saves work: delete" in err


def test_places_that_cannot_be_written(run, items_csv, indexed, tmp_path):
    (tmp_path / "file").write_text("x")
    for arguments in (
        ("index", "--catalog", items_csv, "--encoder", "tfidf-svd", "--out", tmp_path / "file" / "x"),
        ("index", "inspect", indexed, "--png", tmp_path / "nowhere" / "x.png"),
        ("index", "inspect", indexed, "--png", tmp_path / "x.foo"),
        ("index", "remove", "--index", indexed, "--ids", ","),
    ):
        code, _, err = run(*arguments)
        assert code == 2, err
        assert err.splitlines()[-1].startswith("restd:")
        assert "Traceback" not in err


@pytest.mark.parametrize("mistake", [("index", "--levels", "many"), ("frobnicate",), ("data", "shop")])
def test_wrong_usage_ends_with_code_2(run, mistake):
    code, _, err = run(*mistake)
    assert code == 2
    assert "Traceback" not in err


def test_interruption(run, monkeypatch, tmp_path):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("restd.data.write_dataset", interrupted)
    code, _, err = run("data", "shop", "--items", 500, "--out", tmp_path / "s")
    assert code == 130
    assert "interrupted" in err


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"id": ["a", "b"], "sid": [[0.5], [1.0]]}), "not a whole number"),
        (pa.table({"id": ["a", "b"], "sid": ["-1", "-2"]}), "codes from -2"),
        (pa.table({"id": ["a", None], "sid": [[0], [1]]}), "empty id"),
        (pa.table({"id": pa.array([], pa.string()), "sid": pa.array([], pa.list_(pa.int64()))}), "has no items"),
    ],
)
def test_bad_codes(run, tmp_path, table, message):
    pq.write_table(table, tmp_path / "codes.parquet")
    code, _, err = run("index", "import", tmp_path / "codes.parquet", "--out", tmp_path / "i")
    assert code == 2
    assert message in err


def test_import_refuses_what_it_would_ignore_and_round_trips(run, indexed, tmp_path):
    codes = indexed / "index" / "items.parquet"
    pq.write_table(pq.read_table(codes).drop_columns("raw"), tmp_path / "codes.parquet")
    books = indexed / "index" / "codebooks.safetensors"
    arguments = (tmp_path / "codes.parquet", "--codebooks", books)
    code, _, err = run("index", "--codes", *arguments, "--levels", 7, "--out", tmp_path / "i")
    assert code == 2
    assert "--levels has no effect" in err
    assert run("index", "import", *arguments, "--out", tmp_path / "i")[0] == 0
    assert SidIndex.load(tmp_path / "i").layout() == SidIndex.load(indexed).layout()
    code, _, err = run("index", "import", *arguments, "--out", indexed)
    assert code == 2
    assert "another --out" in err


def test_benchmarks_take_their_own_options_only(run):
    code, _, err = run("bench", "trie", "--items", 5000)
    assert code == 2
    assert "no option --items" in err
    code, _, err = run("bench", "index", "--items", -5)
    assert code == 2
    assert "at least 1,000" in err
