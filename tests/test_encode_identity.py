"""Embeddings belong to one encoder: weights, tokenizer, pooling and all."""

import json
import logging
import shutil
from typing import ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from restd.data import Catalog
from restd.encode import (
    ENCODERS,
    Embeddings,
    EncoderEntry,
    SentenceTransformerEncoder,
    TfidfSvdEncoder,
    encode_catalog,
    fit_tfidf_svd,
    load_encoder,
    same_encoder,
)
from restd.encode.encoders import load_recorded
from restd.encode.identity import hash_files, hash_weights
from restd.errors import ArtifactError, DataError
from tests.models import TEXTS, tiny_sentence_model


def edit_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change_last_weight(model):
    path = model / "model.safetensors"
    weights = load_file(path)
    weights["embeddings.word_embeddings.weight"][-1, -1] += 1.0
    save_file(weights, path, metadata={"format": "pt"})


def change_pooling(model):
    edit_json(model / "1_Pooling" / "config.json", pooling_mode="cls")


def add_normalisation(model):
    modules = json.loads((model / "modules.json").read_text())
    kind = modules[1]["type"].replace("Pooling", "Normalize").replace("pooling", "normalize")
    modules.append({"idx": 2, "name": "2", "path": "2_Normalize", "type": kind})
    (model / "modules.json").write_text(json.dumps(modules))
    (model / "2_Normalize").mkdir()


def change_tokenizer(model):
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["red"], vocabulary["blue"] = vocabulary["blue"], vocabulary["red"]
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))


def change_prompt(model):
    edit_json(model / "config_sentence_transformers.json", prompts={"task": "red "}, default_prompt_name="task")


CHANGES = [change_last_weight, change_pooling, add_normalisation, change_tokenizer, change_prompt]


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_decides_the_vectors_is_in_the_identity(tmp_path, change):
    from pathlib import Path

    model = Path(tiny_sentence_model(tmp_path))
    before = load_encoder(str(model), device="cpu")
    again = load_encoder(str(model), device="cpu")
    assert before.identity == again.identity
    change(model)
    after = load_encoder(str(model), device="cpu")
    assert not np.allclose(before.encode(TEXTS[:8]), after.encode(TEXTS[:8]), atol=1e-4), "the change changes nothing"
    assert before.identity != after.identity


def test_where_a_model_lies_does_not_change_its_content(tmp_path):
    model = tiny_sentence_model(tmp_path)
    shutil.copytree(model, tmp_path / "copy")
    one, other = (SentenceTransformerEncoder(str(path), device="cpu") for path in (model, tmp_path / "copy"))
    assert one.identity["content"] == other.identity["content"]
    assert not same_encoder(one, other.identity), "it is loaded by its name, which is another"


def test_the_identity_is_that_of_the_weights_before_training(tmp_path):
    encoder = load_encoder(tiny_sentence_model(tmp_path), device="cpu")
    identity = encoder.identity
    with torch.no_grad():
        for weight in encoder.module.parameters():
            weight += 1.0
    assert encoder.identity == identity


def test_every_byte_of_the_weights_counts():
    weights = {"a": torch.randn(3, 100), "b": torch.zeros((), dtype=torch.bfloat16), "c": torch.zeros(0)}
    for name in ("a", "b"):
        changed = {key: value.clone() for key, value in weights.items()}
        changed[name].view(-1)[-1] += 1
        assert hash_weights(changed) != hash_weights(weights)
    assert hash_weights({**weights, "a": weights["a"].reshape(100, 3)}) != hash_weights(weights)
    assert hash_weights({**weights, "a": weights["a"].t().contiguous().t()}) == hash_weights(weights)


def test_files_are_told_apart_by_name_and_content(tmp_path):
    (tmp_path / "a").write_text("x")
    (tmp_path / "b").write_text("y")
    both = hash_files([tmp_path / "a", tmp_path / "b"])
    assert both == hash_files([tmp_path / "b", tmp_path / "a"])
    (tmp_path / "b").write_text("z")
    assert hash_files([tmp_path / "a", tmp_path / "b"]) != both


def test_the_wheel_of_use_multilingual_is_hashed():
    identity = load_encoder("use-multilingual").identity
    assert (identity["name"], identity["dim"], len(identity["content"])) == ("use-multilingual", 512, 64)


