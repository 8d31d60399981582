"""Benchmarks run, at sizes that take a moment, and report what their names promise."""

from dataclasses import replace

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


def test_teacher():
    found = BENCHMARKS["teacher"](items=2_000)
    assert found["swap_replaced"] > 0.5
    assert found["targets_per_second"] > 0
    assert 0 <= found["swap_quality"]["shape_median"] <= found["swap_quality"]["shape_p90"]


def test_overhead(monkeypatch):
    from restd.bench import overhead

    monkeypatch.setattr(overhead, "_ACCUMULATED", 1)
    monkeypatch.setattr(overhead, "extra_peak", lambda: 0)  # two processes of half a gigabyte each
    found = overhead.bench_overhead(updates=1)
    assert found["inference_extra_parameters"] == 0
    assert found["residual_bytes_per_item"] == 64
    assert found["head_parameters"] == 4 * (512 * 512 + 512 * 32 + 3 * 512 + 32)
    assert min(found["h1_over_base"], found["h4_over_base"]) > 0


def test_train_compares_both_loops_and_both_objectives(monkeypatch):
    from restd.bench import train

    monkeypatch.setattr(train, "_ITEMS", 500)
    monkeypatch.setattr(train, "_COMPACT_BATCH", 16)
    found = train.bench_train(updates=2)
    assert found["throughput_ratio"] > 0
    assert found["joint_over_base"] > 0
    assert set(found["examples_per_second"]) == {"restd", "transformers"}


def test_decode_finds_what_generate_finds(monkeypatch):
    from restd.bench import decode

    monkeypatch.setattr(decode, "_LARGE", 20_000)
    monkeypatch.setattr(decode, "_BEAM", 10)
    monkeypatch.setattr(decode, "_BATCHES", (1, 2))
    monkeypatch.setattr(decode, "bench_compact", lambda *arguments, **options: {})
    monkeypatch.setattr(decode, "_TARGETS", {})
    found = decode.bench_decode(sids=3_000, rounds=1)
    assert found["identical"]
    assert found["max_score_difference"] < 1e-4
    assert found["speedup_b1"] > 0


def test_recommend_ranks_what_generate_ranks(monkeypatch):
    from restd.bench import recommend
    from restd.models import TigerConfig

    tiny = TigerConfig(width=32, layers=1, heads=2, head_width=16, feed=64)
    monkeypatch.setattr(recommend, "TigerConfig", lambda **changed: replace(tiny, **changed))
    monkeypatch.setattr(recommend, "_ITEMS", 500)
    monkeypatch.setattr(recommend, "_BATCH", 32)
    monkeypatch.setattr(recommend, "_MICRO", 16)
    monkeypatch.setattr(recommend, "_USERS", 4)
    found = recommend.bench_recommend(updates=2, rounds=1, users=100)
    assert found["identical"]
    assert found["max_score_difference"] < 1e-4
    assert found["throughput_ratio"] > 0
    assert found["layers_ratio"] > 0
    assert found["causal_ratio"] > 0
    assert found["eval_ratio"] > 0


def test_jobs():
    found = BENCHMARKS["jobs"](updates=1, rounds=1, jobs=2, batch=8)
    assert found["throughput_ratio"] > 0
    assert found["jobs"] == 2
    assert set(found["examples_per_second"]) == {"one_after_another", "side_by_side"}


def test_search_times_a_hybrid_beside_its_beam(monkeypatch):
    from restd.bench import search

    monkeypatch.setattr(search, "_CODES", 32)
    monkeypatch.setattr(search, "_TOGETHER", 4)
    monkeypatch.setattr(search, "fitting_queries", few(search.fitting_queries))
    found = search.bench_search(items=1_000, rounds=3)
    assert found["fused_identical"]
    assert found["fused_queries"] == 4
    assert found["fused_max_score_difference"] < 1e-4
    assert found["queries"] == 3
    assert found["fit_queries"] == 6
    assert found["fit_seconds"] > 0
    assert found["beams"] == {"beam": 100, "hybrid": 40}
    assert found["all_parts_over_beam"] > 0
    assert found["same_beam_over_beam"] > 0
    assert found["hybrid_over_beam"] == pytest.approx(
        found["milliseconds"]["hybrid"]["median"] / found["milliseconds"]["beam"]["median"]
    )
    parts = found["part_milliseconds"]
    assert {"bm25 list", "dense list", "latent list", "popularity list", "match scores", "fuse"} <= set(parts)
    assert parts["all candidates"] > parts["generator and heads"]


def few(fitting_queries):
    from restd.evaluate import some_queries

    return lambda data, snapshot: some_queries(fitting_queries(data, snapshot), 6)


def test_serve_measures_the_real_server_and_checks_its_answers():
    from restd.bench import serve

    sizes = serve.Sizes(rounds=1, burst=4, alone=3, seconds=0.2, queries=10)
    measured = serve.measure(1_000, None, sizes)
    assert (measured["wrong_answers"], measured["server_errors"]) == (0, 0)
    # two rounds of bursts for two servers and beams, lone requests, a steady block of 20, the memory's, the overload's
    assert measured["checked_answers"] >= 4 * 2 * 2 * 2 + 2 * 3 + 2 * 20 + 10 + 2 * 4
    assert measured["beams"] == {"narrow": 10, "default": 100}
    assert set(measured["wanted"]) <= set(measured)
    for name in ("batching_gain", "batching_gain_default_beam", "overhead", "overhead_narrow_beam"):
        assert measured[name] > 0
    assert measured["overhead_processor_time"] > 0
    assert measured["p99_over_p50"] >= 1
    assert measured["overload"]["statuses_at_twice"].keys() <= {"200", "429", "504"}
    assert set(measured["overload"]["in_time_per_second"]) == {"capacity", "twice"}
    assert measured["memory"]["queries"] == 10
    assert measured["machine"]["cores"] >= 1
    assert "memory_growth" in measured
