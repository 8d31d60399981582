"""Queries drawn from items' own words."""

import numpy as np
import pytest

from restd.data import Catalog
from restd.data.pairs import Pairs, pseudo_query_pairs
from restd.data.pseudo_queries import PSEUDO_KINDS, make_pseudo_queries
from restd.data.text import fold
from restd.errors import ConfigError
from restd.index import SidIndex
from tests.training import make_index, run, write_world

TITLES = ["Red steel kettle", "Oak desk", ""]
TEXTS = ["Red steel kettle. It boils 1.7 litres of water quickly!", "Oak desk. Sturdy; for two monitors.", ""]


@pytest.mark.parametrize("kind", PSEUDO_KINDS)
def test_every_kind_uses_the_items_own_words(kind):
    queries, rows = make_pseudo_queries(TITLES, TEXTS, per_item=20, kinds=(kind,), seed=1)
    assert rows.tolist() == [0] * 20 + [1] * 20, "an item without words has no query"
    assert all(queries)
    for query, row in zip(queries, rows, strict=True):
        strange = [word for word in query.split() if fold(word.strip(".!;,")) not in fold(TEXTS[row])]
        assert len(strange) <= (kind == "misspelled")


def test_misspelled_queries_have_a_misspelling():
    queries, _ = make_pseudo_queries(TITLES[:1], TEXTS[:1], per_item=50, kinds=("misspelled",), seed=0)
    words = set(fold(TEXTS[0]).replace(".", " ").replace("!", " ").split())
    assert sum(any(fold(word) not in words for word in query.split()) for query in queries) > 25


def test_keywords_keep_the_order_of_the_text_and_do_not_repeat():
    queries, _ = make_pseudo_queries(TITLES[:1], TEXTS[:1], per_item=50, seed=0)
    for query in queries:
        places = [TEXTS[0].index(word) for word in query.split()]
        assert places == sorted(set(places))
        assert 2 <= len(places) <= 5


def test_rare_words_and_words_of_the_title_are_drawn_more_often():
    texts = [f"common thing number{row} further common words here" for row in range(50)]
    queries, _ = make_pseudo_queries([f"number{row}" for row in range(50)], texts, per_item=4, seed=0)
    drawn = [word for query in queries for word in query.split()]
    assert sum(word.startswith("number") for word in drawn) > 1.5 * drawn.count("further")


def test_queries_depend_on_the_seed_and_on_nothing_else():
    first = make_pseudo_queries(TITLES, TEXTS, per_item=4, seed=3)
    again = make_pseudo_queries(TITLES, TEXTS, per_item=4, seed=3)
    other = make_pseudo_queries(TITLES, TEXTS, per_item=4, seed=4)
    assert first[0] == again[0]
    assert first[0] != other[0]


def test_no_kind_is_refused():
    with pytest.raises(ConfigError, match="No kind of pseudo-query"):
        make_pseudo_queries(TITLES, TEXTS, per_item=1, kinds=(), seed=0)


def test_drawn_queries_stand_between_queries_and_items():
    pairs = Pairs(("a", "b"), np.array([0, 1]), np.array([5, 6]), 2).with_items(["own"], np.array([7]))
    both = pairs.with_queries(["c"], np.array([8]))
    assert list(both.texts) == ["a", "b", "c", "own"]
    assert both.queries == 3
    named = {(both.texts[text], item) for text, item in zip(both.text, both.item, strict=True)}
    assert named == {("a", 5), ("b", 6), ("c", 8), ("own", 7)}


def test_training_draws_for_every_item_of_the_index(tmp_path):
    data = write_world(tmp_path / "data")
    index = make_index(data, tmp_path / "index")
    messages = []
    run(index, data, tmp_path / "run", "train.pseudo_queries=3", "train.updates=2", notify=messages.append)
    counted = next(message for message in messages if "pairs of" in message)
    ids = SidIndex.load(index).table.ids
    drawn = pseudo_query_pairs(Catalog(data), ids, per_item=3, seed=42)
    assert sorted(set(drawn.item.tolist())) == list(range(len(ids)))
    plain = []
    run(index, data, tmp_path / "plain", "train.updates=2", notify=plain.append)
    before = next(message for message in plain if "pairs of" in message)
    pairs = [int(text.split(" pairs")[0].replace(",", "")) for text in (before, counted)]
    assert pairs[1] - pairs[0] == len(drawn) == 3 * len(ids)
