import numpy as np
import pytest

from podracer.analysis.statistics import (
    align,
    estimate,
    iqm,
    mean,
    median,
    probability_of_improvement,
    smooth,
    time_to_threshold,
)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([0, 25, 50, 75, 100], 50.0),  # one left out at either end: mean of 25, 50, 75
        (range(8), 3.5),  # two: mean of 2, 3, 4, 5
        ([0, 1, 2, 100], 1.5),
        ([7], 7.0),
    ],
)
def test_D08_interquartile_means(scores, expected):
    assert iqm(np.array(list(scores), float)) == expected


def test_D08_the_interval_is_over_runs():
    result = estimate([np.array([0.0, 25, 50, 75, 100])])
    assert result.value == 50 and result.low < 50 < result.high


def test_D08_five_tasks_of_one_run_have_no_interval():
    result = estimate([np.array([score]) for score in (0.0, 25, 50, 75, 100)])
    assert result.value == 50 and result.low is None and result.high is None


def test_resamples_keep_to_their_tasks():
    """Two tasks of equal runs: any resample that stays within the tasks gives the same mean."""
    result = estimate([np.full(4, 1.0), np.full(6, 11.0)], mean)
    assert result.value == result.low == result.high == (4 * 1 + 6 * 11) / 10


def test_points_are_taken_by_themselves():
    scores = np.random.default_rng(0).normal(size=(6, 3))
    together = estimate([scores], resamples=500)
    assert together.value.shape == together.low.shape == (3,)
    np.testing.assert_allclose(together.value, [iqm(scores[:, k]) for k in range(3)])
    assert np.all(together.low <= together.value) and np.all(together.value <= together.high)


def test_the_interval_of_a_mean_is_that_of_theory():
    """Of 400 draws of a standard normal: mean ± 1.96 / √400."""
    draws = np.random.default_rng(1).normal(size=400)
    result = estimate([draws], mean, resamples=4000)
    half = 1.96 * draws.std() / 20
    np.testing.assert_allclose([result.low, result.high], [draws.mean() - half, draws.mean() + half], atol=0.01)


def test_a_task_without_a_run_is_refused():
    with pytest.raises(ValueError, match=r"\[2, 0\] runs"):
        estimate([np.ones(2), np.ones(0)])


def test_statistics_of_the_whole():
    scores = np.array([[1.0, 5], [2, 6], [9, 7]])
    np.testing.assert_array_equal(median(scores), [2, 6])
    np.testing.assert_array_equal(mean(scores), [4, 6])


def test_probability_of_improvement_counts_pairs():
    """Task 1: (2>1), (2=2)/2, (3>1), (3>2): 3.5 of 4. Task 2: 0 of 1. Mean 0.4375."""
    assert probability_of_improvement([[2, 3], [0]], [[1, 2], [5]]) == (3.5 / 4 + 0) / 2


def test_D09_curves_are_aligned_by_interpolation():
    a = np.array([0.0, 10, 20]), np.array([0.0, 100, 200])
    b = np.array([0.0, 5, 15, 20]), np.array([0.0, 0, 100, 100])
    grid, values = align([a, b], grid=np.array([0.0, 10, 20]))
    np.testing.assert_array_equal(grid, [0, 10, 20])
    np.testing.assert_array_equal(values.mean(0), [0, 75, 150])


def test_D09_nothing_lies_beyond_the_shortest_run():
    a = np.array([0.0, 10, 20]), np.array([0.0, 100, 200])
    b = np.array([5.0, 15]), np.array([0.0, 100])
    grid, values = align([a, b], grid=np.array([0.0, 10, 20]))
    np.testing.assert_array_equal(grid, [10])
    np.testing.assert_array_equal(values, [[100], [50]])
    grid, _ = align([a, b])
    assert (grid[0], grid[-1], len(grid)) == (5, 15, 200)
    assert align([a, (np.empty(0), np.empty(0))])[0].size == 0
    assert align([a, (np.array([30.0, 40]), np.ones(2))])[0].size == 0


def test_smoothing_looks_back_only():
    np.testing.assert_array_equal(smooth(np.array([1.0, 3, 5, 7]), 2), [1, 2, 4, 6])
    np.testing.assert_array_equal(smooth(np.array([1.0, 3, 5]), 1), [1, 3, 5])


def test_a_threshold_is_reached_between_points():
    x, y = np.array([0.0, 10, 20]), np.array([0.0, 40, 50])
    assert time_to_threshold(x, y, 20) == 5
    assert time_to_threshold(x, y, 0) == 0
    assert time_to_threshold(x, y, 51) is None
