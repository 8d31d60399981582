"""Generated shoppers: what comes next follows from what came before, and not from what is popular."""

from functools import cache

import numpy as np
import pyarrow as pa
import pytest
from scipy.sparse import csr_array

from restd.data.histories import Histories, count_leaks, leave_one_out
from restd.errors import ConfigError
from restd.shop import ShopperSpec, ShopSpec, shop_source, shoppers_source
from restd.shop.shoppers import (
    CORE,
    MAX_EVENTS,
    MIN_EVENTS,
    draw_purchases,
    following_leaves,
    shopper_notes,
    thin_to_core,
)
from restd.shop.taxonomy import load_taxonomy
from restd.shop.world import build_world

SMALL = ShopperSpec(items=500, users=600)


def table_of(stream):
    return pa.Table.from_batches(list(stream()))


@cache
def source():
    return shoppers_source(ShopperSpec())


@cache
def histories():
    """Return the default histories, counted in items of the world."""
    ids = table_of(source().items)["id"].combine_chunks()
    purchases, unknown = Histories.of_table(table_of(source().histories)).over(ids)
    assert unknown == 0
    return purchases


@cache
def world():
    return build_world(ShopperSpec().items, 0)


@cache
def log_relative_price():
    """Return the logarithm of each item's price over the median of its leaf."""
    price, leaf = np.log(world().price), world().leaf
    return price - np.array([np.median(price[leaf == position]) for position in range(leaf.max() + 1)])[leaf]


def pairs(*, apart):
    """Return the items that the same user took so many purchases apart, earlier and later."""
    purchases = histories()
    same = purchases.user[apart:] == purchases.user[:-apart]
    return purchases.event_items[:-apart][same], purchases.event_items[apart:][same]


def test_same_spec_gives_the_same_rows():
    first, second = (shoppers_source(SMALL) for _ in range(2))
    assert table_of(first.histories).equals(table_of(second.histories))
    assert table_of(first.histories).equals(table_of(first.histories))
    assert first.notes == second.notes


def test_another_seed_gives_other_shoppers():
    other = shoppers_source(ShopperSpec(items=SMALL.items, users=SMALL.users, seed=1))
    assert not table_of(other.histories).equals(table_of(shoppers_source(SMALL).histories))


def test_shoppers_are_the_same_in_every_language():
    spanish = shoppers_source(ShopperSpec(locale="es", items=SMALL.items, users=SMALL.users))
    assert table_of(spanish.histories).equals(table_of(shoppers_source(SMALL).histories))


def test_items_are_those_of_the_shop():
    spec = ShopperSpec("jp", 500, 100, 3)
    generated = shoppers_source(spec)
    assert table_of(generated.items).equals(table_of(shop_source(ShopSpec("jp", 500, 3)).items))
    assert generated.judgments is None
    assert ShopperSpec(**generated.settings) == spec


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"locale": "fr"}, r"^Unknown locale 'fr'\. Choose one of us, es, jp\.$"),
        ({"items": 499}, r"^Expected 500 to 1,000,000 items, got 499\.$"),
        ({"users": 99}, r"^Expected 100 to 1,000,000 users, got 99\.$"),
        ({"users": 1_000_001}, r"^Expected 100 to 1,000,000 users, got 1,000,001\.$"),
        ({"seed": -1}, r"^Expected a seed of at least 0, got -1\.$"),
    ],
)
def test_impossible_settings_are_refused(setting, message):
    with pytest.raises(ConfigError, match=message):
        ShopperSpec(**setting)


def test_canonical_columns():
    table = table_of(source().histories)
    assert table.schema.names == ["user", "item", "time"]
    assert table.schema.types == [pa.string(), pa.string(), pa.int64()]
    assert sum(column.null_count for column in table.columns) == 0


def test_every_shopper_has_enough_purchases_and_few_have_many():
    lengths = histories().lengths
    assert lengths.min() == MIN_EVENTS
    assert 30 <= lengths.max() <= MAX_EVENTS
    assert 8.5 <= lengths.mean() <= 9.5
    assert len(lengths) > 0.97 * ShopperSpec().users


def test_every_taken_item_has_enough_takers():
    takers = np.bincount(histories().event_items)
    assert takers[takers > 0].min() >= CORE


def test_nobody_takes_an_item_twice():
    drawn = Histories.of_table(table_of(source().histories))
    assert drawn.once() is drawn
    assert count_leaks(drawn) == 0


def test_other_versions_of_an_owned_product_are_rare():
    owned = np.unique(histories().user * len(world()) + world().product[histories().event_items])
    assert len(owned) > 0.97 * histories().events


