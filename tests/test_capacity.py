"""The policy `capacity` against its rule, when an index is built and when items are added."""

import json
from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from restd.codes import as_tensor, trajectory
from restd.data import Catalog
from restd.errors import CapacityError, ConfigError
from restd.index import IndexConfig, SidIndex, build_index, with_shape
from restd.index.capacity import capacity
from tests.test_policies import Case, as_tuples, error_of


@st.composite
def cases(draw):
    sizes = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    most = draw(st.integers(1, 4))
    addresses = int(np.prod(sizes))
    items = draw(st.integers(1, min(addresses * most, 30)))
    occupied = draw(st.integers(0, min(addresses, (addresses * most - items))))
    return Case(sizes, draw(st.integers(0, 2**32 - 1)), items, draw(st.integers(1, items)), occupied), most


@given(cases())
def test_the_rule_word_by_word(drawn):
    case, most = drawn
    problem = replace(case.problem(), capacity=most)
    stored = as_tuples(capacity(problem).sids)
    raw = as_tuples(problem.raw)
    members = Counter(as_tuples(problem.occupied))
    errors = error_of(problem, range(len(raw)), problem.raw)
    stays = set()
    for sid in set(raw):
        best = sorted((row for row, own in enumerate(raw) if own == sid), key=lambda row: (errors[row], row))
        stays |= set(best[: max(0, most - members[sid])])
    members.update(raw[row] for row in stays)
    books = problem.codebooks
    residuals = trajectory(as_tensor(problem.latents), as_tensor(problem.raw), books)[:, -2].numpy()
    last = books.level(books.levels - 1).numpy()
    for row, sid in enumerate(raw):
        if row in stays:
            assert stored[row] == sid
            continue
        siblings = [(*sid[:-1], code) for code in range(books.sizes[-1])]
        free = [other for other in siblings if members[other] < most]
        if free:
            assert stored[row] in free
            distances = np.square(residuals[row] - last).sum(1)
            assert distances[stored[row][-1]] <= min(distances[other[-1]] for other in free) + 1e-4
        else:
            open_sids = [other for other in product(*map(range, books.sizes)) if members[other] < most]
            changes = {other: sum(a != b for a, b in zip(other, sid, strict=True)) for other in open_sids}
            assert changes[stored[row]] == min(changes.values())
        members[stored[row]] += 1
    assert max(members.values()) <= max(most, 1)


def test_more_items_than_room_says_what_would_do():
    problem = Case((2, 2), 0, 4, 1, 4).problem()
    with pytest.raises(CapacityError, match=r"8 items do not fit 4 SIDs of at most 1 items each; raise index"):
        capacity(replace(problem, capacity=1))


@pytest.fixture
def crowd(tmp_path):
    """Ninety items with few distinct texts, so that many get the same codes."""
    rows = [{"id": f"i{n}", "title": f"{('red', 'blue', 'green')[n % 3]} {('mug', 'lamp')[n % 2]}"} for n in range(90)]
    path = tmp_path / "items.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return Catalog(path)


def config(**options):
    return with_shape(IndexConfig("tfidf-svd", **options), levels=2, codes=6, dim=4)


def test_an_index_keeps_its_capacity_when_items_are_added(crowd, tmp_path):
    index = build_index(crowd, tmp_path / "out", config(policy="capacity", capacity=4))
    assert max(Counter(as_tuples(index.sids)).values()) == 4
    loaded = SidIndex.load(tmp_path / "out")
    assert loaded.capacity == 4
    from restd.encode import Embeddings

    vectors = Embeddings.open(tmp_path / "out" / "embeddings").sample(30, seed=0)
    grown, _ = loaded.add([f"new{n}" for n in range(30)], vectors)
    assert (grown.sids[:90] == index.sids).all()
    assert max(Counter(as_tuples(grown.sids)).values()) == 4
    grown.save(tmp_path / "grown")
    assert SidIndex.load(tmp_path / "grown").capacity == 4


def test_another_capacity_is_another_index_and_five_is_the_default(crowd, tmp_path):
    lines = []
    for capacity_, expected in ((None, 5), (5, 5), (9, 9)):
        settings = config(policy="capacity", capacity=capacity_)
        index = build_index(crowd, tmp_path / "out", settings, notify=lines.append)
        assert max(Counter(as_tuples(index.sids)).values()) == expected
    assert lines.count("Kept the Semantic IDs") == 1


def test_capacity_is_read_with_its_policy_only(crowd, tmp_path):
    with pytest.raises(ConfigError, match=r"index\.capacity = 3 has no effect with the policy none; choose --policy"):
        config(policy="none", capacity=3)
    with pytest.raises(ConfigError, match=r"index\.capacity must be at least 1, got 0"):
        config(policy="capacity", capacity=0)
    tight = with_shape(config(policy="capacity", capacity=2), codes=6)
    with pytest.raises(CapacityError, match="90 items do not fit 36 SIDs of at most 2"):
        build_index(crowd, tmp_path / "tight", tight)
    assert not (tmp_path / "tight" / "embeddings").exists(), "refused before anything is encoded"
