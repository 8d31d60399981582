"""How good a ranking is."""

from restd.evaluate.metrics import ndcg, recall

__all__ = ["ndcg", "recall"]
