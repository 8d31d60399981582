"""Training pairs: a text or a history, and the item whose Semantic ID is the answer."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int64, Num

from restd._arrow import pc
from restd.data.catalog import Catalog
from restd.data.dataset import Task, find_table
from restd.data.draws import draw_queries
from restd.data.histories import FEWEST, Histories, Prefixes, Query, count_leaks, leave_one_out
from restd.data.judgments import read_judgments, refuse_unknown_items
from restd.errors import DataError

_HELD_OUT = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Pairs of a text or history and an item; equal numbers in `text` are pairs of the same query."""

    texts: Sequence[Query]
    text: Int64[np.ndarray, "pair"]
    item: Int64[np.ndarray, "pair"]
    queries: int
    """Number of texts that are queries; the texts after them are items' own."""
    draw: Int64[np.ndarray, "pair"] | None = None
    """The draw of pseudo-queries that each pair is of, -1 for one of every epoch; None where all are."""
    grade: Float[np.ndarray, "pair"] | None = None
    """Grade of each pair, 1 for one that nobody judged; None where all are 1."""

    def __len__(self) -> int:
        return len(self.text)

    @property
    def items(self) -> Int64[np.ndarray, "_"]:
        """Distinct items that are in a pair with a query: the training items of the controls."""
        return np.unique(self.item[self.text < self.queries])

    def at_most(self, count: int) -> "Pairs":
        """At most `count` queries per item, selected by a hash of their texts; queries without a pair are removed."""
        draws = np.array([_uniform(str(text)) for text in self.texts])[self.text]
        order = np.lexsort((draws, self.item))
        first = np.searchsorted(self.item[order], self.item[order])
        return self.only(np.sort(order[np.arange(len(order)) - first < count]))

    def only(self, pairs: Int64[np.ndarray, "_"]) -> "Pairs":
        """These pairs, and the queries that have one."""
        numbers, text = np.unique(self.text[pairs], return_inverse=True)
        texts = self.texts.pick(numbers) if isinstance(self.texts, Prefixes) else [self.texts[n] for n in numbers]
        draw, grade = (None if column is None else column[pairs] for column in (self.draw, self.grade))
        return Pairs(texts, text, self.item[pairs], len(numbers), draw, grade)

    def some(self, count: int) -> "Pairs":
        """The pairs of at most `count` queries, drawn as `draw_queries` does; all of them for 0."""
        numbers = np.unique(self.text)
        if not count or count >= len(numbers):
            return self
        return self.only(np.flatnonzero(np.isin(self.text, numbers[draw_queries(len(numbers), count)])))

    def with_queries(self, more: "Pairs") -> "Pairs":
        """Add pairs of other queries, which stand behind those that are there and before the items' own texts."""
        count = len(more.texts)
        shifted = np.where(self.text >= self.queries, self.text + count, self.text)
        return Pairs(
            (*self.texts[: self.queries], *more.texts, *self.texts[self.queries :]),
            np.concatenate([shifted, self.queries + more.text]),
            np.concatenate([self.item, more.item]),
            self.queries + count,
            _joined(-1, self.draw, more.draw, lengths=(len(self), len(more))),
            _joined(1, self.grade, more.grade, lengths=(len(self), len(more))),
        )

    def with_items(self, texts: Sequence[str], rows: Int64[np.ndarray, "_"]) -> "Pairs":
        """Add the indexing task: an item's own text leads to its Semantic ID."""
        own = Pairs(tuple(texts), np.arange(len(texts)), rows, 0)
        return Pairs(
            (*self.texts, *texts),
            np.concatenate([self.text, len(self.texts) + own.text]),
            np.concatenate([self.item, rows]),
            self.queries,
            _joined(-1, self.draw, None, lengths=(len(self), len(own))),
            _joined(1, self.grade, None, lengths=(len(self), len(own))),
        )


def _joined(
    default: int, *columns: Num[np.ndarray, "_"] | None, lengths: tuple[int, ...]
) -> Num[np.ndarray, "pair"] | None:
    """A column of several parts, with the default for parts that lack it; None where all do."""
    if all(column is None for column in columns):
        return None
    filled = (np.full(n, default) if column is None else column for column, n in zip(columns, lengths, strict=True))
    return np.concatenate(list(filled))


class Examples(NamedTuple):
    """Pairs for training and validation."""

    train: Pairs
    valid: Pairs
    remarks: tuple[str, ...]
    """Messages about what was left out."""


def read_examples(data: Path, ids: pa.StringArray, *, task: Task, need_training: bool = True) -> Examples:
    """Pairs of a data set: of judged queries, or of histories and what came next.

    Args:
        data: folder of the data set.
        ids: of the index's items.
        task: whether queries or histories are read.
        need_training: refuse judgments without training pairs; not needed where pseudo-queries are learned.
    """
    return read_pairs(data, ids, need_training=need_training) if task == "search" else read_next_items(data, ids)


