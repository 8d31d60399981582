"""Holding items out of a data set: what a search may know of, and what is added to it later."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Bool

from restd._arrow import pc
from restd.artifacts import hash_file
from restd.data.catalog import Catalog
from restd.data.dataset import find_table, optional_table
from restd.data.draws import draw_of_text
from restd.data.judgments import read_judgments
from restd.data.source import Source
from restd.errors import ConfigError, DataError

ANSWERS = "answers"
"""Column of the judgments of new items: which items answer the query."""
ONLY_NEW, ALSO_KNOWN = "new", "new and known"
_EVALUATED = ("valid", "test")
"""Splits of new items that are kept; what training would learn from is in neither part."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A data set in two parts that have no item in common.

    Args:
        known: the data set as if the held-out items did not exist.
        new: the held-out items, and the validation and test judgments that name them.
    """

    known: Source
    new: Source


def hold_out_items(
    data: Path,
    *,
    share: float = 0.1,
    seed: int = 0,
    columns: Mapping[str, str] | None = None,
    judgment_columns: Mapping[str, str] | None = None,
) -> HeldOut:
    """Hold a share of the items out of a data set with judgments.

    Items are drawn by a hash of their id and the seed, so neither their order nor the other items matter. `known` has
    no judgment of a held-out item in any split, and no query that only held-out items answer. The queries of `new` keep
    their ids, texts and splits; the column `answers` tells those that known items answer too.

    Args:
        data: folder with items and judgments.
        share: of the items that are held out, above 0 and below 1.
        seed: random seed of the draw.
        columns: names of columns of the items, as `Catalog` takes them.
        judgment_columns: the same for the judgments.
    """
    if not 0.0 < share < 1.0:
        raise ConfigError(f"The share of held-out items must be above 0 and below 1, got {share:g}.")
    if data.is_dir() and optional_table(data, "judgments") is None:
        raise DataError(
            f"{data} has no judgments. Expected items with judged queries: what is found is measured by them."
        )
    catalog = Catalog(data, columns=columns or {})
    ids = catalog.ids()
    is_new = _drawn(ids, share, seed)
    if not 0 < is_new.sum() < len(ids):
        raise DataError(
            f"{int(is_new.sum()):,} of the {len(ids):,} items of {data} were drawn; expected some, and not all. Choose "
            "another share or seed."
        )
    held_out = ids.filter(pa.array(is_new))
    judgments = read_judgments(data, columns=judgment_columns)
    parts = _Judgments.split(judgments, held_out)
    if not pc.any(pc.equal(parts.new["split"], "test")).as_py():
        raise DataError(
            f"None of the {len(held_out):,} held-out items of {data} answers a test query; hold out more of them, or "
            "mark more queries as test."
        )
    train = parts.known.filter(pc.equal(parts.known["split"], "train"))
    if not pc.any(pc.greater(train["grade"], 0.0)).as_py():
        raise DataError(
            f"Without the {len(held_out):,} held-out items, {data} has no training query with an answer left; hold out "
            "fewer."
        )
    settings = {"items": hash_file(find_table(data, "items")), "share": share, "seed": seed}
    notes = [f"{len(held_out):,} of {len(ids):,} items are held out", *parts.notes]
    if repeated := _repeated_texts(catalog, held_out):
        notes.append(f"{repeated:,} held-out items have the same text as a known one")
    if optional_table(data, "histories") is not None:
        notes.append("histories are left out: only judged queries are held out by item")
    return HeldOut(
        _source("known", settings, catalog, parts.known, held_out, keep=lambda named: pc.invert(named), notes=()),
        _source("new", settings, catalog, parts.new, held_out, keep=lambda named: named, notes=tuple(notes)),
    )


def _drawn(ids: pa.StringArray, share: float, seed: int) -> Bool[np.ndarray, "item"]:
    return np.fromiter((draw_of_text(item.as_py(), seed=seed) < share for item in ids), bool, len(ids))


@dataclass(frozen=True, slots=True)
class _Judgments:
    """Judgments of known items, and judgments of new ones."""

    known: pa.Table
    new: pa.Table
    notes: tuple[str, ...]

    @classmethod
    def split(cls, judgments: pa.Table, held_out: pa.StringArray) -> "_Judgments":
        named = pc.is_in(judgments["item"], value_set=held_out).to_numpy()
        positive = pc.greater(judgments["grade"], 0.0).to_numpy()
        query = pc.binary_join_element_wise(judgments["split"], judgments["query_id"], "\t")
        number = pc.dictionary_encode(query).unify_dictionaries().combine_chunks().indices.to_numpy()
        by_new, by_known = (np.bincount(number, weights=positive & part) > 0 for part in (named, ~named))
        orphan = (by_new & ~by_known)[number]
        evaluated = pc.is_in(judgments["split"], value_set=pa.array(_EVALUATED)).to_numpy()
        own = named & by_new[number] & evaluated
        answers = np.where(by_known[number], ALSO_KNOWN, ONLY_NEW)[own]
        new = judgments.filter(pa.array(own))
        if ANSWERS in new.column_names:
            new = new.drop_columns([ANSWERS])
        new = new.append_column(ANSWERS, pa.array(answers.tolist(), pa.string()))
        notes = []
        for split in _EVALUATED:
            rows = new.filter(pc.equal(new["split"], split))
            queries, both = (
                pc.count_distinct(part["query_id"]).as_py()
                for part in (rows, rows.filter(pc.equal(rows[ANSWERS], ALSO_KNOWN)))
            )
            notes.append(f"{queries:,} {split} queries have a held-out answer, {both:,} of them a known one too")
        dropped = int((named & ~evaluated).sum())
        notes.append(f"{dropped:,} training judgments name held-out items; they are in neither part")
        return cls(judgments.filter(pa.array(~named & ~orphan)), new, tuple(notes))


def _source(
    name: str,
    settings: Mapping[str, Any],
    catalog: Catalog,
    judgments: pa.Table,
    held_out: pa.StringArray,
    *,
    keep: Callable[[pa.Array], pa.Array],
    notes: tuple[str, ...],
) -> Source:
    def items() -> Iterator[pa.RecordBatch]:
        for batch in catalog.batches():
            kept = batch.filter(keep(pc.is_in(batch.column("id"), value_set=held_out)))
            if kept.num_rows:
                yield kept

    def rows() -> Iterator[pa.RecordBatch]:
        yield from judgments.to_batches()

    return Source(f"{name} items", {"hold_out": {**settings, "part": name}}, items, rows, notes=notes)


def _repeated_texts(catalog: Catalog, held_out: pa.StringArray) -> int:
    """Held-out items whose whole text a known item has too."""
    texts = pa.array(catalog.texts_of(held_out.to_pylist()), pa.string())
    repeated = np.zeros(len(texts), bool)
    for batch in catalog.batches():
        known = batch.filter(pc.invert(pc.is_in(batch.column("id"), value_set=held_out)))
        if known.num_rows:
            repeated |= pc.is_in(texts, value_set=catalog.texts(known)).to_numpy(zero_copy_only=False)
    return int(repeated.sum())
