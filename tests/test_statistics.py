"""Statistics: against brute force, and on data whose truth is known."""

import itertools

import numpy as np
import pytest

from restd.evaluate import (
    Interval,
    Spread,
    bootstrap_mean,
    holm,
    holm_grid,
    paired_difference,
    regression_hc3,
    sign_flip_p,
)


def test_hc3_is_the_spread_of_left_out_errors():
    """e_i / (1 - h_ii) is the error of predicting row i by a fit without it."""
    rng = np.random.default_rng(3)
    design = np.column_stack([np.ones(30), rng.standard_normal((30, 3))])
    outcome = design @ [1.0, -2.0, 0.5, 0.0] + rng.standard_normal(30) * (1 + design[:, 1] ** 2)
    beta, error = regression_hc3(design, outcome)
    left_out = []
    for row in range(30):
        kept = np.arange(30) != row
        without, *_ = np.linalg.lstsq(design[kept], outcome[kept], rcond=None)
        left_out.append(outcome[row] - design[row] @ without)
    inverse = np.linalg.inv(design.T @ design)
    wanted = inverse @ design.T @ np.diag(np.square(left_out)) @ design @ inverse
    assert beta == pytest.approx(np.linalg.lstsq(design, outcome, rcond=None)[0])
    assert error == pytest.approx(np.sqrt(np.diag(wanted)))


def test_holm_and_hc3_are_those_of_statsmodels():
    from statsmodels.regression.linear_model import OLS
    from statsmodels.stats.multitest import multipletests

    rng = np.random.default_rng(5)
    for count in (1, 4, 11):
        ps = rng.random(count)
        assert holm(ps.tolist()) == multipletests(ps, method="holm")[1].tolist()
        design = np.column_stack([np.ones(40), rng.standard_normal((40, 3))])
        outcome = design @ [1.0, -2.0, 0.5, 0.0] + rng.standard_normal(40) * (1 + design[:, 1] ** 2)
        fitted = OLS(outcome, design).fit(cov_type="HC3")
        beta, error = regression_hc3(design, outcome)
        assert beta == pytest.approx(fitted.params, rel=1e-9)
        assert error == pytest.approx(fitted.bse, rel=1e-9)


def test_bootstrap_intervals_cover_the_truth():
    """Skewed values as metrics are: near 95 % of the intervals hold the true mean."""
    rng = np.random.default_rng(11)
    truth, inside, worlds = 0.3, 0, 300
    for _ in range(worlds):
        found = bootstrap_mean(rng.binomial(1, truth, 120).astype(float), resamples=400)
        inside += found.low <= truth <= found.high
    assert 0.90 <= inside / worlds <= 0.985


def test_the_permutation_test_keeps_its_level():
    """Where nothing differs, p below 0.05 comes about one time in twenty."""
    rng = np.random.default_rng(5)
    alarms = sum(sign_flip_p(rng.standard_normal(40), resamples=300) < 0.05 for _ in range(300))
    assert 0.02 <= alarms / 300 <= 0.09


def test_the_permutation_test_counts_all_signs_where_it_can():
    gaps = np.array([0.4, -0.1, 0.3, 0.2, 0.5])
    means = [np.mean(np.array(signs) * gaps) for signs in itertools.product((1, -1), repeat=5)]
    tail = np.mean([mean >= gaps.mean() - 1e-12 for mean in means])
    assert sign_flip_p(gaps) == pytest.approx(2 * tail)


@pytest.mark.parametrize("gap", [-1.0, 1.0, 0.5])
def test_three_equal_differences_have_two_of_eight_signs(gap):
    assert sign_flip_p(np.array([gap, 0.0, gap, gap])) == pytest.approx(0.25)


def test_few_queries():
    assert sign_flip_p(np.array([1.0, 1.0, 1.0])) == 0.25  # two of the eight ways to deal three signs
    assert sign_flip_p(np.array([1.0, 2.0])) == 0.5
    assert bootstrap_mean(np.array([0.0, 1.0])) == Interval(0.5, 0.0, 1.0)
    assert bootstrap_mean(np.array([3.0])) == Interval(3.0, 3.0, 3.0)


def test_the_smallest_p_is_two_in_ten_thousand():
    """9,999 resamples and the sample itself, two-sided."""
    assert sign_flip_p(np.arange(1.0, 51.0)) == pytest.approx(2 / 10_000, rel=1e-9)


def test_resamples_follow_the_seed_which_is_zero_by_default():
    rng = np.random.default_rng(4)
    values, zeros = rng.standard_normal(30), np.zeros(30)
    assert bootstrap_mean(values) == bootstrap_mean(values, seed=0) != bootstrap_mean(values, seed=1)
    assert sign_flip_p(values) == sign_flip_p(values, seed=0) != sign_flip_p(values, seed=1)
    assert paired_difference(values, zeros) == paired_difference(values, zeros, seed=0)
    moved = paired_difference(values, zeros, seed=1)
    assert (moved.low, moved.p) == (bootstrap_mean(values, seed=1).low, sign_flip_p(values, seed=1))


def test_a_real_difference_is_found_and_has_its_sign():
    rng = np.random.default_rng(1)
    base = rng.uniform(0, 100, 400)
    found = paired_difference(base + 2 + rng.standard_normal(400), base)
    assert 1.8 < found.low < found.mean < found.high < 2.2
    assert found.p < 0.001
    swapped = paired_difference(base, base + 2)
    assert swapped.mean == pytest.approx(-2.0)
    assert (swapped.low, swapped.high) == (pytest.approx(-2.0), pytest.approx(-2.0))


def test_no_difference_is_said_so():
    values = np.arange(10.0)
    found = paired_difference(values, values)
    assert (found.mean, found.low, found.high, found.p) == (0.0, 0.0, 0.0, 1.0)
    assert paired_difference(np.array([1.0, 2.0]), np.array([1.0, 1.0])).p == 1.0  # one query alone proves nothing


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


def test_a_table_is_corrected_as_one_family():
    rng = np.random.default_rng(2)
    found = {
        row: {column: paired_difference(rng.standard_normal(30), np.zeros(30)) for column in "ab"} for row in "xyz"
    }
    corrected = holm_grid(found)
    flat = [corrected[row][column].adjusted for row in "xyz" for column in "ab"]
    assert flat == pytest.approx(holm([found[row][column].p for row in "xyz" for column in "ab"]))


def test_seeds_are_spread_by_the_sample_deviation():
    assert Spread.of([12.0, 13.0, 14.0]).deviation == pytest.approx(1.0)  # n - 1
    assert str(Spread.of([12.0, 13.0, 14.0])) == "13.00 ± 1.00"
    assert str(Spread.of([12.0])) == "12.00"
