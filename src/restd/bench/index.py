"""Fit, assignment and collision repair of a million items, against the residual quantiser of faiss."""

from typing import Any

import faiss
import numpy as np
from jaxtyping import Float

from restd.bench.measure import machine, peak_bytes, resident_bytes, timed
from restd.codes import Codebooks, as_tensor, assign, last_residuals
from restd.codes.keys import collision_groups, pack
from restd.index.collisions import CollisionProblem, single_substitution
from restd.quantize import KMeansConfig, fit_kmeans

_DIM, _LEVELS, _CODES = 32, 4, 256
_SAMPLE = 65_536
_ROWS = 65_536
_COLLIDING = (0.1, 0.4)


def clustered_vectors(items: int, *, seed: int = 0) -> Float[np.ndarray, "item dim"]:
    """Unit vectors in two thousand clusters of unequal size, similar to the embeddings of a catalogue."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(2_000, _DIM)).astype(np.float32)
    weights = rng.lognormal(size=len(centres))
    vectors = np.empty((items, _DIM), np.float32)
    for start in range(0, items, _ROWS):  # in parts, so that making the input does not set the peak memory
        part = vectors[start : start + _ROWS]
        rng.standard_normal(out=part, dtype=np.float32)
        part *= 0.7
        part += centres[rng.choice(len(centres), len(part), p=weights / weights.sum())]
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    return vectors


def bench_index(items: int = 1_000_000) -> dict[str, Any]:
    """Compare fit and assignment with faiss, then repair collisions at two rates."""
    vectors = clustered_vectors(items)
    input_bytes = vectors.nbytes
    before = resident_bytes() - input_bytes
    config = KMeansConfig(levels=_LEVELS, codes=min(_CODES, items // 16), dim=_DIM, normalize=False)
    rng = np.random.default_rng(1)
    sample = vectors[np.sort(rng.choice(items, min(_SAMPLE, items), replace=False))]

    fit_seconds, quantizer = timed(lambda: fit_kmeans(sample, config, items=items))
    assign_seconds, (latents, codes) = timed(lambda: _assign(vectors, quantizer))
    ours = fit_seconds + assign_seconds
    our_error = _error(latents, codes, quantizer.codebooks)
    own_seconds, resolved = timed(lambda: single_substitution(CollisionProblem(latents, codes, quantizer.codebooks)))
    unique = len(np.unique(pack(resolved.sids, resolved.sizes))) / items
    peak = peak_bytes() - before

    repairs = {}
    for share in _COLLIDING:
        repairs[share] = _repair(latents, codes, quantizer.codebooks, share=share)
    greedy = _faiss(sample, vectors, codes=config.codes, beam=1)
    beam = _faiss(sample, vectors, codes=config.codes, beam=5)
    return {
        "items": items,
        "fit_assign_ratio": ours / greedy["seconds"],
        "mse_ratio": our_error / greedy["error"],
        "fit_seconds": fit_seconds,
        "assign_seconds": assign_seconds,
        "error": our_error,
        "faiss_greedy": greedy,
        "faiss_beam_5": {**beam, "fit_assign_ratio": ours / beam["seconds"], "mse_ratio": our_error / beam["error"]},
        "resolve_seconds": own_seconds,
        "resolve_over_fit_assign": {f"{share:.0%}": repair["seconds"] / ours for share, repair in repairs.items()},
        "colliding": {f"{share:.0%}": repair["colliding"] for share, repair in repairs.items()},
        "unique": min(unique, *(repair["unique"] for repair in repairs.values())),
        "peak_over_input": peak / input_bytes,
        "machine": machine(),
    }


def _assign(vectors: np.ndarray, quantizer: Any) -> tuple[np.ndarray, np.ndarray]:
    latents = np.empty(vectors.shape, np.float16)
    for start in range(0, len(vectors), _ROWS):
        latents[start : start + _ROWS] = quantizer.latents(vectors[start : start + _ROWS])
    return latents, assign(as_tensor(latents), quantizer.codebooks).numpy()


def _error(latents: np.ndarray, codes: np.ndarray, codebooks: Codebooks) -> float:
    parts = [
        float(last_residuals(as_tensor(latents[rows]), as_tensor(codes[rows]), codebooks).square().sum())
        for start in range(0, len(latents), _ROWS)
        if (rows := slice(start, start + _ROWS))
    ]
    return sum(parts) / len(latents)


def _faiss(sample: np.ndarray, vectors: np.ndarray, *, codes: Any, beam: int) -> dict[str, float]:
    quantizer = faiss.ResidualQuantizer(_DIM, _LEVELS, int(codes).bit_length() - 1)
    quantizer.max_beam_size = beam
    train_seconds, _ = timed(lambda: quantizer.train(sample))
    encode_seconds, packed = timed(lambda: quantizer.compute_codes(vectors))
    error = 0.0
    for start in range(0, len(vectors), _ROWS):
        rows = slice(start, start + _ROWS)
        error += float(np.square(quantizer.decode(packed[rows]) - vectors[rows]).sum())
    return {
        "seconds": train_seconds + encode_seconds,
        "train_seconds": train_seconds,
        "encode_seconds": encode_seconds,
        "error": error / len(vectors),
    }


def _repair(latents: np.ndarray, codes: np.ndarray, codebooks: Codebooks, *, share: float) -> dict[str, float]:
    """Repair collisions after making items near-copies of others until `share` of them collide."""
    rng = np.random.default_rng(2)
    items = len(latents)
    rows, _ = collision_groups(pack(codes, codebooks.sizes))
    already = len(rows) / items
    missing = max(0.0, share - already) / (1 - already)  # some of the items made to collide do so already
    order = rng.permutation(items)
    copies, originals = np.split(order[: 2 * int(missing * items / 2)], 2)  # a copy and its original collide
    points = latents.copy()
    noise = 1e-4 * rng.standard_normal((len(copies), latents.shape[1]), np.float32)
    points[copies] = (latents[originals] + noise).astype(np.float16)
    raw = assign(as_tensor(points), codebooks).numpy()
    colliding = len(collision_groups(pack(raw, codebooks.sizes))[0]) / items
    seconds, resolved = timed(lambda: single_substitution(CollisionProblem(points, raw, codebooks)))
    unique = len(np.unique(pack(resolved.sids, resolved.sizes))) / items
    return {"seconds": seconds, "colliding": colliding, "unique": unique}
