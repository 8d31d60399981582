"""The trie at ten million SIDs: memory, time to build, and whether look-ups slow down with size."""

from typing import Any

import numpy as np
import torch

from restd.bench.measure import machine, timed
from restd.codes.trie import Trie

_SIZES = (256,) * 4
_BEAMS = 100
_SMALL = 10_000
_ROUNDS = 200


def random_sids(count: int, *, seed: int = 0) -> np.ndarray:
    """Distinct SIDs, uniform over all addresses: the hardest case for memory, since prefixes are shared least."""
    rng = np.random.default_rng(seed)
    keys = np.unique(rng.integers(0, 2**32, int(count * 1.02) + 16))
    keys = rng.permutation(keys)[:count]
    return np.stack([(keys >> shift) & 255 for shift in (24, 16, 8, 0)], axis=1).astype(np.int16)


def bench_trie(sids: int = 10_000_000) -> dict[str, Any]:
    """Compare child look-ups of 100 beams in a large and in a small trie, in turn."""
    table = random_sids(sids)
    build_seconds, large = timed(lambda: Trie.of(table, _SIZES))
    del table
    small = Trie.of(random_sids(_SMALL), _SIZES)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a hundred rows are too few for two threads: waking one costs more than the look-up
    try:
        seconds = {"small": [], "large": []}
        rng = np.random.default_rng(1)
        for _ in range(_ROUNDS):
            for name, trie in (("small", small), ("large", large)):
                seconds[name].append(_walk(trie, rng))
    finally:
        torch.set_num_threads(threads)
    medians = {name: float(np.median(values)) for name, values in seconds.items()}
    return {
        "sids": sids,
        "bytes_per_sid": large.nbytes / sids,
        "build_seconds": build_seconds,
        "lookup_ratio": medians["large"] / medians["small"],
        "lookup_seconds": medians,
        "beams": _BEAMS,
        "machine": machine(),
    }


def _walk(trie: Trie, rng: np.random.Generator) -> float:
    """Seconds to find the children of 100 random prefixes at every depth and to follow one of each."""
    total = 0.0
    for depth in range(trie.levels):
        nodes = torch.from_numpy(rng.integers(0, trie.nodes(depth), _BEAMS))
        seconds, allowed = timed(lambda depth=depth, nodes=nodes: trie.children(depth, nodes))
        codes = allowed.int().argmax(dim=1)
        more, _ = timed(lambda depth=depth, nodes=nodes, codes=codes: trie.advance(depth, nodes, codes))
        total += seconds + more
    return total
