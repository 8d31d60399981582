"""One hash of integers for NumPy and torch, the published one."""

import numpy as np
import torch

from restd._splitmix import splitmix64
from restd.distill.controls import scramble
from restd.shop.queries import _hash_to_unit

PUBLISHED = {0: 0xE220A8397B1DCDAF, 1: 0x910A2DEC89025CC1, 2**63 - 1: None, -(2**63): None, -1: None}
MASK = (1 << 64) - 1


def reference(value):
    mixed = (value + 0x9E3779B97F4A7C15) & MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
    return mixed ^ (mixed >> 31)


def test_arrays_and_tensors_agree_with_the_definition():
    for value, output in PUBLISHED.items():
        assert output is None or reference(value) == output
        assert int(splitmix64(np.array([value], np.int64))[0]) & MASK == reference(value)
        assert int(splitmix64(torch.tensor([value]))[0]) & MASK == reference(value)


def test_both_users_are_this_hash():
    assert scramble(torch.tensor([5])).item() == reference(5) & 0x7FFFFFFFFFFFFFFE
    for seed in (0, 3, 2**40):
        expected = (reference(7 + seed * 0x9E3779B97F4A7C15) >> 11) / 2**53
        assert _hash_to_unit(np.array([7]), seed)[0] == expected
