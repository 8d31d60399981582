"""What ranks the items of a snapshot."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from restd.errors import ArtifactError


@runtime_checkable
class Ranker(Protocol):
    """Anything that ranks the items of one snapshot: a retriever, BM25, popularity."""

    @property
    def snapshot_hash(self) -> str:
        """Hash of the snapshot whose rows it ranks; it is refused for any other."""
        ...

    def rank(
        self, queries: Sequence[Any], k: int
    ) -> tuple[Int[np.ndarray, "query rank"], Float[np.ndarray, "query rank"]]:
        """Rows of the best items and their scores, best first; -1 where there are fewer.

        Queries are texts, or `History` for rankers that recommend.
        """
        ...


def refuse_foreign(what: str, made_for: str, expected: str, *, remedy: str) -> None:
    """Refuse something that was made for another snapshot: its rows would name other items."""
    if made_for != expected:
        raise ArtifactError(
            f"{what} was made for the snapshot {made_for[:8]}, but this one is {expected[:8]}: items, Semantic IDs or "
            f"latents differ. {remedy}"
        )
