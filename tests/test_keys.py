"""SIDs as integers: by hand, and at the edge of what fits."""

import numpy as np
import pytest

from restd.codes.keys import collision_groups, pack, radices, refuse_too_many, unpack
from restd.errors import CapacityError, ConfigError


def test_keys_by_hand():
    assert radices((4, 8, 16)).tolist() == [128, 16, 1]
    assert pack(np.array([[3, 7, 15], [1, 0, 2]]), (4, 8, 16)).tolist() == [511, 130]
    assert unpack(np.array([511, 130]), (4, 8, 16)).tolist() == [[3, 7, 15], [1, 0, 2]]


def test_what_just_fits_a_key():
    assert radices((2**31, 2**31)).tolist() == [2**31, 1]
    assert radices((2**32, 2**31 - 1)).tolist() == [2**31 - 1, 1]
    with pytest.raises(ConfigError, match="64-bit"):
        radices((2**32, 2**31))


@pytest.mark.parametrize(
    ("items", "sizes", "advice"),
    [
        (9, (2, 4), "9 items do not fit the 8 addresses of 2 levels with 2×4 codes; use 3 levels (of 4 codes), or 3"),
        (1_000, (8, 8, 8), "use 4 levels (of 8 codes), or 10 codes at each of 3 levels."),
        (1_001, (8, 8, 8), "use 4 levels (of 8 codes), or 11 codes at each of 3 levels."),
        (4_097, (8, 8, 8), "use 5 levels (of 8 codes), or 17 codes at each of 3 levels."),
        (5, (1, 1), "use 5 levels (of 2 codes), or 3 codes at each of 2 levels."),
        (10**15 + 1, (2, 2, 2), "or 100001 codes at each of 3 levels."),  # the root alone is rounded to 100,000
        (2**40, (2,), "use 40 levels (of 2 codes)"),
        (2**63, (2,), "use 63 levels (of 2 codes)"),
    ],
)
def test_advice_where_items_do_not_fit(items, sizes, advice):
    with pytest.raises(CapacityError) as refused:
        refuse_too_many(items, sizes)
    assert advice in str(refused.value)


def test_as_many_items_as_addresses_fit_and_fewer_too():
    refuse_too_many(8, (2, 4))
    refuse_too_many(7, (2, 4))
    refuse_too_many(1, (1,))


def test_rows_that_share_a_key():
    rows, groups = collision_groups(np.array([5, 3, 5, 9, 3, 3]))
    assert (rows.tolist(), groups.tolist()) == ([1, 4, 5, 0, 2], [0, 0, 0, 1, 1])
    rows, groups = collision_groups(np.array([2, 1, 2, 7, 8, 8]))
    assert (rows.tolist(), groups.tolist()) == ([0, 2, 4, 5], [0, 0, 1, 1])
    for alone in ([], [4], [4, 2]):
        assert [part.tolist() for part in collision_groups(np.array(alone, np.int64))] == [[], []]
