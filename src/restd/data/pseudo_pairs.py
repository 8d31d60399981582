"""Pseudo-queries as training pairs: drawn or from a table, with other items that they fit, never held-out ones."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from jaxtyping import Bool

from restd._arrow import pc
from restd.artifacts import read_manifest
from restd.artifacts.manifest import MANIFEST
from restd.data.attributes import Attributes, attributes_of
from restd.data.catalog import Catalog
from restd.data.dataset import KIND
from restd.data.judgments import read_judgments
from restd.data.own_tables import OWN_TABLES, QUERIES
from restd.data.pairs import Pairs
from restd.data.pseudo_queries import PseudoKind, make_pseudo_queries
from restd.data.word_index import WordIndex


@dataclass(frozen=True, slots=True)
class ItemDescriptions:
    """What the catalogue says about each item of an index, in the index's order; empty for one that it lacks."""

    titles: Sequence[str]
    texts: Sequence[str]
    attributes: Sequence[Attributes]

    def word_index(self) -> WordIndex:
        """Index all words that a pseudo-query of an item can have."""
        parts = zip(self.titles, self.texts, self.attributes, strict=True)
        return WordIndex.of(f"{title}\n{text}\n{attributes.text}" for title, text, attributes in parts)


class _Description(NamedTuple):
    title: str = ""
    text: str = ""
    attributes: Attributes = Attributes((), ())


def describe_items(catalog: Catalog, ids: pa.StringArray) -> ItemDescriptions:
    """Read title, whole text and attributes of every item of an index."""
    of_item: dict[str, _Description] = {}
    for batch in catalog.batches():
        titles, texts = batch.column("title").to_pylist(), catalog.texts(batch).to_pylist()
        described = map(_Description, titles, texts, attributes_of(batch, texts))
        of_item.update(zip(batch.column("id").to_pylist(), described, strict=True))
    rows = [of_item.get(item, _Description()) for item in ids.to_pylist()]
    return ItemDescriptions([row.title for row in rows], [row.text for row in rows], [row.attributes for row in rows])


def pseudo_query_pairs(
    items: ItemDescriptions,
    *,
    per_item: int,
    kinds: Sequence[PseudoKind] = ("keywords",),
    seed: int,
    draws: int = 1,
) -> Pairs:
    """Pseudo-queries from items' own words, as pairs with their items.

    With several draws, each pair has the number of its draw; every draw has the same number of pairs.
    """
    queries, rows = make_pseudo_queries(
        items.titles,
        items.texts,
        attributes=items.attributes,
        per_item=per_item,
        kinds=kinds,
        seed=seed,
        draws=draws,
    )
    numbers = np.arange(len(queries))
    draw = None if draws == 1 else numbers // per_item % draws
    return Pairs(tuple(queries), numbers, rows, len(queries), draw)


def with_fitting_items(
    pairs: Pairs, words: WordIndex, *, most: int, held_out: Bool[np.ndarray, "item"] | None = None
) -> Pairs:
    """Add the items whose words include all words of a query, up to `most` items per query.

    The items a query has already count, and stay even where they are more. Held-out items are not added.
    """
    order = np.argsort(pairs.text, kind="stable")
    starts = np.flatnonzero(np.diff(pairs.text[order], prepend=-1))
    source: list[int] = []
    added: list[int] = []
    for own in np.split(order, starts[1:]) if len(order) else ():
        beside = pairs.item[own].tolist()
        query = str(pairs.texts[int(pairs.text[own[0]])])
        fitting = words.fitting(query, beside=beside, at_most=most - len(beside))
        fitting = [row for row in fitting if held_out is None or not held_out[row]]
        source += [int(own[0])] * len(fitting)
        added += fitting
    take = np.concatenate([np.arange(len(pairs)), np.array(source, np.int64)])
    return replace(
        pairs,
        text=pairs.text[take],
        item=np.concatenate([pairs.item, np.array(added, np.int64)]),
        draw=None if pairs.draw is None else pairs.draw[take],
        grade=None if pairs.grade is None else pairs.grade[take],
    )


def held_out_items(data: Path, ids: pa.StringArray) -> Bool[np.ndarray, "item"] | None:
    """Items whose words nothing may be drawn from, because made-up queries of them validate and test; None where none.

    That is so only where a data set was made of items alone (`restd quickstart` without queries). Elsewhere queries are
    held out, not items.
    """
    if not (data / MANIFEST).is_file():
        return None
    manifest = read_manifest(data)
    if manifest.kind != KIND or manifest.settings.get("source") != OWN_TABLES or QUERIES in manifest.settings:
        return None
    judgments = read_judgments(data)
    rows = pc.index_in(judgments.filter(pc.not_equal(judgments["split"], "train"))["item"], value_set=ids)
    held_out = np.zeros(len(ids), bool)
    held_out[pc.drop_null(rows).to_numpy()] = True
    return held_out


def without_items(pairs: Pairs, held_out: Bool[np.ndarray, "item"] | None) -> Pairs:
    """Leave out pairs with held-out items, and queries that have no other.

    >>> pairs = Pairs(("a", "b"), np.array([0, 1]), np.array([0, 1]), 2)
    >>> without_items(pairs, np.array([True, False])).texts
    ['b']
    """
    return pairs if held_out is None else pairs.only(np.flatnonzero(~held_out[pairs.item]))
