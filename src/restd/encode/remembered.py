"""An encoder that remembers its last texts, so that several rankers of one search encode a query once."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from restd.encode.contract import Encoder

_TEXTS = 4_096


class RememberedEncoder:
    """Gives the vectors of another encoder; the last few thousand texts are not encoded again.

    >>> from restd.encode import fit_tfidf_svd
    >>> encoder = RememberedEncoder(fit_tfidf_svd(["red kettle", "blue kettle", "oak desk", "desk lamp"], seed=0))
    >>> bool((encoder.encode(["red lamp"]) == encoder.encode(["red lamp"])).all())
    True
    """

    def __init__(self, encoder: Encoder) -> None:
        self.inner = encoder
        self._vectors: OrderedDict[str, np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return self.inner.dim

    @property
    def identity(self) -> dict[str, Any]:
        """That of the encoder behind it: the vectors are the same."""
        return self.inner.identity

    def encode(self, texts: Sequence[str]) -> Float[np.ndarray, "text dim"]:
        """Encode texts, one vector each, in order."""
        with self._lock:
            known = {text: self._vectors[text] for text in texts if text in self._vectors}
        missing = [text for text in dict.fromkeys(texts) if text not in known]
        if missing:
            known |= dict(zip(missing, np.asarray(self.inner.encode(missing)), strict=True))
        with self._lock:
            for text in missing:
                self._vectors[text] = known[text]
            while len(self._vectors) > _TEXTS:
                self._vectors.popitem(last=False)
        return np.stack([known[text] for text in texts]) if len(texts) else np.zeros((0, self.dim), np.float32)
