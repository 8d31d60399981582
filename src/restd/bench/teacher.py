"""Targets on the fly, and the costliest control, at catalogue size."""

from typing import Any

import numpy as np
import torch

from restd.bench.index import clustered_vectors
from restd.bench.measure import machine, peak_bytes, resident_bytes, timed
from restd.codes import as_tensor, assign
from restd.distill import Geometry, ResidualTeacher, TemperatureConfig, find_temperatures, shape_swap
from restd.index.collisions import CollisionProblem, single_substitution
from restd.quantize import KMeansConfig, fit_kmeans

_BATCH = 1_024
_ROUNDS = 50


def bench_teacher(items: int = 100_000) -> dict[str, Any]:
    """Make targets for batches of 1,024 items, then match the shapes of every item's teachers."""
    vectors = clustered_vectors(items)
    quantizer = fit_kmeans(vectors, KMeansConfig(codes=256, dim=32, normalize=False), items=items)
    latents = quantizer.latents(vectors)
    books = quantizer.codebooks
    stored = single_substitution(CollisionProblem(latents, assign(as_tensor(latents), books).numpy(), books)).sids
    geometry = Geometry.of(books, torch.from_numpy(latents), torch.from_numpy(stored))
    teacher = ResidualTeacher(geometry, find_temperatures(geometry, TemperatureConfig("per_level")))
    generator = torch.Generator().manual_seed(0)
    seconds = []
    for _ in range(_ROUNDS):
        rows = torch.randint(items, (_BATCH,), generator=generator)
        spent, _ = timed(lambda rows=rows: teacher.targets(rows))
        seconds.append(spent)
    before = resident_bytes()
    swap_seconds, (control, quality) = timed(lambda: shape_swap(teacher, torch.arange(items)))
    return {
        "items": items,
        "batch": _BATCH,
        "targets_seconds": float(np.median(seconds)),
        "targets_per_second": _BATCH / float(np.median(seconds)),
        "swap_seconds": swap_seconds,
        "swap_peak_bytes": max(0, peak_bytes() - before),
        "swap_replaced": control.replaced,
        "swap_quality": {name: getattr(quality, name) for name in quality.__slots__},
        "machine": machine(),
    }
