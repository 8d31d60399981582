"""CaLIR: latent steps, category heads and routing."""

import numpy as np
import pyarrow as pa
import pytest
import torch

from restd.errors import ConfigError
from restd.models import (
    Backbone,
    CachedRoutes,
    CalirBackbone,
    CalirConfig,
    Categories,
    CategoryHeads,
    route_texts,
    routing,
)
from tests.models import PATHS, QUERIES, TEXTS, memory_of, scores, some_sids, tiny_compact, tiny_t5

BODIES = {"t5": tiny_t5, "compact": tiny_compact}


def calir(body="t5", *, depth=3, seed=0, **settings):
    categories = Categories.of_paths(PATHS, depth=depth)
    config = CalirConfig(body=body, depth=depth, branching=(4,) * depth, **settings)
    return CalirBackbone(BODIES[body](steps=depth), categories, config, seed=seed).eval()


@pytest.fixture(params=list(BODIES))
def body(request):
    return request.param


def test_it_is_a_backbone(body):
    model = calir(body)
    assert isinstance(model, Backbone)
    assert (model.sizes, model.width) == (model.body.sizes, 32)
    assert set(model.rates) == ({"body.encoder."} if body == "compact" else set())
    sids = some_sids()
    output, plain = (held.states(memory_of(held), sids) for held in (model, model.body))
    assert torch.equal(model.sid_loss(output, sids), model.body.sid_loss(plain, sids))


def test_one_latent_step_is_the_plain_body(body):
    """Methods section 6, no. 16."""
    plain, one, two = BODIES[body](), calir(body, depth=1), calir(body, depth=2)
    one.body.load_state_dict(plain.state_dict())
    assert torch.equal(scores(one), scores(plain))
    sids = some_sids()
    output, without = (model.states(memory_of(model), sids) for model in (one, plain))
    assert torch.equal(output.states, without.states)
    assert torch.equal(one.sid_loss(output, sids), plain.sid_loss(without, sids))
    assert without.latents is None
    assert not torch.allclose(scores(two), scores(plain), atol=1e-3)


def test_the_last_latent_state_predicts_the_first_code(body):
    model = calir(body)
    output = model.states(memory_of(model), some_sids())
    assert output.latents.shape == (len(QUERIES), 3, 32)
    assert torch.equal(output.latents[:, -1], output.states[:, 0])
    for step in range(2):
        assert not torch.allclose(output.latents[:, step], output.states[:, 0], atol=1e-2)


@torch.no_grad()
def without_cache(model, memory, sids, *, steps):
    """States of a T5's positions from calls that see everything so far and keep nothing."""
    embed = model.model.get_input_embeddings()
    inputs = embed(torch.full((len(sids), 1), model.model.config.decoder_start_token_id))

    def decode(inputs):
        mask = memory.mask.long()
        given = {"encoder_hidden_states": memory.states, "encoder_attention_mask": mask, "use_cache": False}
        return model.model.decoder(inputs_embeds=inputs, **given).last_hidden_state

    for _ in range(steps - 1):
        inputs = torch.cat([inputs, decode(inputs)[:, -1:]], dim=1)
    codes = torch.stack([model.tokens[level][sids[:, level]] for level in range(3)], dim=1)
    return decode(torch.cat([inputs, embed(codes)], dim=1))


def test_the_latent_loop_is_what_no_cache_would_give():
    model = tiny_t5(steps=3)
    memory, sids = memory_of(model), some_sids()
    output = model.states(memory, sids)
    whole = without_cache(model, memory, sids, steps=3)
    assert torch.allclose(output.latents, whole[:, :3], atol=1e-5)
    assert torch.allclose(output.states, whole[:, 2:5], atol=1e-5)
    assert torch.allclose(output.ending, whole[:, 5], atol=1e-5)
    fewer = without_cache(model, memory, sids, steps=2)
    assert not torch.allclose(output.states, fewer[:, 1:4], atol=1e-2)


def test_gradients_go_back_through_every_latent_step(body):
    model = calir(body)
    model.body.requires_grad_(False)
    start = memory_of(model)
    start.states.requires_grad_()
    latents = model.states(start, some_sids()).latents
    for step in range(3):
        (found,) = torch.autograd.grad(latents[:, step].square().sum(), start.states, retain_graph=True)
        assert found.abs().sum() > 0
    model.body.requires_grad_(True)
    model.heads.scores(model.heads.embed(model.states(memory_of(model), some_sids()).latents))[0].sum().backward()
    assert all(parameter.grad is None for parameter in model.heads.classify[2].parameters())
    assert sum(parameter.grad is not None for parameter in model.body.parameters()) > 10


