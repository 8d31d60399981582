"""What ranks the items of a snapshot."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int, Int64

from restd.errors import ArtifactError

if TYPE_CHECKING:
    from restd.snapshot.snapshot import Snapshot


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


@runtime_checkable
class Companion(Ranker, Protocol):
    """A ranker that can also score any items: what a hybrid search fuses with a model."""

    name: ClassVar[str]
    """What weights and explanations call it."""

    def scores(
        self, queries: Sequence[Any], rows: Int[np.ndarray, "query candidate"]
    ) -> Float[np.ndarray, "query candidate"]:
        """Scores of chosen items for each query, as `rank` would give them; -1 stands for no item."""
        ...

    def following(
        self, snapshot: "Snapshot", kept: Int64[np.ndarray, "_"], vectors: Float[np.ndarray, "added input"] | None
    ) -> "Companion":
        """The same for a snapshot that follows its own.

        Args:
            snapshot: the new one.
            kept: rows of the old snapshot that are still there, in the order of the new one.
            vectors: embeddings of the items that were added behind them; None where none were.
        """
        ...


def refuse_foreign(what: str, made_for: str, expected: str, *, remedy: str) -> None:
    """Refuse something that was made for another snapshot: its rows would name other items."""
    if made_for != expected:
        raise ArtifactError(
            f"{what} was made for the snapshot {made_for[:8]}, but this one is {expected[:8]}: items, Semantic IDs or "
            f"latents differ. {remedy}"
        )
