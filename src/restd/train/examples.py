"""Training pairs: a text or a history, and the item whose Semantic ID answers it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from restd._arrow import pc
from restd.data import Catalog, Histories, Prefixes, Query, Task, leave_one_out, read_judgments, refuse_unknown_items
from restd.data.dataset import find_table
from restd.data.histories import FEWEST, count_leaks
from restd.errors import DataError
from restd.index import SidIndex

_HELD_OUT = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Pairs of a text or history and an item's row; `text` is also the number of the query the pair belongs to."""

    texts: Sequence[Query]
    text: Int64[np.ndarray, "pair"]
    item: Int64[np.ndarray, "pair"]
    queries: int
    """Texts that are queries; those behind them are items' own."""

    def __len__(self) -> int:
        return len(self.text)

    @property
    def items(self) -> Int64[np.ndarray, "_"]:
        """Distinct items that a query names: what controls call the training items."""
        return np.unique(self.item[self.text < self.queries])

    def at_most(self, count: int) -> "Pairs":
        """Keep at most so many queries an item, chosen by a hash of their texts; queries left without a pair go."""
        draws = np.array([_uniform(str(text)) for text in self.texts])[self.text]
        order = np.lexsort((draws, self.item))
        first = np.searchsorted(self.item[order], self.item[order])
        kept = np.sort(order[np.arange(len(order)) - first < count])
        return self._only(kept)

    def _only(self, pairs: Int64[np.ndarray, "_"]) -> "Pairs":
        """These pairs, and the queries that have one."""
        numbers, text = np.unique(self.text[pairs], return_inverse=True)
        texts = self.texts.pick(numbers) if isinstance(self.texts, Prefixes) else [self.texts[n] for n in numbers]
        return Pairs(texts, text, self.item[pairs], len(numbers))

    def some(self, count: int) -> "Pairs":
        """The pairs of at most so many queries, evenly spaced; all of them for 0."""
        asked = np.unique(self.text)
        if not count or count >= len(asked):
            return self
        chosen = asked[np.linspace(0, len(asked) - 1, count).round().astype(np.int64)]
        return self._only(np.flatnonzero(np.isin(self.text, chosen)))

    def with_items(self, texts: Sequence[str], rows: Int64[np.ndarray, "_"]) -> "Pairs":
        """Add the indexing task: an item's own text leads to its Semantic ID."""
        numbers = len(self.texts) + np.arange(len(texts))
        return replace(
            self,
            texts=(*self.texts, *texts),
            text=np.concatenate([self.text, numbers]),
            item=np.concatenate([self.item, rows]),
        )


class Examples(NamedTuple):
    """What a run learns from and is validated on."""

    train: Pairs
    valid: Pairs
    said: tuple[str, ...]
    """What was left out, for a person."""


def read_examples(data: Path, index: SidIndex, *, task: Task) -> Examples:
    """Pairs of a data set: of judged queries, or of histories and what came next."""
    return read_pairs(data, index) if task == "search" else read_next_items(data, index)


def read_next_items(data: Path, index: SidIndex) -> Examples:
    """Every prefix of a user's training events with the item that came next; of validation, each user's one."""
    whole, repeats = Histories.read(data)
    histories, unknown = whole.over(index.table.ids)
    short = int((histories.taken_in_all < FEWEST).sum())
    held = leave_one_out(histories, "train")
    if not len(held):
        raise DataError(
            f"{data} has nothing to train on: of {len(histories):,} users none has more than the {FEWEST} events that "
            "leave-one-out needs; wanted users with at least four."
        )
    if leaks := count_leaks(histories):
        raise DataError(f"{leaks:,} held-out items of {data} stand in their own history; this should not be possible.")
    said = [f"{repeats:,} events repeat an item their user already took; they are left out"] if repeats else []
    if unknown:
        said.append(f"{unknown:,} events name items that the index does not have; they are left out")
    if short:
        said.append(f"{short:,} users have fewer than {FEWEST} events; nothing of theirs is held out or trained on")
    train, valid = (
        Pairs(part, np.arange(len(part)), part.targets, len(part)) for part in (held, leave_one_out(histories, "valid"))
    )
    if not len(valid):
        raise DataError(f"No user of {data} has a validation item that the index knows; index the items it names.")
    said.append(f"{len(valid):,} users; no held-out item is in its own history or in training (checked)")
    return Examples(train, valid, tuple(said))


