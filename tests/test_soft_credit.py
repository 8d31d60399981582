"""Weights of levels and soft credit for close codes, against a naive computation, and in training."""

import errno

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from restd.codes import Codebooks, Trie
from restd.data import Catalog
from restd.encode import Ragged
from restd.errors import ConfigError
from restd.index import IndexConfig, SidIndex, build_index, import_index, with_shape
from restd.models.contract import position_mean
from restd.quantize import HiGenConfig
from restd.train import TrainConfig, read_log
from restd.train import checkpoint as checkpoints
from restd.train.generation import SoftGenerationLoss, following_codes, position_weights
from restd.train.module import Batch
from restd.train.soft_credit import CodewordGaps, PrefixGaps, SoftCredit
from tests import unequal
from tests.models import QUERIES, SIZES, memory_of, some_sids, tiny_compact, tiny_t5
from tests.training import make_index, run, same_weights, write_walks, write_world

seeds = st.integers(0, 1_000)
CODES = max(SIZES)
HI_GEN = IndexConfig("tfidf-svd", "hi-gen", sections={"hi-gen": HiGenConfig(levels=3, codes=4, dim=8)})


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_world(tmp_path_factory.mktemp("data") / "data")


@pytest.fixture(scope="module")
def world(data, tmp_path_factory):
    return make_index(data, tmp_path_factory.mktemp("index") / "index"), data


@pytest.fixture(scope="module")
def by_categories(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("hi-gen") / "index"
    build_index(Catalog(data), out, HI_GEN)
    return out, data


def drawn_books(seed, sizes=SIZES):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, 3, generator=generator) for size in sizes]


def share_of(gaps, chosen, *, share, tau):
    """The equation, for one position: `gaps` by code, `None` where there is no cluster."""
    weights = [0.0 if gap is None else np.exp(-gap / tau) for gap in gaps]
    return [(code == chosen) * (1 - share) + share * weight / sum(weights) for code, weight in enumerate(weights)]


def mean_gap(points):
    """Mean squared distance of independent pairs."""
    return np.mean([[np.square(one - other).sum() for other in points] for one in points])


@settings(max_examples=15)
@given(seeds)
def test_credit_between_codewords_is_the_equation(seed):
    """A level behind the codebooks, which a suffix adds, keeps its stored code."""
    books, sids = drawn_books(seed), torch.cat([some_sids(seed=seed), torch.tensor([[0], [3], [1], [5]])], dim=1)
    credit = SoftCredit(0.3, 0.25, CodewordGaps.of(Codebooks.of(books)))
    targets = credit.of_rows(sids, codes=6)
    for row, sid in enumerate(sids.tolist()):
        for level, book in enumerate(books):
            scale = mean_gap(book.numpy())
            gaps = [float((book[sid[level]] - other).square().sum()) / scale for other in book]
            wanted = share_of([*gaps, *[None] * (6 - len(book))], sid[level], share=0.3, tau=0.25)
            assert targets[row, level].tolist() == pytest.approx(wanted, abs=1e-5)
        assert targets[row, 3].tolist() == [float(code == sid[3]) for code in range(6)]


@settings(max_examples=15)
@given(seeds)
def test_credit_between_prefixes_is_the_equation(seed):
    rng = np.random.default_rng(seed)
    sids = np.stack([rng.integers(size, size=14) for size in (2, 3, 3)], axis=1)
    points = rng.normal(size=(14, 3)).astype(np.float32)
    trie = Trie.of(sids, (2, 3, 3))
    credit = SoftCredit(0.4, 0.5, PrefixGaps.of(trie, torch.from_numpy(sids), torch.from_numpy(points)))
    targets = credit.of_rows(torch.from_numpy(sids), codes=4)

    def centres(prefix):
        """Of the prefixes that continue this one, by code."""
        below = (sids[:, : len(prefix)] == prefix).all(axis=1)
        codes = np.unique(sids[below, len(prefix)])
        return {code: points[below & (sids[:, len(prefix)] == code)].mean(axis=0) for code in codes}

    for level in range(3):
        parents = {tuple(sid[:level]) for sid in sids.tolist()}
        families = [list(centres(np.array(parent, int)).values()) for parent in parents]
        families = [np.stack(family) for family in families if len(family) > 1]
        apart = [np.square(family - family.mean(axis=0)).sum(axis=1) for family in families]
        scale = 2 * np.concatenate(apart).mean() if apart else 1.0
        for row, sid in enumerate(sids):
            family = centres(sid[:level])
            own = family[sid[level]]
            gaps = [np.square(family[code] - own).sum() / scale if code in family else None for code in range(4)]
            assert targets[row, level].tolist() == pytest.approx(
                share_of(gaps, sid[level], share=0.4, tau=0.5), abs=1e-5
            )


