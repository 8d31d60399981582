"""Clocks and scales."""

import platform
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")


def timed(job: Callable[[], Result]) -> tuple[float, Result]:
    """Seconds a job took, and its result."""
    start = time.perf_counter()
    result = job()
    return time.perf_counter() - start, result


def peak_bytes() -> int:
    """Largest resident size of this process so far."""
    status = Path("/proc/self/status")
    if status.is_file():  # getrusage would count what the parent had when it started this process
        line = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def resident_bytes() -> int:
    """Resident size of this process now (Linux); elsewhere the peak."""
    try:
        with open("/proc/self/statm", encoding="ascii") as stream:
            return int(stream.read().split()[1]) * resource.getpagesize()
    except OSError:
        return peak_bytes()


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    import faiss
    import torch

    return {
        "processor": platform.processor() or platform.machine(),
        "threads": {"torch": torch.get_num_threads(), "faiss": faiss.omp_get_max_threads()},
        "python": platform.python_version(),
    }
