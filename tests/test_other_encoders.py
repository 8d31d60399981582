"""Dense search by any sentence encoder, named behind a colon."""

import json
from dataclasses import replace

import numpy as np
import pytest

from restd.artifacts import read_manifest
from restd.encode import RememberedEncoder, SentenceTransformerEncoder, for_role, load_encoder
from restd.errors import ArtifactError, ConfigError, DataError
from restd.evaluate import read_tests
from restd.experiments import Comparison, evaluations
from restd.experiments.study_file import load_study, save_study
from restd.rankers import RankerContext, decoding_of, find_ranker, make_companion, make_ranker
from restd.snapshot import Snapshot
from tests.sentence_models import save_sentence_model
from tests.training import make_index, write_world

QUERIES = ["red steel kettle", "oak desk", "glass"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    data = write_world(folder / "data")
    return data, make_index(data, folder / "index")


@pytest.fixture
def context(world):
    data, home = world
    return RankerContext(Snapshot.load(home, data), data, home)


@pytest.fixture(scope="module", params=["mpnet", "t5", "xlm-r"])
def model(request, tmp_path_factory):
    return save_sentence_model(tmp_path_factory.mktemp(request.param), request.param)


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_every_shape_of_encoder_ranks_by_its_own_cosines(context, model):
    encoder = load_encoder(model)
    expected = unit(encoder.encode(QUERIES)) @ unit(encoder.encode(context.snapshot.items.texts())).T
    rows, scores = make_ranker(f"dense:{model}", context).rank(QUERIES, 10)
    assert np.allclose(np.take_along_axis(expected, rows, axis=1), scores, atol=1e-5)
    assert np.allclose(-np.sort(-expected, axis=1)[:, :10], scores, atol=1e-5)


def test_item_vectors_are_computed_once(context, model, monkeypatch):
    make_ranker(f"dense:{model}", context)
    texts, encode = [], SentenceTransformerEncoder.encode

    def record(self, given):
        texts.extend(given)
        return encode(self, given)

    monkeypatch.setattr(SentenceTransformerEncoder, "encode", record)
    again = make_ranker(f"dense:{model}", replace(context, shared={}))
    assert texts == []
    again.rank(["oak desk"], 3)
    assert texts == ["oak desk"]


def test_the_card_names_the_encoder(context, model):
    card = decoding_of(f"dense:{model}", context)
    assert card["ranker"] == f"dense:{model}"
    assert card["encoder"] == model
    assert card["encoder_identity"]["content"] == load_encoder(model).identity["content"]
    assert decoding_of("dense", context) == {"ranker": "dense", "search": "exact inner product of unit vectors"}


def test_prompts_of_the_models_own_configuration_are_used(context, tmp_path):
    folder = save_sentence_model(tmp_path, "mpnet", prompts={"query": "blue ", "document": ""})
    plain = load_encoder(folder)
    queries, items = for_role(plain, "query"), for_role(plain, "document")
    assert np.allclose(queries.encode(["desk"]), plain.encode(["blue desk"]), atol=1e-6)
    assert np.allclose(items.encode(["desk"]), plain.encode(["desk"]), atol=1e-6)
    assert queries.identity["prompt"] == "blue "
    assert queries.identity["content"] != plain.identity["content"]
    assert items is plain, "an empty prompt changes nothing"
    assert queries.tokens(["desk"], limit=9)[0][0].tolist() == plain.tokens(["blue desk"], limit=9)[0][0].tolist()
    ranked = make_ranker(f"dense:{folder}", context).rank(["steel mug"], 5)
    vectors = unit(plain.encode(context.snapshot.items.texts()))
    assert ranked[0][0].tolist() == np.argsort(-(vectors @ unit(plain.encode(["blue steel mug"]))[0]))[:5].tolist()


def test_a_prompt_of_documents_changes_what_is_kept(context, tmp_path):
    plain = save_sentence_model(tmp_path / "a", "mpnet")
    prompted = save_sentence_model(tmp_path / "b", "mpnet", prompts={"query": "", "document": "oak "})
    vectors = [make_ranker(f"dense:{folder}", context).vectors.reconstruct_n(0, 60) for folder in (plain, prompted)]
    assert not np.allclose(*vectors)


def test_a_fitted_encoder_is_fitted_to_the_items(context):
    rows, _ = make_ranker("dense:tfidf-svd", context).rank(["red steel kettle"], 5)
    assert context.snapshot.ids.to_pylist()[rows[0, 0]] == "red-steel-kettle"


def test_changed_weights_are_another_encoder(context, tmp_path):
    first = save_sentence_model(tmp_path, "mpnet")
    before = decoding_of(f"dense:{first}", context)["encoder_identity"]["content"]
    save_sentence_model(tmp_path, "mpnet", seed=1)
    after = decoding_of(f"dense:{first}", replace(context, shared={}))["encoder_identity"]["content"]
    assert before != after


def test_rows_follow_a_snapshot_without_some_items(context, model):
    fewer = context.snapshot.remove(["red-oak-desk"])
    place = replace(context, snapshot=fewer, shared={})
    rows, _ = make_ranker(f"dense:{model}", place).rank(QUERIES, 59)
    whole, _ = make_ranker(f"dense:{model}", context).rank(QUERIES, 60)
    ids, all_ids = fewer.ids.to_pylist(), context.snapshot.ids.to_pylist()
    for own, every in zip(rows, whole, strict=True):
        assert [ids[row] for row in own] == [all_ids[row] for row in every if all_ids[row] != "red-oak-desk"]


def test_items_that_the_catalogue_lacks_are_a_sentence(context, model):
    vectors = context.encoder().encode(["new oak desk"])
    longer = context.snapshot.add([{"id": "new", "title": "new oak desk"}], vectors)
    with pytest.raises(DataError, match=r"lacks 1 of the 61 items.*from the whole catalogue"):
        make_ranker(f"dense:{model}", replace(context, snapshot=longer, shared={}))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bm25:x", r"'bm25' expects no argument, got 'bm25:x'\. Rankers with an argument: dense:ENCODER, dpr:ENCODER"),
        ("dense:", r"'dense' expects something after the colon of 'dense:'"),
        ("elastic:x", r"Unknown ranker 'elastic'"),
        ("sasrec:x", r"'sasrec' does not search"),
    ],
)
def test_a_name_that_cannot_be_used_is_a_sentence(name, message):
    with pytest.raises(ConfigError, match=message):
        find_ranker(name, "search")


