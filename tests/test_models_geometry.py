"""The index's geometry inside the compact decoder: it starts as a residual search of the query, and is trained on."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from restd.data import Catalog
from restd.encode import load_encoder
from restd.errors import ConfigError
from restd.index import IndexConfig, SidIndex, build_index, with_shape
from restd.models import CompactConfig, ModelConfig, make_backbone, open_model
from restd.models.compact_geometry import find_pooling
from restd.models.prefix_stepper import PrefixStepper
from restd.models.registry import BuildContext
from restd.quantize import AlignedQuantizer, RqVaeConfig, query_latents
from restd.search import Retriever
from restd.snapshot import Snapshot
from tests.models import memory_of, some_sids, stored, tiny_compact, tiny_sentence_model
from tests.test_models_steppers import along, assert_close, beams_of, expected, lively, random_sids
from tests.training import plain_beam, run, weights, write_world

QUERIES = ["red kettle", "a lamp of glass", "oak", "black steel mug"]
ON = "compact.geometry=true"


def index_of(data, out, *, aligned=True, **settings):
    config = with_shape(IndexConfig(rqvae=RqVaeConfig(epochs=2), **settings), levels=3, codes=8, dim=6, seed=0)
    build_index(Catalog(data), out, config, judgments=data if aligned else None)
    return out


@pytest.fixture(scope="module", params=["single_substitution", "suffix"])
def world(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("geometry")
    data = write_world(folder / "data")
    return data, index_of(data, folder / "index", encoder="tfidf-svd", policy=request.param)


def made(folder, **settings):
    index = SidIndex.load(folder)
    config = CompactConfig(**{"width": 32, "heads": 2, "blocks": 1, "geometry": True, **settings})
    context = BuildContext(index, seed=0, folder=folder)
    return index, make_backbone(ModelConfig("compact", compact=config), context).eval()


def silenced(model):
    """Without scores of the decoder's own."""
    torch.nn.init.zeros_(model.decoder.out)
    return model


def latents_of(model, index, texts=QUERIES):
    return torch.from_numpy(query_latents(index.quantizer, model.sentence_encoder.encode(texts))).float()


def test_a_new_model_knows_the_latent_of_a_query(world):
    index, model = made(world[1])
    assert isinstance(index.quantizer, AlignedQuantizer)
    found = memory_of(model, QUERIES).latent * model.geometry.spread
    assert torch.allclose(found, latents_of(model, index), atol=1e-3)
    assert not torch.allclose(found[0], found[1], atol=0.1)


@pytest.mark.parametrize(("quantizer", "aligned"), [("kmeans", False), ("rqvae", False), ("rqvae", True)])
def test_other_quantisers_and_token_states(quantizer, aligned, tmp_path):
    data, encoder = write_world(tmp_path / "data"), tiny_sentence_model(tmp_path)
    out = index_of(data, tmp_path / "index", encoder=encoder, quantizer=quantizer, aligned=aligned)
    index, model = made(out)
    assert isinstance(index.quantizer, AlignedQuantizer) == aligned
    found = memory_of(model, QUERIES).latent * model.geometry.spread
    wanted = latents_of(model, index)
    assert torch.allclose(found, wanted, atol=4e-3 * float(wanted.abs().max()))
    assert float(wanted.std(dim=0).max()) > 0.05 * float(wanted.abs().max())


def test_poolings_that_cannot_be_reproduced(sentence_encoder, tmp_path):
    assert find_pooling(sentence_encoder, limit=16) == "mean"
    with pytest.raises(ConfigError, match="is neither"):
        find_pooling(load_encoder(tiny_sentence_model(tmp_path, dense=5), device="cpu"), limit=16)


def residual_search(index, latents, scales, *, width, k):
    """Beam search by hand over the stored SIDs: codes by the distance of their codewords to what is left."""
    books = [index.codebooks.level(level) for level in range(index.codebooks.levels)]
    row_of = {tuple(sid): row for row, sid in enumerate(index.sids.tolist())}
    found = []
    for latent in latents:
        beams = [((), 0.0, latent)]
        for level, size in enumerate(index.sizes):
            longer = []
            for prefix, score, left in beams:
                scores = torch.zeros(size)
                if level < len(books):
                    scores = -scales[level] * (left - books[level]).square().sum(-1)
                scores = scores.log_softmax(-1).tolist()
                for code in {sid[level] for sid in row_of if sid[:level] == prefix}:
                    rest = left - books[level][code] if level < len(books) else left
                    longer.append(((*prefix, code), score + scores[code], rest))
            beams = sorted(longer, key=lambda beam: (-beam[1], beam[0]))[:width]
        found.append([row_of[prefix] for prefix, _, _ in beams[:k]])
    return found


@pytest.mark.parametrize("width", [1, 5, 60])
def test_a_new_model_is_a_residual_search(world, width):
    index, model = made(world[1])
    silenced(model)
    scales = (model.geometry.log_scale.exp() / model.geometry.spread**2).tolist()
    latents = memory_of(model, QUERIES).latent.detach() * model.geometry.spread
    wanted = residual_search(index, latents, scales, width=width, k=5)
    assert plain_beam(model, index, QUERIES, width=width, k=5) == wanted
    hits = Retriever(model, Snapshot.load(world[1])).search(QUERIES, min(width, 5), beam=width)
    assert [[int(index.table.rows([hit.item])[0]) for hit in row] for row in hits] == wanted


