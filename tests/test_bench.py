"""Benchmarks run, at sizes that take a moment, and report what their names promise."""

import pytest

from restd.bench import BENCHMARKS


def test_index():
    found = BENCHMARKS["index"](items=4_000)
    assert found["unique"] == 1.0
    assert found["mse_ratio"] < 1.1
    assert set(found["resolve_over_fit_assign"]) == {"10%", "40%"}
    assert found["colliding"]["10%"] == pytest.approx(0.1, abs=0.02)
    assert found["colliding"]["40%"] == pytest.approx(0.4, abs=0.03)
    assert found["peak_over_input"] > 0


def test_trie():
    found = BENCHMARKS["trie"](sids=50_000)
    assert 0 < found["bytes_per_sid"] < 20
    assert found["lookup_ratio"] > 0


def test_shop_is_neither_trivial_nor_hopeless_for_bm25():
    found = BENCHMARKS["shop"](items=3_000)
    for locale in ("us", "es", "jp"):
        assert 15 < found[locale]["ndcg@10"] < 60
        assert 0 < found[locale]["missed@10"] < 0.6
