"""What a retriever must beat."""

from restd.baselines.bm25 import Bm25

__all__ = ["Bm25"]
