"""Routing many queries to their likeliest categories, with any backbone that knows categories."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Int64

from restd.errors import ConfigError
from restd.models.contract import Backbone

_BATCH = 64


@dataclass(frozen=True, slots=True)
class CachedRoutes:
    """Categories of queries as one model chose them, for models whose own choice should not matter."""

    of_query: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, backbone: Backbone, queries: Sequence[str], *, width: int) -> "CachedRoutes":
        """Route queries with a model as it is now."""
        return cls(dict(zip(queries, map(tuple, route_texts(backbone, queries, width=width).tolist()), strict=True)))

    def route(self, queries: Sequence[str]) -> Int64[np.ndarray, "query width"]:
        """Look queries up; one that was not routed is an error."""
        for query in queries:
            if query not in self.of_query:
                raise ConfigError(f"Query {query!r} has no cached route; route it with the model the cache came from.")
        return np.array([self.of_query[query] for query in queries], np.int64)


@torch.inference_mode()
def route_texts(backbone: Backbone, texts: Sequence[str], *, width: int) -> Int64[np.ndarray, "text width"]:
    """Route many texts; the model's mode is put back when done."""
    if width < 1:
        raise ConfigError(f"A category width of {width} routes nowhere; expected at least 1.")
    if not backbone.routes:
        raise ConfigError(f"A {backbone.kind} backbone knows no categories, so it cannot route queries.")
    was = backbone.training
    backbone.eval()
    device = next(backbone.parameters()).device
    prepared = backbone.prepare(texts)
    if not texts:
        backbone.train(was)
        return np.zeros((0, width), np.int64)
    routes = []
    for start in range(0, len(texts), _BATCH):
        inputs = prepared.batch(np.arange(start, min(start + _BATCH, len(texts)))).to(device)
        routed = backbone.route(backbone.encode(inputs), width=width)
        assert routed is not None
        routes.append(routed.cpu().numpy())
    backbone.train(was)
    return np.concatenate(routes)
