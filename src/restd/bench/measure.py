"""Clocks and scales."""

import platform
import time
from collections.abc import Callable
from typing import Any, TypeVar

from restd.memory import peak_bytes, resident_bytes

Result = TypeVar("Result")

__all__ = ["machine", "peak_bytes", "resident_bytes", "timed"]


def timed(job: Callable[[], Result]) -> tuple[float, Result]:
    """Seconds a job took, and its result."""
    start = time.perf_counter()
    result = job()
    return time.perf_counter() - start, result


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    import faiss
    import torch

    return {
        "processor": platform.processor() or platform.machine(),
        "threads": {"torch": torch.get_num_threads(), "faiss": faiss.omp_get_max_threads()},
        "python": platform.python_version(),
    }
