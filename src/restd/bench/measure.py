"""Time, memory and the machine they were measured on."""

import platform
from typing import Any

from restd.memory import peak_bytes, resident_bytes
from restd.timing import interleaved, timed

__all__ = ["interleaved", "machine", "peak_bytes", "resident_bytes", "timed"]


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    import faiss
    import torch

    return {
        "processor": platform.processor() or platform.machine(),
        "threads": {"torch": torch.get_num_threads(), "faiss": faiss.omp_get_max_threads()},
        "python": platform.python_version(),
    }
