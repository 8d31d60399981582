"""Counts and warnings for a data set, to read before training on it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from restd._arrow import pc
from restd.data.catalog import Catalog
from restd.data.dataset import optional_table
from restd.data.histories import FEWEST, Histories, count_leaks, read_histories
from restd.data.judgments import read_judgments, refuse_unknown_items
from restd.data.schema import SPLITS

_BINS = (0, 1, 2, 3, 5, 9, 17, 33, 65, 129)
"""Lower bounds of the histogram's bins: 0, 1, 2, 3-4, 5-8, 9-16, ..."""


@dataclass(frozen=True, slots=True)
class CatalogCheck:
    """Counts over the items."""

    items: int
    empty_titles: int
    without_text: int
    repeated_texts: int
    """Items whose text is the same as another item's: nothing can tell them apart."""
    categories: int
    """Distinct category paths."""
    depth: int
    without_category: int
    text_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SplitCheck:
    """Counts over the judgments of one split."""

    queries: int
    judgments: int
    positives: int
    without_positives: int
    median_positives: float
    histogram: dict[str, int]


@dataclass(frozen=True, slots=True)
class JudgmentsCheck:
    """Counts over all judgments, and overlap between splits."""

    splits: dict[str, SplitCheck]
    repeated_pairs: int
    contradicting_pairs: int
    """Pairs of query and item that occur with more than one grade."""
    queries_in_two_splits: int
    held_out_positives_unseen: float
    """Share of the positive items of valid and test that are not positive for any training query."""
    items_with_training_query: float


@dataclass(frozen=True, slots=True)
class HistoriesCheck:
    """Counts over the histories before repeats are dropped."""

    users: int
    items: int
    events: int
    median_events: float
    fewest_events: int
    most_events: int
    short: int
    """Users with too few events for leave-one-out."""
    repeats: int
    """Events of an item that the same user has before."""
    leaks: int
    """Held-out items that occur earlier in their own history."""
    unknown_items: int
    """Items that are not in the catalogue."""


@dataclass(frozen=True, slots=True)
class DataCheck:
    """The result of `restd data check`."""

    catalog: CatalogCheck
    judgments: JudgmentsCheck | None
    histories: HistoriesCheck | None = None
    warnings: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def check_data(
    folder: Path,
    *,
    catalog: Catalog | None = None,
    judgment_columns: Mapping[str, str] | None = None,
    history_columns: Mapping[str, str] | None = None,
) -> DataCheck:
    """Check the tables of a data set. What makes it unusable is an error; what is doubtful is counted."""
    catalog = catalog or Catalog(folder)
    ids = catalog.ids()
    items = _check_catalog(catalog)
    judgments = histories = None
    path = optional_table(folder, "judgments") if folder.is_dir() else None
    if path is not None:
        table = read_judgments(path, columns=judgment_columns)
        refuse_unknown_items(table, ids, path=path)
        judgments = check_judgments(table, items=len(ids))
    path = optional_table(folder, "histories") if folder.is_dir() else None
    if path is not None:
        histories = check_histories(Histories.of_table(read_histories(path, columns=history_columns)), ids)
    warnings = (*_warnings(items, judgments), *_history_warnings(histories))
    return DataCheck(items, judgments, histories, warnings)


def _check_catalog(catalog: Catalog) -> CatalogCheck:
    count = empty_titles = without_text = depth = without_category = 0
    digests: list[np.ndarray] = []
    paths: set[tuple[str, ...]] = set()
    for batch in catalog.batches(1 << 14):
        texts = catalog.texts(batch)
        count += batch.num_rows
        empty_titles += pc.sum(pc.equal(batch.column("title"), "")).as_py()
        without_text += pc.sum(pc.equal(texts, "")).as_py()
        # eight bytes per item stand for its text: all texts together may not fit in memory
        digests.append(np.fromiter((hash(text) for text in texts.to_pylist() if text), np.int64))
        lengths = pc.list_value_length(batch.column("category")).to_numpy(zero_copy_only=False)
        without_category += int((lengths == 0).sum())
        depth = max(depth, int(lengths.max(initial=0)))
        paths.update({tuple(path) for path in batch.column("category").to_pylist() if path})
    seen = np.concatenate(digests)
    return CatalogCheck(
        items=count,
        empty_titles=empty_titles,
        without_text=without_text,
        repeated_texts=len(seen) - len(np.unique(seen)),
        categories=len(paths),
        depth=depth,
        without_category=without_category,
        text_columns=tuple(catalog.text_columns),
    )


