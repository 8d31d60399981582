"""What a dual encoder is trained on: pairs, hard negatives, and texts as the frozen encoder gives them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from restd.artifacts import hash_json
from restd.data import Pairs, read_pairs
from restd.data.categories import read_category_paths
from restd.data.pseudo_pairs import describe_items, held_out_items, pseudo_query_pairs, without_items
from restd.encode import Encoder, Ragged, RememberedEncoder, TokenEncoder, encode_texts, states_of
from restd.encode.tokens import texts_hash
from restd.errors import ConfigError, DataError, MissingExtraError
from restd.quantize.known_pairs import KnownPairs
from restd.rankers.bm25 import Bm25
from restd.rankers.dual_network import Batch
from restd.rankers.dual_settings import DualConfig, LaserConfig
from restd.rankers.registry import RankerContext
from restd.snapshot import Snapshot

_VALIDATION = 2_000
_SEPARATOR = " > "


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """Texts as an encoder gives them.

    Args:
        strings: the texts themselves.
        vectors: one per text, of length one where cosines are compared.
        states: token states, where they are read.
        live: whether an encoder that is trained reads the strings, instead of what was computed before.
    """

    strings: Sequence[str]
    vectors: Float[Tensor, "text dim"]
    states: Ragged | None
    live: bool = False

    def __len__(self) -> int:
        return len(self.strings)

    def batch(self, rows: Int64[np.ndarray, "row"]) -> Batch:
        """Some of the texts."""
        if self.live:
            return Batch(texts=[self.strings[row] for row in map(int, rows)])
        states = None if self.states is None else self.states.batch(rows)
        return Batch(self.vectors[torch.from_numpy(rows)], states)


@dataclass(frozen=True, slots=True)
class TextReader:
    """Turns strings into `Texts` by a frozen encoder, alike in training and in searches.

    Args:
        encoder: of this side's texts.
        config: whether lengths count, and where token states are cut.
        tokens: whether token states are read.
        live: whether a trained encoder will read the strings.
    """

    encoder: Encoder
    config: DualConfig
    tokens: bool
    live: bool = False

    def read(
        self,
        strings: Sequence[str],
        *,
        vectors: Float[np.ndarray, "text dim"] | None = None,
        cache: Path | None = None,
    ) -> Texts:
        """Encode texts.

        Args:
            strings: the texts.
            vectors: theirs, where they are known.
            cache: folder where token states are kept, each set in one of its own; in memory without it.
        """
        if self.live:
            return Texts(strings, torch.zeros(len(strings), 0), None, live=True)
        if vectors is None:
            vectors = np.asarray(encode_texts(self.encoder, strings))
        given = torch.from_numpy(np.ascontiguousarray(vectors, np.float32))
        if self.config.similarity == "cosine":
            given = torch.nn.functional.normalize(given, dim=-1)
        states = None
        if self.tokens:
            encoder, limit = unwrapped(self.encoder), self.config.max_tokens
            if cache is not None:
                cache = cache / hash_json([encoder.identity, limit, texts_hash(strings)])[:16]
            states = states_of(encoder, strings, limit=limit, cache=cache)
        return Texts(strings, given, states)


def unwrapped(encoder: Encoder) -> Encoder:
    """The encoder behind one that remembers vectors, which has no token states."""
    return encoder.inner if isinstance(encoder, RememberedEncoder) else encoder


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Pairs for training and validation, before anything is encoded.

    Args:
        train: training pairs.
        valid: pairs to choose the number of epochs by.
        explicit: for each training pair the query with its item's category path written out, empty without a path;
            None where it is not read.
        items: texts of all items.
    """

    train: Pairs
    valid: Pairs
    explicit: tuple[str, ...] | None
    items: Sequence[str]

    @classmethod
    def read(cls, context: RankerContext, config: DualConfig) -> "Examples":
        """Read the pairs of a data set; what is missing for the settings is an error."""
        snapshot = context.with_texts()
        train, valid, _ = read_pairs(context.data, snapshot.ids, need_training=not config.pseudo_queries)
        if config.pseudo_queries:
            train = train.with_queries(_pseudo_queries(context, snapshot, config))
        explicit = None
        if isinstance(config, LaserConfig) and config.uses_explicit_view:
            explicit = _explicit_texts(train, snapshot)
        return cls(train, valid.some(_VALIDATION), explicit, snapshot.items.texts())

    def identity(self) -> dict[str, str]:
        """Hashes of all that is learned from."""
        pairs = [
            hashlib.sha256(np.stack([part.text, part.item]).astype(np.int64).tobytes()).hexdigest()
            for part in (self.train, self.valid)
        ]
        texts = [texts_hash(list(map(str, part.texts))) for part in (self.train, self.valid)]
        explicit = "" if self.explicit is None else texts_hash(self.explicit)
        return {"pairs": hash_json([pairs, texts]), "explicit": explicit, "items": texts_hash(self.items)}


def _pseudo_queries(context: RankerContext, snapshot: Snapshot, config: DualConfig) -> Pairs:
    catalog = snapshot.items.catalog
    assert catalog is not None
    items = describe_items(catalog, snapshot.ids)
    drawn = pseudo_query_pairs(items, per_item=config.pseudo_queries, seed=config.seed)
    return without_items(drawn, held_out_items(context.data, snapshot.ids))