def test_encoders_that_cannot_be_had_are_a_sentence(context, tmp_path):
    with pytest.raises(ConfigError, match=r"Unknown encoder 'minlm'\. Did you mean 'minilm'"):
        make_ranker("dense:minlm", context)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"could not be loaded"):
        make_ranker(f"dense:{tmp_path / 'empty'}", context)
    with pytest.raises(ConfigError, match=r"is the index alone.*pass --out"):
        make_ranker("dense:tfidf-svd", replace(context, home=context.home / "index", shared={}))
    with pytest.raises(ConfigError, match=r"cannot be a part of a hybrid search"):
        make_companion("dense:tfidf-svd", context)


def test_an_index_alone_keeps_them_where_baselines_are_kept(context, tmp_path):
    place = replace(context, home=context.home / "index", trained=tmp_path, shared={})
    make_ranker("dense:tfidf-svd", place)
    (kept,) = (tmp_path / "encoders").glob("tfidf-svd-*")
    assert read_manifest(kept).settings["encoder"]["name"] == "tfidf-svd"


def test_a_remembered_encoder_is_shared_by_one_context(context, model):
    make_ranker(f"dense:{model}", context)
    encoder = replace(context, argument=model).encoder()
    assert isinstance(encoder, RememberedEncoder)
    assert encoder is replace(context, argument=model).encoder()
    assert encoder is not context.encoder()


def test_it_is_a_row_of_an_evaluation(world, command, tmp_path):
    data, home = world
    model = save_sentence_model(tmp_path / "own-encoder", "mpnet")
    words = ("--index", home, "--data", data, "--split", "valid", "--json")
    code, out, err = command("evaluate", "--baseline", f"dense:{model}", *words, "--out", tmp_path / "result")
    assert code == 0, err
    assert json.loads(out)["card"]["decoding"]["encoder"] == model
    code, _, err = command("evaluate", "--baseline", "dense", *words, "--set", "dpr.epochs=1")
    assert code == 2
    assert "[dpr] would have no effect: 'dpr' is not among the rankers to evaluate (dense)" in err
    code, _, err = command("evaluate", "--baseline", "dense", *words, "--set", "bm25.k1=2")
    assert code == 2
    assert "Unknown section [bm25] for rankers. Known: dpr, laser." in err


def test_a_comparison_takes_it_and_refuses_bad_ones(world, tmp_path):
    data, home = world
    made = Comparison(home, data, tmp_path, baselines=("dense:some/model", "dpr"), baseline_settings={"dpr": {}})
    assert made.baselines == ("dense:some/model", "dpr")
    with pytest.raises(ConfigError, match=r"'popularity' expects no argument"):
        Comparison(home, data, tmp_path, baselines=("popularity:x",))
    with pytest.raises(ConfigError, match=r"\[dpr\] has no setting 'epoch'"):
        Comparison(home, data, tmp_path, baselines=("dpr",), baseline_settings={"dpr": {"epoch": 1}})


def test_an_evaluation_is_kept_by_encoder_and_settings(world, tmp_path, monkeypatch):
    data, home = world
    model = save_sentence_model(tmp_path / "own", "mpnet")
    snapshot, made, original = Snapshot.load(home), [], evaluations.make_ranker
    monkeypatch.setattr(evaluations, "make_ranker", lambda name, place: made.append(name) or original(name, place))

    def run(name, **settings):
        study = Comparison(home, data, tmp_path / "study", split="valid", baselines=(name,))
        study = replace(study, baseline_settings={"dpr": settings} if settings else {})
        tests = read_tests(data, snapshot, split="valid")
        evaluations.evaluate_baseline(study, name, tests, snapshot, notify=lambda sentence: None)
        save_study(study)
        assert load_study(study.out).baseline_settings == study.baseline_settings

    name = f"dense:{model}"
    run(name)
    run(name)
    assert made == [name]
    save_sentence_model(tmp_path / "own", "mpnet", seed=1)
    run(name)
    assert made == [name, name], "its weights have changed"
    run("dpr", epochs=1)
    run("dpr", epochs=1)
    run("dpr", epochs=2)
    assert made[2:] == ["dpr", "dpr"]
    assert {path.name.split("-")[0] for path in (tmp_path / "study" / "evaluations").iterdir()} == {"dense", "dpr"}


def test_a_broken_folder_of_embeddings_is_named(context, model):
    make_ranker(f"dense:{model}", context)
    folder = replace(context, argument=model).other_encoder().folder
    shard = next(folder.glob("shard-*"))
    whole = shard.read_bytes()
    shard.write_bytes(b"broken")
    try:
        with pytest.raises(ArtifactError, match=r"delete"):
            make_ranker(f"dense:{model}", replace(context, shared={}))
    finally:
        shard.write_bytes(whole)
