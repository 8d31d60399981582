"""Time, memory and the machine they were measured on."""

from restd.memory import peak_bytes, resident_bytes
from restd.timing import interleaved, machine, timed

__all__ = ["interleaved", "machine", "peak_bytes", "resident_bytes", "timed"]