def _explicit_texts(train: Pairs, snapshot: Snapshot) -> tuple[str, ...]:
    """Each pair's query with the category path of its item as its reasoning: a surrogate for a chain of thought."""
    catalog = snapshot.items.catalog
    assert catalog is not None
    paths = read_category_paths(catalog, snapshot.ids)
    if paths is None:
        raise DataError(
            f"LaSER's explicit view is the category path of an item, and {catalog.path} has no categories. Map the "
            "column that has them to 'category', or train without this view: --set laser.view_weight=0 --set "
            "laser.explicit_weight=0 --set laser.step_weight=0."
        )
    return tuple(
        f"{train.texts[text]}. category: {_SEPARATOR.join(paths[item])}" if paths[item] else ""
        for text, item in zip(train.text.tolist(), train.item.tolist(), strict=True)
    )


def hard_negatives(
    snapshot: Snapshot, train: Pairs, known: KnownPairs, config: DualConfig
) -> Int64[np.ndarray, "query depth"]:
    """For each query, BM25's best items that do not answer it, best first; -1 where there are no more."""
    try:
        bm25 = Bm25.of(snapshot)
    except MissingExtraError as error:
        raise ConfigError(
            f"{error} It chooses hard negatives: install it, or train without them, --set {config.section}"
            ".hard_negatives=0."
        ) from error
    texts = list(map(str, train.texts))
    rows = bm25.rank(texts, config.depth)[0].astype(np.int64)
    query = np.arange(len(texts))[:, None]
    answers = np.isin(query * known.items + rows, known.keys.numpy())
    kept = np.where(answers, -1, rows)
    order = np.argsort(kept < 0, axis=1, kind="stable")  # what is left moves to the front
    return np.take_along_axis(kept, order, axis=1)


def draw_negatives(
    ranked: Int64[np.ndarray, "query depth"],
    chosen: Int64[np.ndarray, "row"],
    *,
    per_row: int,
    items: int,
    seed: tuple[int, ...],
) -> Int64[np.ndarray, "row _"]:
    """Draw hard negatives for the queries `chosen`; a query without any gets random items.

    >>> draw_negatives(np.array([[4, 2, -1]]), np.array([0]), per_row=2, items=9, seed=(0,)).max() <= 4
    np.True_
    """
    rng = np.random.default_rng(seed)
    counts = (ranked[chosen] >= 0).sum(axis=1)[:, None]
    place = (rng.random((len(chosen), per_row)) * np.maximum(counts, 1)).astype(np.int64)
    drawn = np.take_along_axis(ranked[chosen], place, axis=1)
    return np.where(counts > 0, drawn, rng.integers(items, size=drawn.shape))


@dataclass(frozen=True, slots=True, eq=False)
class ExplicitView:
    """Queries with their reasoning written out.

    Args:
        texts: each different one.
        row: row of each pair's text; -1 for a pair without a category path.
        start: where the reasoning begins among the text's token states.
        end: where it ends.
    """

    texts: Texts
    row: Int64[np.ndarray, "pair"]
    start: Int64[np.ndarray, "text"]
    end: Int64[np.ndarray, "text"]

    @classmethod
    def of(cls, reader: TextReader, explicit: Sequence[str], cache: Path | None) -> "ExplicitView":
        """Encode the texts that are not empty; the reasoning follows what both texts begin with."""
        known = sorted(set(explicit) - {""})
        number = {text: place for place, text in enumerate(known)}
        texts = reader.read(known, cache=cache)
        rows = np.array([number.get(text, -1) for text in explicit], np.int64)
        if texts.states is None:
            nothing = np.zeros(len(known), np.int64)
            return cls(texts, rows, nothing, nothing)
        lengths = texts.states.lengths
        start = _begins(unwrapped(reader.encoder), known, reader.config.max_tokens)
        end = np.maximum(lengths - 1, 1)  # the last token ends the text
        start = np.minimum(start, end - 1)
        return cls(texts, rows, start, end)

    def shares(self, rows: Int64[np.ndarray, "row"], steps: int) -> Float[Tensor, "row step position"]:
        """Weights that average each step's share of the reasoning; they overlap where it has fewer tokens."""
        start, length = self.start[rows, None], (self.end - self.start)[rows, None]
        step = np.arange(steps)
        first = start + step * length // steps
        last = np.maximum(start + -(-(step + 1) * length // steps), first + 1)
        assert self.texts.states is not None
        position = np.arange(int(self.texts.states.lengths[rows].max(initial=1)))
        inside = (position >= first[..., None]) & (position < last[..., None])
        return torch.from_numpy((inside / inside.sum(axis=-1, keepdims=True)).astype(np.float32))


def _begins(encoder: Encoder, explicit: Sequence[str], limit: int) -> Int64[np.ndarray, "text"]:
    """How many tokens stand before the reasoning."""
    if not isinstance(encoder, TokenEncoder) or encoder.token_dim is None:
        return np.zeros(len(explicit), np.int64)
    queries = [text.rpartition(". category: ")[0] for text in explicit]
    ids, _ = encoder.tokens(queries, limit=limit)
    return np.array([max(len(tokens) - 1, 0) for tokens in ids], np.int64)
