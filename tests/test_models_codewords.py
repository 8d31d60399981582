"""Output embeddings of the compact decoder that start from the index's codewords."""

import pytest
import torch

from restd.data import Catalog
from restd.errors import ConfigError
from restd.index import IndexConfig, SidIndex, build_index, import_index, with_shape
from restd.models import CompactConfig, ModelConfig, make_backbone, open_model
from restd.models.compact_decoder import fit_width
from restd.models.registry import BuildContext
from tests.training import run, same_weights, weights, write_world

DIM, LEVELS = 8, 3


@pytest.fixture(scope="module", params=["single_substitution", "suffix"])
def world(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("codewords")
    data = write_world(folder / "data")
    config = IndexConfig(encoder="tfidf-svd", policy=request.param)
    build_index(Catalog(data), folder / "index", with_shape(config, levels=LEVELS, codes=8, dim=DIM, seed=0))
    return data, folder / "index"


def made(folder, **settings):
    index = SidIndex.load(folder)
    config = CompactConfig(**{"width": 32, "heads": 2, "blocks": 1, **settings})
    context = BuildContext(index, seed=0, folder=folder)
    model = make_backbone(ModelConfig("compact", compact=config), context)
    return model.decoder.out.detach(), index.latents_and_codebooks()[1].values, model


def test_they_are_the_codewords_where_widths_are_equal(world):
    out, codewords, _ = made(world[1], width=DIM, codewords=True)
    levels, codes, _ = codewords.shape
    assert torch.equal(out[:levels, :codes], codewords)


@pytest.mark.parametrize("width", [16, 32])
def test_a_wider_decoder_keeps_all_inner_products(world, width):
    out, codewords, _ = made(world[1], width=width, codewords=True)
    levels, codes, _ = codewords.shape
    points, mapped = codewords.flatten(0, 1), out[:levels, :codes].flatten(0, 1)
    assert torch.allclose(mapped @ mapped.T, points @ points.T, atol=1e-5)


def test_a_narrower_decoder_keeps_as_much_as_any_could(world):
    out, codewords, _ = made(world[1], width=4, codewords=True)
    levels, codes, _ = codewords.shape
    points, mapped = codewords.flatten(0, 1).double(), out[:levels, :codes].flatten(0, 1).double()
    values, vectors = torch.linalg.eigh(points @ points.T)
    best = (vectors[:, -4:] * values[-4:]) @ vectors[:, -4:].T
    assert torch.allclose(mapped @ mapped.T, best, atol=1e-5)
    # fewer points than directions: the rest is empty
    assert torch.equal(fit_width(torch.eye(2, 9)[:, :9], 4, seed=0)[:, 2:].abs().round(), torch.zeros(2, 2))


def test_levels_without_a_codebook_keep_what_was_drawn(world):
    on, codewords, _ = made(world[1], codewords=True)
    off, _, _ = made(world[1])
    levels, codes, _ = codewords.shape
    assert torch.equal(on[levels:], off[levels:])
    assert torch.equal(on[:, codes:], off[:, codes:])
    assert (on[:levels, :codes] != off[:levels, :codes]).any(dim=2).all()


def test_only_the_output_embeddings_differ_and_geometry_may_be_there_too(world):
    _, _, on = made(world[1], codewords=True, geometry=True)
    _, _, off = made(world[1], geometry=True)
    states = off.state_dict()
    differ = {name for name, value in on.state_dict().items() if not torch.equal(value, states[name])}
    assert differ == {"decoder.out"}


def test_it_is_trained_and_saved(world, tmp_path):
    data, index = world
    settings = ("compact.codewords=true", "compact.geometry=true")
    trained = run(index, data, tmp_path / "run", *settings, updates=3)
    assert open_model(tmp_path / "run")[0].config.codewords
    again = run(index, data, tmp_path / "again", *settings, updates=3)
    assert same_weights(trained.folder, again.folder)
    plain = run(index, data, tmp_path / "plain", "compact.geometry=true", updates=3)
    assert not same_weights(trained.folder, plain.folder)
    assert weights(trained.folder).keys() == weights(plain.folder).keys()


def test_a_model_without_it_is_described_as_before(world):
    _, _, off = made(world[1])
    _, _, on = made(world[1], codewords=True)
    assert set(on.describe()["config"]) - set(off.describe()["config"]) == {"codewords"}


def test_an_index_without_codewords_is_refused(tmp_path):
    codes = tmp_path / "codes.csv"
    codes.write_text("id,sid_1,sid_2\n" + "".join(f"{name},{name // 2},{name % 2}\n" for name in range(4)))
    import_index(codes).save(tmp_path / "index")
    with pytest.raises(ConfigError, match=r"residuals|codebooks"):
        made(tmp_path / "index", codewords=True, encoder="minilm")
