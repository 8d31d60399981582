"""An encoder joins by registration: one file, one entry."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from restd.data import Catalog
from restd.encode import ENCODERS, EncoderEntry, FittedEncoder, encode_catalog, fit_encoder, is_fitted, load_encoder
from restd.errors import ConfigError
from restd.index import IndexConfig, build_index, with_shape
from tests.models import tiny_sentence_model


class Lengths:
    """Vectors of a text's length and of one letter's count, scaled by the longest text it was fitted to."""

    dim = 2

    def __init__(self, longest):
        self.longest = longest

    @property
    def identity(self):
        return {"name": "lengths", "dim": 2, "content": str(self.longest)}

    def encode(self, texts):
        return np.array([[len(text) / self.longest, text.count("e")] for text in texts], np.float32)

    def state(self):
        return {"longest": np.array([self.longest])}, pa.table({"word": ["e"]})


@pytest.fixture
def registered():
    def register(**parts):
        ENCODERS.add(EncoderEntry("lengths", "Counts letters.", **parts))

    yield register
    ENCODERS.remove("lengths")


def test_a_loaded_encoder_is_one_registration(items_csv, tmp_path, registered):
    registered(load=lambda device: Lengths(10))
    config = with_shape(IndexConfig(encoder="lengths"), levels=3, codes=8, dim=2)
    index = build_index(Catalog(items_csv), tmp_path / "out", config)
    assert index.origin["encoder"] == Lengths(10).identity
    assert isinstance(load_encoder("lengths"), Lengths)


def test_a_fitted_encoder_is_one_registration(items_csv, tmp_path, registered):
    registered(
        fit=lambda texts, seed: Lengths(max(map(len, texts))),
        restore=lambda tensors, table: Lengths(int(tensors["longest"][0])),
    )
    assert is_fitted("lengths")
    assert isinstance(fit_encoder("lengths", ["ab"]), FittedEncoder)
    embeddings = encode_catalog(Catalog(items_csv), tmp_path / "e", encoder="lengths")
    encoder = embeddings.encoder()
    assert isinstance(encoder, Lengths)
    assert encoder.identity == embeddings.settings["encoder"]
    assert np.isclose(embeddings.sample(10**6, seed=0)[:, 0].max(), 1.0)
    with pytest.raises(ConfigError, match="'lengths' is fitted to a catalogue and cannot be loaded alone"):
        load_encoder("lengths")


def test_an_entry_is_loaded_or_fitted():
    for parts in ({}, {"fit": lambda texts, seed: Lengths(1)}, {"load": lambda device: Lengths(1), "fit": print}):
        with pytest.raises(ConfigError, match="needs either `load`, or `fit` and `restore`"):
            EncoderEntry("lengths", "Counts letters.", **parts)


def test_ours_are_registered():
    assert set(ENCODERS) >= {"minilm", "use-multilingual", "tfidf-svd"}
    assert [name for name in ENCODERS if is_fitted(name)] == ["tfidf-svd"]
    with pytest.raises(ConfigError, match="'minilm' needs no fitting"):
        fit_encoder("minilm", ["red mug"])


def test_a_name_that_is_neither_registered_nor_a_model_is_refused(tmp_path, monkeypatch):
    message = r"Unknown encoder 'mini-lm'\. Did you mean 'minilm'\? Known: .*hub id \(owner/model\) or its folder"
    with pytest.raises(ConfigError, match=message):
        load_encoder("mini-lm")
    tiny_sentence_model(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert load_encoder("model", device="cpu").identity["name"] == "model", "a folder needs no slash"


def test_the_documents_list_every_encoder():
    page = (Path(__file__).parent.parent / "docs" / "data.md").read_text(encoding="utf-8")
    table = page[page.index("## Encoders") :]
    assert dict(re.findall(r"^\| `([\w-]+)` \| (.*) \|$", table, re.MULTILINE)) == ENCODERS.describe()