def test_notes_count_what_there_is():
    purchases = histories()
    notes = " ".join(source().notes)
    assert f"{purchases.events:,} purchases by {len(purchases):,} shoppers" in notes
    assert (
        f"{ShopperSpec().items - len(np.unique(purchases.event_items)):,} of 2,000 items were bought by nobody" in notes
    )


def test_few_shoppers_of_a_large_catalogue_all_stay():
    generated = shoppers_source(ShopperSpec(items=3000, users=100))
    drawn = Histories.of_table(table_of(generated.histories))
    assert len(drawn) == 100
    assert drawn.lengths.min() >= MIN_EVENTS
    assert any("fewer than 5 buyers were not dropped" in note for note in generated.notes)


def test_nothing_is_dropped_where_every_item_has_enough_takers():
    drawn = draw_purchases(build_world(500, 0), 300, 0)
    core = thin_to_core(drawn)
    assert thin_to_core(core) is core
    assert "Dropped 0 purchases and 0 shoppers" in shopper_notes(core, core, 500)[1]


def test_no_two_leaves_follow_each_other():
    leaves, after = load_taxonomy().leaves, following_leaves(load_taxonomy())
    main = np.array([position for position, leaf in enumerate(leaves) if leaf.host < 0])
    assert np.isin(after, main).all()
    assert (after[main] != main).all()
    assert (after[after[main]] != main).all()
    assert len(set(after[main])) == len(main)
    assert np.mean([after[position] == leaves[position].companion for position in main]) > 0.4


def test_accessories_come_after_what_they_fit():
    host, product = world().host, world().product
    for apart in (1, 2):
        earlier, later = pairs(apart=apart)
        after, before = (host[later] == product[earlier]).sum(), (host[earlier] == product[later]).sum()
        assert after > 300
        assert after > 50 * before


def test_leaves_follow_one_way():
    after, leaf = following_leaves(load_taxonomy()), world().leaf
    earlier, later = pairs(apart=1)
    forth, back = after[leaf[earlier]] == leaf[later], after[leaf[later]] == leaf[earlier]
    assert forth.mean() > 0.5
    assert forth.mean() > 10 * back.mean()


def test_a_shopper_keeps_to_a_level_of_price():
    purchases = histories()
    prices = log_relative_price()[purchases.event_items]
    mean = np.bincount(purchases.user, weights=prices) / purchases.lengths
    within = np.sqrt(np.mean((prices - mean[purchases.user]) ** 2))
    assert within < 0.75 * log_relative_price().std()
    assert mean.std() > 0.5 * log_relative_price().std()


def recall(scores, *, count=10):
    """Share of the test's targets among the best items that the history does not hold."""
    test = leave_one_out(histories(), "test")
    scores = np.array(scores, dtype=np.float64)
    for row, (begin, end) in enumerate(zip(test.begin, test.end, strict=True)):
        scores[row, histories().event_items[begin:end]] = -np.inf
    best = np.argpartition(-scores, count, axis=1)[:, :count]
    return float((best == test.targets[:, None]).any(axis=1).mean())


@cache
def known():
    """Return which items each user took before the test, by user and item."""
    purchases = histories()
    events = np.delete(np.arange(purchases.events), leave_one_out(purchases, "test").end)
    ones = np.ones(len(events))
    return csr_array(
        (ones, (purchases.user[events], purchases.event_items[events])), shape=(len(purchases), len(world()))
    )


def by_popularity():
    takers = known().sum(axis=0)
    return np.tile(takers, (len(histories()), 1))


def by_neighbours(last):
    """Score items by how many users took them and the last one, in whatever order."""
    return (known().T @ known()).tocsr()[last].toarray()


def by_rule(last):
    """Score what fits the last item, then the leaf that follows, by brand, colour and price; no purchase is counted."""
    made = world()
    fits = made.host == made.product[last][:, None]
    follows = made.leaf == following_leaves(made.taxonomy)[made.leaf[last]][:, None]
    alike = 2.0 * (made.brand == made.brand[last][:, None]) + 1.5 * (made.color == made.color[last][:, None])
    near = np.minimum(8.0 * (log_relative_price() - 0.8 * log_relative_price()[last][:, None]) ** 2, 40.0)
    return 100.0 * (fits | follows) + 2.0 * fits + alike - near


def test_the_rule_beats_popularity_and_neighbours():
    test = leave_one_out(histories(), "test")
    last = histories().event_items[test.end - 1]
    popularity, neighbours, rule = (recall(scores) for scores in (by_popularity(), by_neighbours(last), by_rule(last)))
    assert popularity < 0.05
    assert neighbours < 0.3
    assert 0.4 < rule < 0.6
    assert rule > neighbours + 0.15