def test_heads_have_a_prototype_for_every_category():
    before = torch.get_rng_state()
    heads, same, other = (CategoryHeads(8, (2, 5), dropout=0.1, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    assert [tuple(held.shape) for held in heads.prototypes()] == [(2, 8), (5, 8)]
    assert all(held is layer.weight for held, layer in zip(heads.prototypes(), heads.classify, strict=True))
    assert all(map(torch.equal, heads.parameters(), same.parameters()))
    assert not torch.equal(heads.classify[0].weight, other.classify[0].weight)
    latents = torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(0))
    embedded = heads.eval().embed(latents)
    assert torch.equal(embedded[1], heads.project[1](latents[:, 1]))
    assert torch.equal(heads.scores(embedded)[1], heads.classify[1](embedded[1]))


def test_routes_are_the_likeliest_of_the_deepest_head(body):
    model = calir(body)
    memory = memory_of(model)
    latents = model.states(memory, some_sids()).latents
    deepest = model.heads.classify[-1](model.heads.project[-1](latents[:, -1]))
    wanted = deepest.argsort(dim=1, descending=True)
    assert deepest.shape[1] == model.categories.counts[-1] == 6
    assert torch.equal(model.route(memory, width=3), wanted[:, :3])
    assert torch.equal(model.route(memory, width=99), wanted)
    assert model.route(memory, width=0) is None
    shallow = model.heads.classify[0](model.heads.project[0](latents[:, 0]))
    assert shallow.shape[1] == model.categories.counts[0] == 3


def test_many_texts_are_routed_in_batches(monkeypatch):
    model = calir()
    whole = route_texts(model, TEXTS, width=2)
    assert np.array_equal(whole[:4], model.route(memory_of(model, TEXTS[:4]), width=2))
    monkeypatch.setattr(routing, "_BATCH", 3)
    assert np.array_equal(route_texts(model, TEXTS, width=2), whole)
    assert len(np.unique(whole)) > 1
    assert route_texts(model, [], width=2).shape == (0, 2)


@pytest.mark.parametrize("training", [True, False])
def test_routing_leaves_the_mode_as_it_was(training):
    model = calir("compact", dropout=0.5).train(training)
    assert np.array_equal(route_texts(model, TEXTS, width=2), route_texts(model, TEXTS, width=2))
    assert model.training == model.heads.training == training
    with pytest.raises(ConfigError, match="width of 0 routes nowhere"):
        route_texts(model, TEXTS, width=0)
    assert model.training == model.heads.training == training


def test_cached_routes_stay_what_they_were():
    model = calir("compact")
    held = CachedRoutes.of(model, TEXTS, width=2)
    before = route_texts(model, TEXTS, width=2)
    assert np.array_equal(held.route(TEXTS[::-1]), before[::-1])
    with torch.no_grad():
        model.heads.classify[-1].weight.neg_()
        model.heads.classify[-1].bias.neg_()
    assert not np.array_equal(route_texts(model, TEXTS, width=2), before)
    assert np.array_equal(held.route(TEXTS), before)
    with pytest.raises(ConfigError, match="'sofa' has no cached route"):
        held.route([TEXTS[0], "sofa"])


@pytest.mark.parametrize(("steps", "depth"), [(2, 3), (3, 2), (0, 3)])
def test_steps_and_depths_must_agree(body, steps, depth):
    categories = Categories.of_paths(PATHS, depth=depth)
    with pytest.raises(ConfigError, match=f"{steps} latent steps and categories of {depth} depths"):
        CalirBackbone(BODIES[body](steps=steps), categories, CalirConfig(depth=3), seed=0)


def test_bad_settings():
    with pytest.raises(ConfigError, match=r"must be a backbone with latent steps \(compact or t5\), got 'bert'"):
        CalirConfig(body="bert")
    for settings in ({"depth": 0}, {"depth": 4}, {"branching": (4, 4)}):
        with pytest.raises(ConfigError, match="a number of clusters for each depth"):
            CalirConfig(**settings)


def test_categories_are_found_by_id_and_new_items_have_none():
    model = calir("compact")
    deepest = model.categories.of_item[:, -1]
    ids = pa.array([f"i{number}" for number in range(len(PATHS))])
    assert np.array_equal(model.item_categories(ids), deepest), "a model in training has the rows of its index"
    model.category_ids = ids
    moved = pa.array(["i3", "new", "i1", "i0"])
    assert model.item_categories(moved).tolist() == [deepest[3], -1, deepest[1], deepest[0]]


def test_a_body_without_categories_says_so(body):
    plain = BODIES[body]()
    assert not plain.routes
    assert plain.route(memory_of(plain), width=3) is None
    assert plain.item_categories(pa.array(["a"])) is None
    with pytest.raises(ConfigError, match=f"A {body} backbone knows no categories"):
        route_texts(plain, TEXTS, width=2)
