"""Search options: one definition, checked where they are made, said on the protocol card."""

from dataclasses import fields

import pytest
from pydantic import TypeAdapter

from restd.errors import ConfigError
from restd.search import HeadUse, SearchKeywords, SearchOptions
from restd.snapshot import Condition


def test_keywords_are_the_fields():
    names = {field.name for field in fields(SearchOptions)}
    assert set(SearchKeywords.__annotations__) | {"k"} == names  # k has a place of its own


def test_keywords_take_precedence_over_options():
    options = SearchOptions(k=3, beam=7, where=["price<=3"])
    merged = SearchOptions.of(options, beam=9)
    assert (merged.k, merged.beam, merged.where) == (3, 9, ("price<=3",))
    assert options.beam == 7


def test_what_is_unset_is_settled_by_the_task():
    unset = SearchOptions()
    assert (unset.settled("search").beam, unset.settled("recommend").beam) == (100, 20)
    assert SearchOptions(beam=5, seen=True).settled("recommend", seen=False) == SearchOptions(beam=5, seen=True)
    assert unset.settled("recommend", seen=False).seen is False


def test_options_go_through_json():
    options = SearchOptions(k=3, where=["a=b", Condition("c", "<", "4")], deny=["x"], heads=HeadUse("rerank", 0.2))
    adapter = TypeAdapter(SearchOptions)
    again = adapter.validate_json(adapter.dump_json(options))
    assert again == options
    assert hash(again) == hash(options)  # requests of equal options can be searched together
    with pytest.raises(ValueError, match="score_norm"):
        adapter.validate_json('{"score_norm": "magic"}')


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"k": 0}, "k = 0: expected at least 1"),
        ({"beam": 0}, "beam = 0: expected at least 1"),
        ({"beam": True}, "beam = True: expected a whole number"),
        ({"category_width": -1}, "category_width = -1: expected at least 0"),
        ({"score_norm": "magic"}, "score_norm = 'magic' is unknown; expected one of full_vocab, level_codes, trie_ch"),
        ({"mode": "both"}, "mode = 'both' is unknown; expected one of generative, hybrid"),
        ({"allow": "mug"}, "allow = 'mug': expected a list, got one text"),
        ({"where": ["price"]}, "The filter 'price' is not of the form"),
        ({"beams": 3}, r"Unknown search option 'beams'\. Did you mean 'beam'\?"),
    ],
)
def test_impossible_options_are_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        SearchOptions.of(**values)


def test_impossible_uses_of_heads():
    with pytest.raises(ConfigError, match=r"heads\.weight = nan"):
        HeadUse(weight=float("nan"))
    with pytest.raises(ConfigError, match=r"heads\.extra_candidates = -1"):
        HeadUse(extra_candidates=-1)


def test_the_card_says_what_matters():
    assert SearchOptions().card(task="search") == {
        "ranker": "restd",
        "search": "beam over the trie",
        "beam": 100,
        "score_norm": "full_vocab",
    }
    assert SearchOptions().card(task="recommend")["seen"] is True
    assert SearchOptions(category_width=1).card(task="search", routes=True)["category_width"] == 1
    one, other = (
        SearchOptions(mode="hybrid", where=["a=b"], deny=denied, heads=HeadUse("rerank", 0.2)).card(task="search")
        for denied in (["x", "y"], ["x", "z"])
    )
    assert (one["mode"], one["where"], one["heads"]["mode"]) == ("hybrid", ["a=b"], "rerank")
    assert one["deny"] != other["deny"]