def test_only_codes_that_can_follow_get_credit():
    sids = some_sids(rows=8)
    trie = Trie.of(sids.numpy(), SIZES)
    allowed = following_codes(trie, sids, codes=CODES)
    credit = SoftCredit(0.5, 1.0, CodewordGaps.of(Codebooks.of(drawn_books(0))))
    targets = credit.of_rows(sids, codes=CODES, allowed=allowed)
    assert torch.equal(targets > 0, allowed)
    assert torch.allclose(targets.sum(dim=-1), torch.ones(8, 3))
    free = credit.of_rows(sids, codes=CODES)
    assert (free > 0).sum(dim=-1).tolist() == [list(SIZES)] * 8


def test_without_a_share_the_stored_codes_are_left_exactly():
    sids = some_sids()
    none = SoftCredit(0.0, 0.25, CodewordGaps.of(Codebooks.of(drawn_books(0)))).of_rows(sids, codes=CODES)
    assert torch.equal(none, torch.nn.functional.one_hot(sids, CODES).float())


def test_codes_with_one_cluster_or_equal_clusters_are_no_trouble():
    alike = CodewordGaps.of(Codebooks.of([torch.ones(1, 2), torch.ones(4, 2)]))
    targets = SoftCredit(0.4, 0.25, alike).of_rows(torch.tensor([[0, 2]]), codes=4)
    assert targets[0].tolist() == [[1, 0, 0, 0], pytest.approx([0.1, 0.1, 0.7, 0.1])]
    sids = torch.tensor([[0, 0], [1, 0]])
    lone = PrefixGaps.of(Trie.of(sids.numpy(), (2, 1)), sids, torch.ones(2, 3))
    targets = SoftCredit(0.4, 0.25, lone).of_rows(sids, codes=2)
    assert targets.tolist() == [[pytest.approx([0.8, 0.2]), [1, 0]], [pytest.approx([0.2, 0.8]), [1, 0]]]


@pytest.mark.parametrize(
    ("setting", "wanted"), [("inverse-sqrt", [1, 2**-0.5, 3**-0.5, 0.5]), (0.8, [1, 0.8, 0.64, 0.512])]
)
def test_weights_of_levels_have_a_mean_of_one(setting, wanted):
    weights = position_weights(setting, 4)
    assert weights.tolist() == pytest.approx(wanted)
    for positions in (3, 4):
        losses = torch.eye(positions)  # each row's mean is its position's weight over the number of positions
        each = torch.stack([position_mean(row[None], weights) for row in losses]) * positions
        assert each.mean().item() == pytest.approx(1)
        assert (each / each[0]).tolist() == pytest.approx(wanted[:positions])