def test_all_of_a_fitted_encoder_is_in_its_identity():
    encoder = fit_tfidf_svd(TEXTS, dim=4)
    tensors, vocabulary = encoder.state()
    assert TfidfSvdEncoder.from_state(tensors, vocabulary).identity == encoder.identity
    heavier = {**tensors, "idf": tensors["idf"] * np.linspace(1, 2, len(tensors["idf"]), dtype=np.float32)}
    assert TfidfSvdEncoder.from_state(heavier, vocabulary).identity != encoder.identity
    turned = {**tensors, "components": tensors["components"][:, ::-1]}
    assert TfidfSvdEncoder.from_state(turned, vocabulary).identity != encoder.identity


@pytest.mark.parametrize("change", CHANGES[:2])
def test_embeddings_of_an_encoder_that_changed_are_made_again(items_csv, tmp_path, change):
    from pathlib import Path

    model = Path(tiny_sentence_model(tmp_path))
    catalog = Catalog(items_csv)
    first = encode_catalog(catalog, tmp_path / "e", encoder=str(model), device="cpu")
    kept = encode_catalog(catalog, tmp_path / "e", encoder=str(model), device="cpu")
    assert kept.artifact.manifest == first.artifact.manifest
    vectors = first.sample(10**6, seed=0)
    change(model)
    with pytest.raises(ArtifactError, match=r"was made with the encoder .*Install the original, or encode"):
        first.encoder()
    second = encode_catalog(catalog, tmp_path / "e", encoder=str(model), device="cpu")
    assert not np.allclose(second.sample(10**6, seed=0), vectors, atol=1e-4)
    assert second.encoder(device="cpu").identity == second.settings["encoder"]


class Fixed:
    """An encoder whose identity tests decide."""

    dim = 2
    identity: ClassVar = {"name": "fixed", "dim": 2, "version": "1", "content": "c" * 64}

    def encode(self, texts):
        return np.ones((len(texts), 2), np.float32)


@pytest.fixture
def fixed(monkeypatch):
    monkeypatch.setattr(Fixed, "identity", dict(Fixed.identity))
    ENCODERS.add(EncoderEntry("fixed", "For tests.", load=lambda device: Fixed()))
    yield Fixed
    ENCODERS.remove("fixed")


def test_an_identity_without_content_is_accepted_by_its_name(caplog):
    earlier = {"name": "fixed", "dim": 2, "version": "1", "weights": "first values only"}
    with caplog.at_level(logging.WARNING):
        assert same_encoder(Fixed(), earlier)
    assert "its weights are not compared" in caplog.text
    for change in ({"name": "other"}, {"dim": 3}, {"version": "2"}, {"max_tokens": 32}):
        assert not same_encoder(Fixed(), {**earlier, **change})
    assert same_encoder(Fixed(), Fixed.identity)
    assert not same_encoder(Fixed(), {**Fixed.identity, "content": "d" * 64})


def test_embeddings_of_an_earlier_version_are_kept(items_csv, tmp_path, fixed, monkeypatch):
    monkeypatch.setattr(fixed, "identity", {"name": "fixed", "dim": 2, "version": "1", "weights": "old"})
    made = encode_catalog(Catalog(items_csv), tmp_path / "e", encoder="fixed")
    monkeypatch.setattr(fixed, "identity", {"name": "fixed", "dim": 2, "version": "1", "content": "c" * 64})
    again = encode_catalog(Catalog(items_csv), tmp_path / "e", encoder="fixed")
    assert again.artifact.manifest == made.artifact.manifest
    assert isinstance(Embeddings.open(tmp_path / "e").encoder(), fixed)


def test_embeddings_whose_encoder_is_missing_are_used_as_they_are(items_csv, tmp_path, fixed, caplog):
    made = encode_catalog(Catalog(items_csv), tmp_path / "e", encoder="fixed")
    ENCODERS.remove("fixed")
    with caplog.at_level(logging.WARNING):
        again = encode_catalog(Catalog(items_csv), tmp_path / "e", encoder="fixed")
    assert again.artifact.manifest == made.artifact.manifest
    assert "whether its encoder has changed is unknown. Unknown encoder 'fixed'" in caplog.text


def test_a_recorded_hub_id_may_lack_its_owner(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="The encoder 'all-nothing-v2' could not be loaded"):
        load_recorded({"name": "all-nothing-v2", "dim": 3, "max_tokens": 16, "weights": "old"})