def read_next_items(data: Path, ids: pa.StringArray) -> Examples:
    """Every prefix of a user's training events with the item that came next; for validation, one per user."""
    whole, repeats = Histories.read(data)
    histories, unknown = whole.over(ids)
    short = int((histories.full_lengths < FEWEST).sum())
    prefixes = leave_one_out(histories, "train")
    if not len(prefixes):
        raise DataError(
            f"{data} has nothing to train on: none of its {len(histories):,} users has more than the {FEWEST} events "
            f"that leave-one-out needs. Expected users with at least {FEWEST + 1}."
        )
    if leaks := count_leaks(histories):
        raise DataError(f"{leaks:,} held-out items of {data} are in their own history; this should not be possible.")
    remarks = [f"{repeats:,} events repeat an item of the same user; they are left out"] if repeats else []
    if unknown:
        remarks.append(f"{unknown:,} events name items that the index does not have; they are left out")
    if short:
        remarks.append(f"{short:,} users have fewer than {FEWEST} events; they are neither held out nor trained on")
    train, valid = (
        Pairs(part, np.arange(len(part)), part.targets, len(part))
        for part in (prefixes, leave_one_out(histories, "valid"))
    )
    if not len(valid):
        raise DataError(f"No user of {data} has a validation item that the index knows; index the items it names.")
    remarks.append(f"{len(valid):,} users; no held-out item is in its own history or in training (checked)")
    return Examples(train, valid, tuple(remarks))


def read_pairs(data: Path, ids: pa.StringArray, *, need_training: bool = True) -> Examples:
    """Training and validation pairs of judged queries.

    A pair is a judgment with a grade above zero. Where no query is marked for validation, a tenth of the training
    queries is, selected by a hash of their text.

    Args:
        data: folder of the data set.
        ids: of the index's items.
        need_training: refuse judgments without training pairs; without it, validation queries are enough.
    """
    judgments = read_judgments(data)
    known = pc.is_in(judgments["item"], value_set=ids)
    unknown = len(judgments) - pc.sum(known).as_py()
    if unknown == len(judgments):
        refuse_unknown_items(judgments, ids, path=find_table(data, "judgments"))
    positive = judgments.filter(pc.and_(known, pc.greater(judgments["grade"], 0.0)))
    split = np.asarray(positive["split"].to_pylist(), dtype=object)
    if not (split == "train").any() and (need_training or not (split == "valid").any()):
        graded = pc.sum(pc.greater(judgments["grade"], 0.0)).as_py()
        raise DataError(
            f"{data} has no training pairs: of {len(judgments):,} judgments {graded:,} have a grade above zero, and "
            "none of those is in the split 'train' and names an item of the index."
        )
    if not (split == "valid").any():
        split = _with_validation(positive["query"].to_pylist(), split)
    if (need_training and not (split == "train").any()) or not (split == "valid").any():
        raise DataError(f"{data} has too few training queries to hold some out for validation; expected at least two.")
    remarks = (f"{unknown:,} judgments name items that the index does not have; they are left out",) if unknown else ()
    return Examples(_pairs(positive, split == "train", ids), _pairs(positive, split == "valid", ids), remarks)


def _with_validation(queries: list[str], split: np.ndarray) -> np.ndarray:
    """Hold out a tenth of the training queries, and at least one."""
    draws = np.array([_uniform(query) for query in queries])
    train = split == "train"
    bound = max(_HELD_OUT, draws[train].min())
    return np.where(train & (draws <= bound), "valid", split)


def _uniform(text: str) -> float:
    """A number from 0 to 1 that depends on a text alone."""
    return int.from_bytes(hashlib.sha256(f"42 {text}".encode()).digest()[:8]) / 2.0**64


def _pairs(positive: pa.Table, in_split: np.ndarray, ids: pa.StringArray) -> Pairs:
    table = positive.filter(pa.array(in_split))
    encoded = pc.dictionary_encode(table["query"]).unify_dictionaries().combine_chunks()
    texts = tuple(encoded.dictionary.to_pylist())
    rows = pc.index_in(table["item"], value_set=ids).to_numpy()
    stacked = np.stack([encoded.indices.to_numpy().astype(np.int64), rows.astype(np.int64)])
    both, place = np.unique(stacked, axis=1, return_inverse=True)
    grade = np.zeros(both.shape[1])
    np.maximum.at(grade, place.ravel(), table["grade"].to_numpy())  # the same text may have been judged twice
    return Pairs(texts, both[0], both[1], len(texts), grade=grade)


def item_texts(catalog: Catalog, ids: pa.StringArray, *, field: str) -> tuple[list[str], Int64[np.ndarray, "_"]]:
    """Titles (`title`) or whole texts (`text`) of the index's items that have any, and the items' rows."""
    text_of: dict[str, str] = {}
    for batch in catalog.batches():
        texts = batch.column("title").to_pylist() if field == "title" else catalog.texts(batch).to_pylist()
        text_of.update(zip(batch.column("id").to_pylist(), texts, strict=True))
    names = ids.to_pylist()
    rows = [row for row, item in enumerate(names) if text_of.get(item)]
    if not rows:
        raise DataError(f"{catalog.path} has no {field} for any item of the index; set train.indexing=none.")
    return [text_of[names[row]] for row in rows], np.array(rows, np.int64)