@pytest.mark.parametrize("make", [tiny_compact, tiny_t5])
@pytest.mark.parametrize("setting", ["inverse-sqrt", 0.8])
def test_the_weighted_loss_is_the_naive_sum(make, setting):
    model, sids = make(), some_sids()
    output = model.states(memory_of(model), sids)
    batch = Batch(model.prepare(QUERIES).batch(np.arange(4)), sids, torch.arange(4), torch.arange(4))
    credit = SoftCredit(0.2, 0.5, CodewordGaps.of(Codebooks.of(drawn_books(1))))
    loss = SoftGenerationLoss(None, None, CODES, False, credit, position_weights(setting, len(SIZES) + 1))
    if make is tiny_t5:
        words = model.vocabulary_logits(output.states).log_softmax(-1).detach()
        scores = [[words[row, level, model.tokens[level]] for level in range(3)] for row in range(4)]
        end = model.vocabulary_logits(output.ending).log_softmax(-1)[:, model.tokenizer.eos_token_id].detach()
    else:
        scores, end = model.logits(output.states).log_softmax(-1).detach(), None
    targets = credit.of_rows(sids, codes=CODES)
    factors = [(t + 1) ** -0.5 if setting == "inverse-sqrt" else setting**t for t in range(4 if end is not None else 3)]
    total = 0.0
    for row in range(4):
        for level in range(3):
            for code in range(SIZES[level]):
                total -= factors[level] * float(targets[row, level, code] * scores[row][level][code])
        total -= 0.0 if end is None else factors[3] * float(end[row])
    assert loss(batch, output, model, validating=False).item() == pytest.approx(total / (4 * sum(factors)), rel=1e-4)
    stored = torch.nn.functional.one_hot(sids, CODES).float()
    assert torch.equal(loss(batch, output, model, validating=True), model.soft_sid_loss(output, stored))


@pytest.mark.parametrize("kind", ["compact", "t5"])
@settings(max_examples=8)
@given(table=unequal.identifiers())
def test_identifiers_that_end_early_are_weighed_by_what_is_learned(kind, table):
    model, sids = unequal.model_of(kind, ends=True), torch.from_numpy(unequal.padded(table).astype(np.int64))[:5]
    weights = position_weights(0.5, sids.shape[1] + 1)
    total = mass = 0.0
    with torch.no_grad():
        output = model.states(unequal.random_memory(1).take(torch.zeros(len(sids), dtype=torch.int64)), sids)
        inputs = Ragged.of([np.zeros(1, np.int64)] * len(sids)).batch(np.arange(len(sids)))
        batch = Batch(inputs, sids, torch.arange(len(sids)), torch.arange(len(sids)))
        loss = SoftGenerationLoss(None, None, max(unequal.SIZES), True, None, weights)
        for row, sid in enumerate(sids.tolist()):
            learned = sid.index(0) + 1 if 0 in sid else len(sid)
            for level in range(learned):
                if kind == "t5":
                    scores = model.vocabulary_logits(output.states[row, level]).log_softmax(-1)
                    score = scores[model.tokens[level, sid[level]]]
                else:
                    score = model.logits(output.states)[row, level].log_softmax(-1)[sid[level]]
                total, mass = total - 0.5**level * float(score), mass + 0.5**level
            if kind == "t5":
                end = model.vocabulary_logits(output.ending[row]).log_softmax(-1)[model.model.config.eos_token_id]
                total, mass = total - 0.5 ** sids.shape[1] * float(end), mass + 0.5 ** sids.shape[1]
        assert float(loss(batch, output, model, validating=False)) == pytest.approx(total / mass, rel=1e-4)


def losses_of(folder):
    return [record["sid_loss"] for record in read_log(folder / "log.jsonl") if "sid_loss" in record]


def test_what_is_off_changes_no_bit(world, tmp_path):
    plain = run(*world, tmp_path / "plain", updates=6)
    words = ["train.level_weights=even", "train.soft_credit=0", "train.soft_credit_tau=0.7"]
    off = run(*world, tmp_path / "off", *words, updates=6)
    assert same_weights(plain.folder, off.folder)


@pytest.mark.parametrize(("place", "backbone"), [("world", "t5"), ("world", "calir"), ("by_categories", "compact")])
def test_every_backbone_learns_with_weights_and_credit(place, backbone, tmp_path, request):
    words = ["train.level_weights=0.8", "train.soft_credit=0.1", "train.loss_norm=trie_children"]
    run(*request.getfixturevalue(place), tmp_path / "run", *words, backbone=backbone, updates=8)
    losses = losses_of(tmp_path / "run")
    assert losses[-1] < losses[0]


