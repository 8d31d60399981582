"""Queries drawn from items' own words, and the items that they fit."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from restd.data import Catalog
from restd.data.attributes import Attributes
from restd.data.pairs import Pairs
from restd.data.pseudo_pairs import describe_items, pseudo_query_pairs, with_fitting_items
from restd.data.pseudo_queries import PSEUDO_KINDS, make_pseudo_queries
from restd.data.text import fold
from restd.data.word_index import WordIndex
from restd.errors import ConfigError

TITLES = ["Red steel kettle", "Oak desk", ""]
TEXTS = ["Red steel kettle. It boils 1.7 litres of water quickly!", "Oak desk. Sturdy; for two monitors.", ""]
NONE = [Attributes((), ())] * 3
OWN = [
    Attributes(("Kitchen", "Kettles"), ("Brandor", "Jet Black", "1.7 l")),
    Attributes(("Desks",), ()),
    Attributes((), ()),
]


@pytest.mark.parametrize("kind", PSEUDO_KINDS)
def test_every_kind_uses_the_items_own_words(kind):
    queries, rows = make_pseudo_queries(TITLES, TEXTS, attributes=NONE, per_item=20, kinds=(kind,), seed=1)
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
    both = pairs.with_queries(Pairs(("c",), np.array([0]), np.array([8]), 1))
    assert list(both.texts) == ["a", "b", "c", "own"]
    assert both.queries == 3
    named = {(both.texts[text], item) for text, item in zip(both.text, both.item, strict=True)}
    assert named == {("a", 5), ("b", 6), ("c", 8), ("own", 7)}


def test_added_pairs_keep_their_draws():
    drawn = Pairs(("c", "d"), np.array([0, 1]), np.array([1, 2]), 2, np.array([0, 1]))
    both = Pairs(("a",), np.array([0]), np.array([5]), 1).with_queries(drawn).with_items(["own"], np.array([7]))
    assert both.draw.tolist() == [-1, 0, 1, -1]
    assert both.only(np.array([2, 3])).draw.tolist() == [1, -1]


def test_attributes_are_the_items_own_and_named_in_two_or_three_parts():
    queries, rows = make_pseudo_queries(TITLES, TEXTS, attributes=OWN, per_item=60, kinds=("attributes",), seed=2)
    seen = set()
    for query, row in zip(queries, rows, strict=True):
        if row == 1:  # one attribute is too few: keywords of its text
            assert set(query.split()) <= {"Oak", "desk", "Sturdy", "for", "two", "monitors"}
            continue
        parts = [part for part in (*OWN[0].categories, *OWN[0].values) if part in query]
        assert len(parts) in (2, 3)
        assert sorted(" ".join(parts).split()) == sorted(query.split()), "nothing but whole attributes"
        assert sum(part in OWN[0].categories for part in parts) == 1
        seen.update(parts)
    assert seen == {*OWN[0].categories, *OWN[0].values}


def test_items_without_categories_combine_values():
    own = [Attributes((), ("Brandor", "Blue"))]
    queries, _ = make_pseudo_queries(TITLES[:1], TEXTS[:1], attributes=own, per_item=20, kinds=("attributes",), seed=0)
    assert set(queries) == {"Brandor Blue", "Blue Brandor"}


def test_attributes_must_be_given():
    with pytest.raises(ConfigError, match="need the items' attributes"):
        make_pseudo_queries(TITLES, TEXTS, per_item=1, kinds=("attributes",), seed=0)


def test_attributes_come_from_all_short_columns(tmp_path):
    rows = [
        {
            "id": "a",
            "title": "Kettle 1.7 l, 2200W",
            "category": ["Home", "Kettles"],
            "brand": "Brandor",
            "colors": ["Jet Black", "n/a"],
            "ean": "4006381333931",
            "price": 12.5,
            "image": "https://a.example/kettle.jpg",
            "added": "2024-05-01T10:00:00Z",
            "description": "It boils water much faster than the old one.",
            "range": "KETTLES",
        },
        {"id": "b", "title": "Desk"},
    ]
    path = tmp_path / "items.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    catalog = Catalog(path)
    items = describe_items(catalog, catalog.ids())
    assert items.attributes[0] == (("Home", "Kettles"), ("Brandor", "Jet Black", "1.7 l", "2200W"))
    assert items.attributes[1] == ((), ())
    drawn = pseudo_query_pairs(items, per_item=3, kinds=("attributes",), seed=0)
    assert [text for text, item in zip(drawn.texts, drawn.item, strict=True) if item == 1] == ["Desk"] * 3


def test_more_draws_begin_with_the_same_one_and_differ():
    once, rows = make_pseudo_queries(TITLES, TEXTS, per_item=4, seed=3)
    thrice, rows_thrice = make_pseudo_queries(TITLES, TEXTS, per_item=4, seed=3, draws=3)
    assert len(thrice) == 3 * len(once)
    assert rows_thrice.tolist() == np.repeat(rows.reshape(-1, 4), 3, axis=0).ravel().tolist()
    by_draw = np.array(thrice).reshape(2, 3, 4)
    assert by_draw[:, 0].ravel().tolist() == once
    assert len({tuple(by_draw[:, draw].ravel()) for draw in range(3)}) == 3


words = st.lists(st.sampled_from(["red", "blue", "steel", "kettle", "pan", "lid"]), max_size=5).map(" ".join)


@given(st.lists(words, min_size=1, max_size=12), words, st.integers(0, 3), st.data())
def test_items_that_fit_have_all_words_and_none_is_forgotten(texts, query, at_most, data):
    row = data.draw(st.integers(0, len(texts) - 1))
    found = WordIndex.of(texts).fitting(query, beside=[row], at_most=at_most)
    fits = [n for n, text in enumerate(texts) if query and set(query.split()) <= set(text.split()) and n != row]
    assert set(found) <= set(fits)
    assert len(found) == len(set(found)) == min(at_most, len(fits))


def test_common_words_are_looked_up_among_few_items():
    texts = ["red thing"] * 1_000 + ["red kettle"]
    index = WordIndex.of(texts)
    assert index.fitting("red", beside=[998], at_most=3) == [999, 1_000, 0]
    assert index.fitting("kettle", beside=[998], at_most=3) == [1_000]
    assert index.fitting("red thing", beside=[5], at_most=1_000) == list(range(6, 262)), (
        "no more than 256 are looked at"
    )
    assert index.fitting("red unheard", beside=[5], at_most=3) == []


def test_fitting_items_are_added_up_to_the_bound():
    texts = ["red kettle", "red pan", "Red kettle, steel", "blue kettle", "kettle in red"]
    grades = np.array([3.0, 1.0, 2.0])
    pairs = Pairs(
        ("kettle red", "pan", "kettle"), np.array([0, 1, 2]), np.array([0, 1, 3]), 3, np.array([0, 0, 1]), grades
    )
    more = with_fitting_items(pairs, WordIndex.of(texts), most=3)
    named = sorted(zip(more.text.tolist(), more.item.tolist(), more.draw.tolist(), strict=True))
    assert named == [(0, 0, 0), (0, 2, 0), (0, 4, 0), (1, 1, 0), (2, 0, 1), (2, 3, 1), (2, 4, 1)]
    assert more.grade is not None
    assert more.grade.tolist() == grades[more.text].tolist()
    held_out = np.arange(5) == 2
    fewer = with_fitting_items(pairs, WordIndex.of(texts), most=3, held_out=held_out)
    assert 2 not in fewer.item
    same = with_fitting_items(pairs, WordIndex.of(texts), most=1)
    assert same.item.tolist() == pairs.item.tolist()
