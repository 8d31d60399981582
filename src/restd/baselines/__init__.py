"""What a retriever must beat."""

from restd.baselines.bm25 import Bm25
from restd.baselines.dense import Dense

__all__ = ["Bm25", "Dense"]
