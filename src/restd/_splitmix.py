"""A hash of integers that is the same on every machine: for draws that must not depend on order or batch."""

from typing import Any


def splitmix64(values: Any) -> Any:
    """Mix the bits of int64 values (splitmix64's step and finaliser); NumPy arrays and tensors alike.

    >>> import numpy as np
    >>> splitmix64(np.array([0, 1])).tolist()
    [-2152535657050944081, -7995527694508729151]
    """
    mixed = values + -0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as a signed number; overflow wraps, as it should
    mixed = (mixed ^ _shift(mixed, 30)) * -0x40A7B892E31B1A47
    mixed = (mixed ^ _shift(mixed, 27)) * -0x6B2FB644ECCEEE15
    return mixed ^ _shift(mixed, 31)


def _shift(values: Any, count: int) -> Any:
    """Shift right without the sign."""
    return (values >> count) & ((1 << (64 - count)) - 1)
