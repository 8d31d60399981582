"""Token ids that are cut at a limit, by any number of threads at once."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64


class TruncatingTokenizer:
    """Cuts texts at a limit, safely shared between threads.

    A fast tokenizer keeps truncation and padding as state, and `transformers` sets both in every call: two threads
    that share one cut each other's texts, or fail with "Already borrowed". Here each limit has a copy of its own,
    which is set up once and only read from then on.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._copies: dict[int, Any] = {}

    def ids(self, texts: Sequence[str], *, limit: int) -> tuple[list[Int64[np.ndarray, "_"]], int]:
        """Token ids of each text, special tokens included, at most `limit`; and how many texts were cut."""
        if not texts:
            return [], 0
        if not getattr(self._tokenizer, "is_fast", False):  # written in Python: it has no such state
            lengths = [len(ids) for ids in self._tokenizer(list(texts), verbose=False)["input_ids"]]
            cut = self._tokenizer(list(texts), truncation=True, max_length=limit)["input_ids"]
            return [np.array(ids, np.int64) for ids in cut], sum(length > limit for length in lengths)
        encodings = self._limited(limit).encode_batch(list(texts))
        return (
            [np.array(encoding.ids, np.int64) for encoding in encodings],
            sum(bool(encoding.overflowing) for encoding in encodings),
        )

    def _limited(self, limit: int) -> Any:
        copy = self._copies.get(limit)
        if copy is None:
            from tokenizers import Tokenizer

            copy = Tokenizer.from_str(self._tokenizer.backend_tokenizer.to_str())
            copy.no_padding()
            copy.enable_truncation(limit, direction=self._tokenizer.truncation_side)
            copy = self._copies.setdefault(limit, copy)  # of two threads the first one's copy stays
        return copy
