"""The generated shop: one world in three languages, and grades that follow from it by rule."""

import re
from collections import Counter, defaultdict
from functools import cache

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from restd.data.schema import GRADES, JUDGMENTS, SPLITS
from restd.errors import ConfigError
from restd.shop import ShopSpec, shop_source
from restd.shop.intents import Facet, build_catalogue, facet_column
from restd.shop.judgment_rows import queries_with_text
from restd.shop.lexicon import load_lexicon
from restd.shop.names import brand_count, draw_brands
from restd.shop.queries import INDEXED, KINDS, draw_queries, quota
from restd.shop.query_text import clean_texts, query_texts
from restd.shop.spelling import misspell
from restd.shop.taxonomy import load_taxonomy
from restd.shop.world import build_world

LOCALES = ("us", "es", "jp")
SIZES = (500, 3000)


@cache
def items_of(locale, items, seed=0):
    return pa.Table.from_batches(list(shop_source(ShopSpec(locale, items, seed)).items()))


@cache
def judgments_of(locale, items, seed=0):
    return pa.Table.from_batches(list(shop_source(ShopSpec(locale, items, seed)).judgments()))


@cache
def world_and_queries(locale, items, seed=0):
    """Return the world, the queries and their texts behind the judgments."""
    shop = build_catalogue(build_world(items, seed), INDEXED)
    queries, texts = queries_with_text(shop, load_lexicon(locale), seed)
    return shop.world, queries, texts.to_pylist()


def by_query(table, column):
    values = {}
    for query, value in zip(table["query_id"].to_pylist(), table[column].to_pylist(), strict=True):
        values.setdefault(query, value)
    return values


@pytest.mark.parametrize("locale", LOCALES)
def test_same_spec_gives_the_same_rows(locale):
    source = shop_source(ShopSpec(locale, 700, 5))
    assert pa.Table.from_batches(list(source.items())).equals(pa.Table.from_batches(list(source.items())))
    assert source.judgments is not None
    assert pa.Table.from_batches(list(source.judgments())).equals(judgments_of(locale, 700, 5))


def test_another_seed_gives_another_world():
    assert items_of("us", 500, 0)["title"].to_pylist() != items_of("us", 500, 1)["title"].to_pylist()
    assert judgments_of("us", 500, 0)["query"].to_pylist() != judgments_of("us", 500, 1)["query"].to_pylist()


def test_locales_describe_one_world():
    tables = [items_of(locale, 3000) for locale in LOCALES]
    for column in ("id", "price", "popularity"):
        assert tables[0][column].equals(tables[1][column])
        assert tables[0][column].equals(tables[2][column])
    assert tables[0]["brand"].equals(tables[1]["brand"])
    for column in ("brand", "category"):
        names = [table[column].to_pylist() for table in tables]
        pairs = {(str(us), str(jp)) for us, jp in zip(names[0], names[2], strict=True)}
        assert len(pairs) == len({us for us, _ in pairs}) == len({jp for _, jp in pairs})
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert tables[first]["title"].to_pylist() != tables[second]["title"].to_pylist()


@pytest.mark.parametrize("locale", LOCALES)
def test_schema_and_texts(locale):
    table = items_of(locale, 3000)
    types = {name: table.schema.field(name).type for name in table.schema.names}
    assert types["category"] == pa.list_(pa.string())
    assert types["price"] == types["popularity"] == pa.float32()
    assert judgments_of(locale, 3000).schema == JUDGMENTS.append(pa.field("kind", pa.string()))
    assert table["id"].to_pylist() == [f"S{number:07d}" for number in range(3000)]
    for name in ("title", "brand", "color", "description"):
        assert table[name].null_count == 0
        for text in table[name].to_pylist():
            assert text.strip() == text
            assert text
            assert not re.search(r"[{}|]|  |\bNone\b", text), text
    assert min(table["price"].to_pylist()) > 0
    assert len(set(table["title"].to_pylist())) > 0.95 * 3000


@pytest.mark.parametrize("items", [499, 1_000_001, 0])
def test_sizes_outside_the_limits_are_refused(items):
    with pytest.raises(ConfigError, match=rf"^Expected 500 to 1,000,000 items, got {items:,}\.$"):
        ShopSpec(items=items)


def test_unknown_locale_and_seed_are_refused():
    with pytest.raises(ConfigError, match=r"'fr'.*us, es, jp"):
        ShopSpec(locale="fr")
    with pytest.raises(ConfigError, match=r"^Expected a seed of at least 0, got -1\.$"):
        ShopSpec(seed=-1)