def check_judgments(table: pa.Table, *, items: int) -> JudgmentsCheck:
    """Count queries, positives, repeats and overlap between splits in a canonical table of judgments."""
    codes = {name: _codes(table[name]) for name in ("query", "item")}
    pair = codes["query"].astype(np.int64) * (int(codes["item"].max()) + 1) + codes["item"]
    graded = np.unique(np.stack([pair, (table["grade"].to_numpy() * 1024).astype(np.int64)]), axis=1)
    positive = table["grade"].to_numpy() > 0
    split = _codes(table["split"], SPLITS)
    query_splits = np.unique(np.stack([codes["query"], split]), axis=1)[0]
    trained = np.unique(codes["item"][positive & (split == 0)])
    held_out = np.unique(codes["item"][positive & (split != 0)])
    distinct = len(np.unique(pair))
    return JudgmentsCheck(
        splits={
            name: _check_split(codes["query"][rows], pair[rows], positive[rows])
            for number, name in enumerate(SPLITS)
            if (rows := split == number).any()
        },
        repeated_pairs=len(pair) - distinct,
        contradicting_pairs=graded.shape[1] - distinct,
        queries_in_two_splits=len(query_splits) - len(np.unique(query_splits)),
        held_out_positives_unseen=float(1 - np.isin(held_out, trained).mean()) if len(held_out) else 0.0,
        items_with_training_query=len(trained) / items,
    )


def check_histories(histories: Histories, ids: pa.StringArray) -> HistoriesCheck:
    """Count users, events, repeats and leaks; `ids` are the catalogue's."""
    lengths = histories.lengths
    short = int((lengths < FEWEST).sum())
    return HistoriesCheck(
        users=len(histories),
        items=len(histories.items),
        events=histories.events,
        median_events=float(np.median(lengths)),
        fewest_events=int(lengths.min()),
        most_events=int(lengths.max()),
        short=short,
        repeats=histories.events - histories.once().events,
        leaks=count_leaks(histories) if short < len(histories) else 0,
        unknown_items=int(pc.sum(pc.invert(pc.is_in(histories.items, value_set=ids))).as_py()),
    )


def _codes(column: pa.ChunkedArray, values: tuple[str, ...] | None = None) -> np.ndarray:
    if values is not None:
        return pc.index_in(column, value_set=pa.array(values)).to_numpy()
    return pc.dictionary_encode(column).unify_dictionaries().combine_chunks().indices.to_numpy()


def _check_split(query: np.ndarray, pair: np.ndarray, positive: np.ndarray) -> SplitCheck:
    queries = np.unique(query)
    _, first = np.unique(pair[positive], return_index=True)
    counts = np.bincount(np.searchsorted(queries, query[positive][first]), minlength=len(queries))
    bins = np.histogram(counts, bins=[*_BINS, np.inf])[0]
    return SplitCheck(
        queries=len(queries),
        judgments=len(query),
        positives=int(counts.sum()),
        without_positives=int((counts == 0).sum()),
        median_positives=float(np.median(counts)),
        histogram={label: int(value) for label, value in zip(_bin_labels(), bins, strict=True)},
    )


def _bin_labels() -> list[str]:
    labels = []
    for low, high in pairwise(_BINS):
        labels.append(str(low) if high == low + 1 else f"{low}-{high - 1}")
    return [*labels, f"{_BINS[-1]}+"]


def _warnings(items: CatalogCheck, judgments: JudgmentsCheck | None) -> list[str]:
    warnings = []
    if items.without_text:
        warnings.append(f"{items.without_text:,} items have no text at all: their codes will be arbitrary.")
    if items.repeated_texts:
        warnings.append(f"{items.repeated_texts:,} items have the same text as another item: only their ids differ.")
    if judgments is None:
        return warnings
    if judgments.queries_in_two_splits:
        warnings.append(
            f"{judgments.queries_in_two_splits:,} queries occur in more than one split: held-out results will be too "
            "good."
        )
    if judgments.contradicting_pairs:
        warnings.append(f"{judgments.contradicting_pairs:,} pairs of query and item have more than one grade.")
    for name, split in judgments.splits.items():
        if split.without_positives:
            warnings.append(
                f"{split.without_positives:,} {name} queries have no positive item and cannot be evaluated."
            )
    return warnings


def _history_warnings(histories: HistoriesCheck | None) -> list[str]:
    warnings = []
    if histories is None:
        return warnings
    if histories.short:
        warnings.append(
            f"{histories.short:,} users have fewer than {FEWEST} events: they are neither trained on nor evaluated."
        )
    if histories.repeats:
        warnings.append(
            f"{histories.repeats:,} events repeat an item of the same user, {histories.leaks:,} held-out items among "
            "them: only the first time counts, so that none leaks."
        )
    if histories.unknown_items:
        warnings.append(
            f"{histories.unknown_items:,} items of the histories are not in the catalogue: their events are dropped."
        )
    return warnings
