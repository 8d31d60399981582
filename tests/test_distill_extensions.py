"""Beyond the paper: the mean teacher of a query, and teachers that respect the trie."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from restd.codes import Trie
from restd.distill import Correction, FutureHardTeacher, Geometry, MeanTeacher, ResidualTeacher, TrieTeacher, extensions
from restd.errors import ConfigError
from tests.test_distill_controls import crowd, everything, teacher_of
from tests.test_distill_equations import made, seeds


@given(seeds, st.integers(1, 4))
def test_mean_teacher_averages_positives_that_share_the_prefix(seed, queries):
    base = teacher_of(made(seed, sizes=(2, 2, 3), items=14))
    generator = torch.Generator().manual_seed(seed)
    pair_query = torch.cat([torch.arange(queries), torch.randint(queries, (12,), generator=generator)])
    pair_row = torch.randint(14, (len(pair_query),), generator=generator)
    mean = MeanTeacher.of(base, pair_query, pair_row)
    targets = mean.targets(pair_row, pair_query)
    own, stored = everything(base), base.geometry.stored(torch.arange(14))
    for example in range(len(pair_row)):
        positives = pair_row[pair_query == pair_query[example]].tolist()
        for state in range(3):
            prefix = stored[pair_row[example], :state].tolist()
            members = [row for row in positives if stored[row, :state].tolist() == prefix]
            for offset in range(3 - state):
                expected = own[members, state + offset].mean(0)
                found = targets.values[example, targets.slot_of[state, offset]]
                assert torch.allclose(found, expected, atol=1e-5)


def test_mean_teacher_needs_true_pairs():
    base = crowd()
    mean = MeanTeacher.of(base, torch.tensor([0, 0, 1]), torch.tensor([1, 2, 3]))
    with pytest.raises(ConfigError, match="needs the query of each row"):
        mean.targets(torch.tensor([1]))
    with pytest.raises(ConfigError, match="row 3 is not among the positives"):
        mean.targets(torch.tensor([2, 3, 4]), torch.tensor([0, 0, 0]))


def test_a_stranger_that_shares_the_prefix_of_a_positive_is_refused():
    geometry = made(0, sizes=(2, 2, 3), items=14)
    geometry.sids[5] = geometry.sids[1]  # the same codes, another item
    mean = MeanTeacher.of(teacher_of(geometry), torch.tensor([0, 0]), torch.tensor([1, 2]))
    with pytest.raises(ConfigError, match="row 5 is not among the positives"):
        mean.targets(torch.tensor([1, 5]), torch.tensor([0, 0]))


def test_mean_teacher_of_a_teacher_with_other_slots_is_refused():
    base = crowd()
    mean = MeanTeacher.of(FutureHardTeacher(base), torch.tensor([0]), torch.tensor([1]))
    with pytest.raises(ConfigError, match="one slot per level"):
        mean.targets(torch.tensor([1]), torch.tensor([0]))


def test_one_positive_a_query_is_the_ordinary_teacher():
    base = crowd()
    rows = torch.arange(10)
    targets = MeanTeacher.of(base, rows, rows).targets(rows, rows)
    for state in range(3):
        for offset in range(3 - state):
            found = targets.values[:, targets.slot_of[state, offset]]
            assert torch.allclose(found, base.targets(rows).values[:, state + offset], atol=1e-6)


def test_trie_teacher_leaves_no_mass_on_impossible_codes():
    base = crowd(items=40)
    sids = base.geometry.stored(torch.arange(40))
    trie = Trie.of(sids.numpy().astype(np.int16), base.geometry.sizes)
    own, kept = everything(base), everything(TrieTeacher(base, trie))
    stored = {tuple(sid) for sid in sids.tolist()}
    for row, sid in enumerate(sids.tolist()):
        for level in range(3):
            following = {other[level] for other in stored if other[:level] == tuple(sid[:level])}
            for code in range(base.geometry.sizes[level]):
                assert (float(kept[row, level, code]) > 0) == (code in following)
            inside = sorted(following)
            ratio = kept[row, level, inside] / own[row, level, inside]
            assert torch.allclose(ratio, ratio[:1].expand_as(ratio), rtol=1e-4)
    assert torch.allclose(kept.sum(-1), torch.ones(40, 3), atol=1e-5)
    with pytest.raises(ConfigError, match="one slot per level"):
        TrieTeacher(FutureHardTeacher(base), trie).targets(torch.arange(2))


def test_a_trie_teacher_without_mass_on_any_child_falls_back_to_the_stored_code():
    """A raw teacher so sharp that float32 leaves the codes of this branch nothing: 0 / 0 before."""
    books = torch.tensor([[[0.0], [50.0]], [[0.0], [9.0]]])
    sids = torch.tensor([[1, 0], [1, 1]])
    geometry = Geometry.of(books, torch.tensor([[0.0], [50.0]]), sids)
    base = ResidualTeacher(geometry, torch.full((2,), 0.01), Correction(enabled=False))
    assert float(base.targets(torch.tensor([0])).values[0, 0, 1]) == 0.0, "nothing to test"
    targets = TrieTeacher(base, Trie.of(sids.numpy().astype(np.int16), (2, 2))).targets(torch.arange(2)).values
    assert targets[0, 0].tolist() == [0.0, 1.0]
    assert torch.allclose(targets.sum(-1), torch.ones(2, 2))


def test_a_trie_of_other_sids_is_refused():
    base = crowd(items=40)
    sids = base.geometry.stored(torch.arange(40)).numpy().astype(np.int16)
    with pytest.raises(ConfigError, match="SID of item row 39 is not in the trie"):
        TrieTeacher(base, Trie.of(sids[(sids != sids[39]).any(axis=1)], base.geometry.sizes))
    with pytest.raises(ConfigError, match="SIDs with 3 codes, got one with 2"):
        TrieTeacher(base, Trie.of(sids[:, :2], base.geometry.sizes[:2]))


def test_an_item_without_a_sid_in_the_trie_is_named_wherever_it_is(monkeypatch):
    monkeypatch.setattr(extensions, "_ROWS", 8)
    test_a_trie_of_other_sids_is_refused()


def test_a_trie_teacher_of_levels_of_very_different_size():
    geometry = made(0, sizes=(2, 5), items=30)
    trie = Trie.of(geometry.sids.numpy().astype(np.int16), geometry.sizes)
    values = everything(TrieTeacher(teacher_of(geometry), trie))
    assert values.shape[1:] == (2, 5)
    assert torch.allclose(values.sum(-1), torch.ones(30, 2), atol=1e-5)
    assert bool((values[:, 0, 2:] == 0).all())
