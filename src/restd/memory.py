"""Memory of this process."""

import sys
from pathlib import Path

import psutil


def peak_bytes() -> int:
    """Largest resident size of this process so far."""
    status = Path("/proc/self/status")
    if status.is_file():
        # psutil has no peak on Linux, and getrusage would count what the parent had when it started this process
        line = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def resident_bytes() -> int:
    """Resident size of this process now."""
    return psutil.Process().memory_info().rss