@pytest.mark.parametrize("steps", [0, 3])
def test_steps_are_teacher_forcing(world, steps):
    index, model = made(world[1], steps=steps)
    lively(model)
    with torch.no_grad():
        model.geometry.log_scale += torch.linspace(0, 1, len(index.sizes))
    memory = memory_of(model, QUERIES)
    sids = random_sids(rows=4, sizes=index.sizes)
    wanted = expected(model, *beams_of(memory, sids))
    for stepper in (model.stepper(), PrefixStepper(model)):
        assert_close(along(stepper, memory, sids).flatten(0, 1), wanted)
        parents, codes = torch.tensor([[2, 0, 2]] * 4), torch.zeros(4, 3, dtype=torch.int64)
        _, cache = stepper.step(stepper.start(memory)[1], torch.zeros(4, 3, dtype=torch.int64), sids[:, :3, 0])
        prefixes = torch.cat([sids[:, [2, 0, 2], :1], codes[..., None]], dim=-1)
        found, _ = stepper.step(cache, parents, codes)
        assert_close(found.flatten(0, 1), expected(model, *beams_of(memory, prefixes))[:, 2])
    output = model.states(memory, sids[:, 0])
    assert output.states.shape[-1] == model.width == 38
    assert torch.allclose(model.stepper().start(memory)[1].first, output.states[:, :1], atol=1e-4)
    if steps:
        assert torch.equal(output.latents[:, -1], output.states[:, 0])


def test_levels_without_a_codebook_get_nothing(world):
    index, model = made(world[1])
    silenced(model)
    states = model.states(memory_of(model, QUERIES), some_sids(4, index.sizes)).states
    found = model.logits(states)
    for level, size in enumerate(index.sizes):
        assert bool((found[:, level, :size] == 0).all()) == (level >= index.codebooks.levels)


def test_without_it_nothing_changes(world):
    index, model = made(world[1], geometry=False)
    plain = tiny_compact(index.sizes, encoder=model.sentence_encoder, blocks=1).state_dict()
    own = model.state_dict()
    assert own.keys() == plain.keys()
    assert all(torch.equal(own[name], plain[name]) for name in own)
    assert memory_of(model).latent is None
    assert "geometry" not in model.describe()
    assert model.rates.keys() == {"encoder."}
    _, other = made(world[1])
    assert all(torch.equal(own[name], other.state_dict()[name]) for name in own)


def test_it_is_trained_saved_and_searched(world, tmp_path):
    data, index = world
    run(index, data, tmp_path / "run", ON, objective="restd", updates=12)
    model, _ = open_model(tmp_path / "run")
    _, fresh = made(index)
    before, after = fresh.state_dict(), model.state_dict()
    for name in ("geometry.log_scale", "geometry.project.stages.0.0.weight", "decoder.out"):
        assert not torch.equal(before[name], after[name])
    for name in ("geometry.codewords", "geometry.spread"):
        assert torch.equal(before[name], after[name])
    heads = weights(tmp_path / "run" / "heads")
    assert heads["heads.safetensors:inner"].shape[1] == model.width
    retriever = Retriever.load(tmp_path / "run")
    assert len(retriever.search("steel kettle", 3)) == 3
    again = stored(model, tmp_path / "again")
    assert torch.equal(
        again.states(memory_of(again), some_sids(4, model.sizes)).states,
        model.eval().states(memory_of(model), some_sids(4, model.sizes)).states,
    )


def test_an_index_of_another_encoder_is_refused(world, tmp_path):
    with pytest.raises(ConfigError, match="made with 'tfidf-svd' and queries are read by"):
        made(world[1], encoder=tiny_sentence_model(tmp_path))


def test_where_it_cannot_be_had_auto_leaves_it_out_and_says_why(world, tmp_path, caplog):
    _, model = made(world[1], geometry="auto")
    assert model.geometry is not None
    assert model.config.geometry is True
    _, model = made(world[1], geometry="auto", encoder=tiny_sentence_model(tmp_path))
    assert model.geometry is None
    assert model.config.geometry is False
    assert "starts without the geometry of the index" in caplog.text
    assert "queries are read by" in caplog.text


def test_settings_and_geometry_must_agree():
    with pytest.raises(ConfigError, match=r"compact.geometry is True, but the geometry of an index was not given"):
        tiny_compact(geometry=True)
    with pytest.raises(ConfigError, match="geometry_rate must be at least 0, got -1"):
        tiny_compact(geometry_rate=-1.0)


def test_it_stays_where_the_model_is(world):
    _, model = made(world[1])
    with FakeTensorMode(allow_non_fake_inputs=True):
        there = torch.device("lazy:0")
        states = torch.empty(3, 2, model.geometry.shape.stages[0][1][0], device=there)
        model.geometry.to(there)
        assert model.geometry(states, torch.ones(3, 2, dtype=torch.bool, device=there)).device.type == "lazy"