def test_source_settings_make_the_same_shop():
    spec = ShopSpec("jp", 500, 3)
    source = shop_source(spec)
    assert source.name == "shop"
    assert ShopSpec(**source.settings) == spec


def test_tree_is_deep_and_wide():
    for locale in LOCALES:
        paths = {tuple(path) for path in items_of(locale, 500)["category"].to_pylist()}
        assert len(paths) >= 60
        assert min(map(len, paths)) >= 3
    assert len({leaf.key for leaf in load_taxonomy().leaves}) == len(load_taxonomy().leaves)


@pytest.mark.parametrize("locale", LOCALES)
def test_every_table_of_words_is_used_and_complete(locale):
    tree, words = load_taxonomy(), load_lexicon(locale)
    expected = {
        "noun": len(tree.leaves),
        "color": len(tree.colors),
        "material": len(tree.materials),
        "size": len(tree.sizes),
        "feature": len(tree.features),
    }
    for side in (words.shop, words.customer):
        for name, count in expected.items():
            assert len(side[name].count) == count
            assert side[name].count.min() >= 1


def test_versions_of_a_product_differ():
    world = build_world(3000, 0)
    versions = set(zip(world.product.tolist(), world.color.tolist(), world.size.tolist(), strict=True))
    assert len(versions) == len(world)


def test_accessories_fit_products_of_their_host_leaf():
    world = build_world(3000, 0)
    leaf_of_product = dict(zip(world.product.tolist(), world.leaf.tolist(), strict=True))
    for leaf, host in zip(world.leaf.tolist(), world.host.tolist(), strict=True):
        expected = world.taxonomy.leaves[leaf].host
        assert (leaf_of_product[host] if host >= 0 else -1) == expected


def test_model_names_are_unique_within_a_brand():
    world = build_world(3000, 0)
    names = list(zip(world.product_brand.tolist(), world.models, strict=True))
    assert len(set(names)) == len(names)
    assert len({brand.latin for brand in world.brands}) == len({brand.kana for brand in world.brands})


def test_brands_are_many_and_never_a_name_that_exists():
    small, large = (draw_brands(brand_count(items), np.random.default_rng(0)) for items in (500, 1_000_000))
    names = {brand.latin for brand in large}
    assert len(small) < len(large) == len(names) == len({brand.kana for brand in large})
    assert not names & {"Jordan", "Fenwick", "Belavia", "Bravia", "Miramax"}


def test_popularity_is_skewed_and_shows_in_training():
    table = judgments_of("us", 3000)
    popularity = np.array(items_of("us", 3000)["popularity"].to_pylist())
    assert np.sort(popularity)[-300:].sum() > 0.35 * popularity.sum()
    seen = Counter(
        item
        for item, split, grade in zip(*(table[name].to_pylist() for name in ("item", "split", "grade")), strict=True)
        if split == "train" and grade > 0
    )
    counts = np.array([seen[f"S{number:07d}"] for number in range(3000)])
    order = np.argsort(-popularity)
    assert counts[order[:300]].mean() > 2 * counts[order[-1500:]].mean()
    assert (counts > 0).mean() > 0.8


def rule(world, leaf, facets, item):
    """Grade by the attributes alone, sharing no code with the generator's search."""
    meets = world.leaf == leaf
    for facet, value in facets.items():
        meets &= facet_column(world, facet) == value
    if world.leaf[item] == leaf:
        return GRADES["E"] if meets[item] else GRADES["S"]
    exact = np.flatnonzero(meets)
    fits = world.host[item] in set(world.product[exact])
    fitted = world.product[item] in set(world.host[exact]) - {-1}
    companion = world.taxonomy.leaves[leaf].companion == world.leaf[item] and Facet.BRAND in facets
    matching = all(
        facet_column(world, facet)[item] == value
        for facet, value in facets.items()
        if facet in (Facet.BRAND, Facet.COLOR)
    )
    return GRADES["C"] if fits or fitted or (companion and matching) else GRADES["I"]