def read_pairs(data: Path, index: SidIndex) -> Examples:
    """Training and validation pairs of judged queries.

    A pair is a judgment with a grade above zero. Where no query is marked for validation, a tenth of the training
    queries is, chosen by a hash of their text.
    """
    judgments = read_judgments(data)
    ids = index.table.ids
    known = pc.is_in(judgments["item"], value_set=ids)
    unknown = len(judgments) - pc.sum(known).as_py()
    if unknown == len(judgments):
        refuse_unknown_items(judgments, ids, path=find_table(data, "judgments"))
    positive = judgments.filter(pc.and_(known, pc.greater(judgments["grade"], 0.0)))
    split = np.asarray(positive["split"].to_pylist(), dtype=object)
    if not (split == "train").any():
        graded = pc.sum(pc.greater(judgments["grade"], 0.0)).as_py()
        raise DataError(
            f"{data} holds no training pairs: of {len(judgments):,} judgments {graded:,} have a grade above zero, and "
            "none of those is in the split 'train' and names an item of the index."
        )
    if not (split == "valid").any():
        split = _with_validation(positive["query"].to_pylist(), split)
    if not (split == "train").any() or not (split == "valid").any():
        raise DataError(f"{data} has too few training queries to hold some out for validation; wanted at least two.")
    said = (f"{unknown:,} judgments name items that the index does not have; they are left out",) if unknown else ()
    return Examples(_pairs(positive, split == "train", index), _pairs(positive, split == "valid", index), said)


def _with_validation(queries: list[str], split: np.ndarray) -> np.ndarray:
    """Hold out a tenth of the training queries, and at least one."""
    draws = np.array([_uniform(query) for query in queries])
    train = split == "train"
    bound = max(_HELD_OUT, draws[train].min())
    return np.where(train & (draws <= bound), "valid", split)


def _uniform(text: str) -> float:
    """A number from 0 to 1 that depends on a text alone."""
    return int.from_bytes(hashlib.sha256(f"42 {text}".encode()).digest()[:8]) / 2.0**64


def _pairs(positive: pa.Table, chosen: np.ndarray, index: SidIndex) -> Pairs:
    table = positive.filter(pa.array(chosen))
    encoded = pc.dictionary_encode(table["query"]).unify_dictionaries().combine_chunks()
    texts = tuple(encoded.dictionary.to_pylist())
    rows = index.table.rows(table["item"].to_pylist())
    both = np.unique(np.stack([encoded.indices.to_numpy().astype(np.int64), rows.astype(np.int64)]), axis=1)
    return Pairs(texts, both[0], both[1], len(texts))


def item_texts(catalog: Catalog, index: SidIndex, *, what: str) -> tuple[list[str], Int64[np.ndarray, "_"]]:
    """Titles or whole texts of the index's items that have any, and their rows."""
    found: dict[str, str] = {}
    for batch in catalog.batches():
        texts = batch.column("title").to_pylist() if what == "title" else catalog.texts(batch).to_pylist()
        found.update(zip(batch.column("id").to_pylist(), texts, strict=True))
    rows = [row for row, item in enumerate(index.table.ids.to_pylist()) if found.get(item)]
    if not rows:
        raise DataError(f"{catalog.path} has no {what} for any item of the index; set train.indexing=none.")
    ids = index.table.ids
    return [found[ids[row].as_py()] for row in rows], np.array(rows, np.int64)