def test_a_recommender_learns_with_them_too(tmp_path):
    walks = write_walks(tmp_path / "data")
    index = make_index(walks, tmp_path / "index", policy="suffix")
    words = ["train.level_weights=inverse-sqrt", "train.soft_credit=0.1"]
    run(index, walks, tmp_path / "run", *words, backbone="tiger", updates=20)
    losses = losses_of(tmp_path / "run")
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


def test_distillation_is_added_and_its_cap_is_of_this_loss(world, tmp_path):
    words = ["train.level_weights=0.8", "train.soft_credit=0.1", "distill.weight=100", "distill.cap=0.05"]
    run(*world, tmp_path / "run", *words, "distill.warm_up=0", objective="restd", updates=5)
    records = [record for record in read_log(tmp_path / "run" / "log.jsonl") if "sid_loss" in record]
    assert [record["loss"] / record["sid_loss"] for record in records] == pytest.approx([1.05] * 5, rel=1e-3)


def test_an_interrupted_run_ends_with_the_same_bytes(by_categories, tmp_path, monkeypatch):
    sources = by_categories
    words = ["train.level_weights=inverse-sqrt", "train.soft_credit=0.1", "train.checkpoint=3"]
    whole = run(*sources, tmp_path / "whole", *words, updates=9).folder
    original, calls = checkpoints.create, []

    def full(target, **options):
        calls.append(target)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(target, **options)

    monkeypatch.setattr(checkpoints, "create", full)
    with pytest.raises(OSError, match="No space"):
        run(*sources, tmp_path / "run", *words, updates=9)
    assert same_weights(run(*sources, tmp_path / "run", *words, updates=9).folder, whole)


def test_an_index_that_knows_no_distances_is_refused(world, tmp_path):
    index = SidIndex.load(world[0])
    lines = [f"{item},{','.join(map(str, sid))}" for item, sid in zip(index.table.ids, index.sids, strict=True)]
    (tmp_path / "codes.csv").write_text("id,a,b,c\n" + "\n".join(lines) + "\n", encoding="utf-8")
    import_index(tmp_path / "codes.csv").save(tmp_path / "bare")
    with pytest.raises(ConfigError, match=r"has neither codebooks nor latents\. Set train\.soft_credit=0"):
        run(tmp_path / "bare", world[1], tmp_path / "run", "train.soft_credit=0.1", backbone="t5")
    words = {"backbone": "t5", "updates": 2}
    weighted = run(tmp_path / "bare", world[1], tmp_path / "weighted", "train.level_weights=0.8", **words)
    assert not same_weights(weighted.folder, run(tmp_path / "bare", world[1], tmp_path / "even", **words).folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level_weights": 0.0}, r"level_weights must be 'even', 'inverse-sqrt' or a number above 0 .* got 0\.0"),
        ({"level_weights": float("inf")}, "got inf"),
        ({"soft_credit": 1.0}, r"soft_credit must be at least 0 and below 1, got 1\.0"),
        ({"soft_credit_tau": 0.0}, r"soft_credit_tau must be above 0, got 0\.0"),
        ({"soft_credit": 0.1, "multi_positive": "items"}, r"replaces by all right codes\. Set one of them back"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        TrainConfig(**options)


def test_weights_go_with_several_right_codes(world, tmp_path):
    words = ["train.multi_positive=grades", "train.level_weights=0.5"]
    weighted = run(*world, tmp_path / "weighted", *words, updates=6)
    even = run(*world, tmp_path / "even", words[0], updates=6)
    assert losses_of(tmp_path / "weighted")[-1] < losses_of(tmp_path / "weighted")[0]
    assert not same_weights(weighted.folder, even.folder)


def test_an_index_shape_is_no_part_of_it():
    assert with_shape(HI_GEN, levels=4, codes=16, dim=5, seed=2).fit == HiGenConfig(4, 3, 16, 5, seed=2)
