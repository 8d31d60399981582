"""Timing of work, and of several sides in turn, so that a machine that slows down slows all of them."""

import platform
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float

Result = TypeVar("Result")


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """Seconds that some work took, and its result; an accelerator finishes before and after."""
    _synchronize()
    start = time.perf_counter()
    result = work()
    _synchronize()
    return time.perf_counter() - start, result


def interleaved(
    sides: Mapping[str, Callable[[int], Any]], rounds: int, *, warm_up: int = 1
) -> dict[str, Float[np.ndarray, "round"]]:
    """Time several sides in turn: in every round each runs once, and the one that goes first changes.

    Args:
        sides: what to time, by name; each is called with the number of the round, counted from 0.
        rounds: rounds that are timed.
        warm_up: rounds before them that are not counted.

    >>> order = []
    >>> seconds = interleaved({"a": lambda n: order.append(f"a{n}"), "b": lambda n: order.append(f"b{n}")}, 2)
    >>> order, [len(values) for values in seconds.values()]
    (['a0', 'b0', 'b1', 'a1', 'a2', 'b2'], [2, 2])
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(warm_up + rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            spent, _ = timed(lambda side=sides[name], number=number: side(number))
            if number >= warm_up:
                seconds[name].append(spent)
    return {name: np.array(values) for name, values in seconds.items()}


def machine() -> dict[str, Any]:
    """What figures were measured on."""
    import faiss  # not at the top: most who time something need no faiss

    return {
        "processor": platform.processor() or platform.machine(),
        "threads": {"torch": torch.get_num_threads(), "faiss": faiss.omp_get_max_threads()},
        "python": platform.python_version(),
    }


def _synchronize() -> None:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