@pytest.mark.parametrize("items", SIZES)
def test_every_grade_follows_from_the_attributes(items):
    world, queries, texts = world_and_queries("us", items)
    table = judgments_of("us", items)
    seen = Counter()
    for query, text, item, grade in zip(
        *(table[name].to_pylist() for name in ("query_id", "query", "item", "grade")), strict=True
    ):
        row, position = int(query[1:]), int(item[1:])
        assert texts[row] == text
        leaf, facets = queries.intent(world, row)
        assert rule(world, leaf, facets, position) == grade
        if grade == GRADES["S"]:
            assert sum(facet_column(world, facet)[position] != value for facet, value in facets.items()) == 1
        if grade == GRADES["I"]:
            nodes = world.taxonomy.leaves
            assert nodes[leaf].department == nodes[world.leaf[position]].department
        seen[grade] += 1
    assert set(seen) == set(GRADES.values())


@pytest.mark.parametrize("locale", LOCALES)
@pytest.mark.parametrize("items", SIZES)
def test_no_split_asks_what_another_asks(locale, items):
    world, queries, texts = world_and_queries(locale, items)
    pairs, strings = defaultdict(set), defaultdict(set)
    for row, text in enumerate(texts):
        leaf, facets = queries.intent(world, row)
        split = SPLITS[queries.split[row]]
        pairs[split].add((leaf, frozenset(facets.items())))
        strings[split].add(text)
    for held_out in ("valid", "test"):
        for other in set(SPLITS) - {held_out}:
            assert not pairs[held_out] & pairs[other]
            assert not strings[held_out] & strings[other]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("locale", LOCALES)
@pytest.mark.parametrize("items", SIZES)
def test_numbers_of_queries_and_positives(locale, items):
    table = judgments_of(locale, items)
    splits, kinds = by_query(table, "split"), by_query(table, "kind")
    count = Counter(splits.values())
    expected = quota(items)
    assert count == {"train": expected.train, "valid": expected.held_out, "test": expected.held_out}
    assert count["train"] >= items / 2
    positives = Counter(
        query
        for query, grade in zip(table["query_id"].to_pylist(), table["grade"].to_pylist(), strict=True)
        if grade > 0
    )
    for split in SPLITS:
        queries_of_split = [query for query, query_split in splits.items() if query_split == split]
        assert 4 <= np.median([positives[query] for query in queries_of_split]) <= 8
        shares = Counter(kinds[query] for query in queries_of_split)
        assert set(shares) == set(KINDS)
        assert all(0.02 < number / len(queries_of_split) < 0.5 for number in shares.values())


@pytest.mark.parametrize("locale", LOCALES)
def test_judged_items_exist_and_are_judged_once(locale):
    table = judgments_of(locale, 3000)
    assert set(table["item"].to_pylist()) <= set(items_of(locale, 3000)["id"].to_pylist())
    pairs = list(zip(table["query_id"].to_pylist(), table["item"].to_pylist(), strict=True))
    assert len(set(pairs)) == len(pairs)
    assert all(text and text.strip() == text and "  " not in text for text in table["query"].to_pylist())


@pytest.mark.parametrize("locale", LOCALES)
def test_a_misspelt_query_differs_from_its_clean_form(locale):
    world = build_world(1000, 0)
    queries = draw_queries(build_catalogue(world, INDEXED), 0)
    words = load_lexicon(locale)
    clean = clean_texts(world, words, queries, np.random.default_rng([0, 4])).to_pylist()
    texts = query_texts(world, words, queries, 0).to_pylist()
    wrong = queries.kind == KINDS.index("misspelt")
    changed = np.array([before != after for before, after in zip(clean, texts, strict=True)])
    assert wrong.any()
    assert (changed == wrong).all()


@settings(max_examples=200, deadline=None)
@given(
    text=st.lists(st.text("abcdeáñ0123", min_size=1, max_size=8), min_size=1, max_size=5).map(" ".join),
    draw=st.integers(0, 1 << 30),
    kana=st.booleans(),
)
def test_a_slip_always_changes_the_text(text, draw, kana):
    assert misspell(text, draw, kana=kana, misspellings=[("ab", "ba")]) != text


def test_words_alone_do_not_give_the_answer_away():
    """A need described in words shares no noun with the titles of most of its exact items."""
    table = judgments_of("us", 3000)
    titles = [set(re.findall(r"\w+", title.lower())) for title in items_of("us", 3000)["title"].to_pylist()]
    shared = [
        bool(set(re.findall(r"[a-z]{4,}", query)) & titles[int(item[1:])])
        for query, item, grade, kind in zip(
            *(table[name].to_pylist() for name in ("query", "item", "grade", "kind")), strict=True
        )
        if kind == "need" and grade == GRADES["E"]
    ]
    assert np.mean(shared) < 0.6
