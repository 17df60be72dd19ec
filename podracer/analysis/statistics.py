"""Statistics of a few runs on a few tasks, with intervals that do not assume a distribution.

"Deep Reinforcement Learning at the Edge of the Statistical Precipice", Agarwal et al., arXiv 2108.13264.
Scores are `[runs, tasks, ...]`; everything behind the tasks, such as points of a curve, is taken by itself.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Statistic = Callable[[np.ndarray], np.ndarray]  # [N, ...] scores of all runs and tasks -> [...]

# Scores that a bootstrap holds at a time: 64 MiB.
_CHUNK = 2**23


class Estimate(NamedTuple):
    """A statistic and its interval."""

    value: np.ndarray  # [...]
    low: np.ndarray | None  # [...]; None of a single run, of which nothing is known but itself
    high: np.ndarray | None


def iqm(scores: np.ndarray) -> np.ndarray:
    """Averages the middle half of `[N, ...]` scores: a quarter, rounded down, is left out at either end."""
    cut = int(0.25 * len(scores))
    return np.mean(np.sort(scores, axis=0)[cut : len(scores) - cut], axis=0)


def mean(scores: np.ndarray) -> np.ndarray:
    return np.mean(scores, axis=0)


def median(scores: np.ndarray) -> np.ndarray:
    return np.median(scores, axis=0)


STATISTICS: dict[str, Statistic] = {"iqm": iqm, "mean": mean, "median": median}


def estimate(
    scores: Sequence[np.ndarray],
    statistic: Statistic = iqm,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """Estimates a statistic over runs and tasks, with the percentile interval of a stratified bootstrap.

    In every resample each task has as many runs as it has, drawn from its own with replacement.

    Args:
      scores: of each task `[runs, ...]`; tasks may have different numbers of runs.
      statistic: of all scores together.
      confidence: probability mass of the interval, in (0, 1).
      resamples: of the bootstrap.
      seed: of the bootstrap.

    Raises:
      ValueError: a task has no run.
    """
    scores = [np.asarray(task, np.float64) for task in scores]
    if not scores or any(len(task) == 0 for task in scores):
        raise ValueError(f"every task needs a run, but the tasks have {[len(task) for task in scores]} runs")
    value = statistic(np.concatenate(scores))
    if all(len(task) == 1 for task in scores):
        return Estimate(value, None, None)
    rng = np.random.default_rng(seed)
    points = max(1, sum(task.size for task in scores))
    values = []
    for start in range(0, resamples, max(1, _CHUNK // points)):
        count = min(max(1, _CHUNK // points), resamples - start)
        drawn = [task[rng.integers(0, len(task), (count, len(task)))] for task in scores]
        together = np.concatenate(drawn, axis=1)  # [count, N, ...]
        values.append(statistic(np.swapaxes(together, 0, 1)))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(values), [tail, 1 - tail], axis=0)
    return Estimate(value, low, high)


def probability_of_improvement(better: Sequence[np.ndarray], worse: Sequence[np.ndarray]) -> float:
    """How likely a run of the one scores higher than a run of the other on the same task, averaged over tasks.

    P(X > Y) = mean over tasks of Σᵢⱼ [xᵢ > yⱼ] + ½ [xᵢ = yⱼ], over the number of pairs (eq. 2 of the paper).

    Args:
      better: of each task `[runs]`.
      worse: likewise, in the same order of tasks.
    """
    chances = []
    for x, y in zip(better, worse, strict=True):
        x, y = np.asarray(x)[:, None], np.asarray(y)[None]
        chances.append(np.mean((x > y) + 0.5 * (x == y)))
    return float(np.mean(chances))


def align(curves: Sequence[tuple[np.ndarray, np.ndarray]], grid: np.ndarray | None = None, num_points: int = 200):
    """Brings curves with points of their own onto one grid, by linear interpolation and never by row.

    Args:
      curves: `(x [N], y [N])` of each run, x ascending.
      grid: where to; None spreads `num_points` over what all of them cover. Points of a given grid that one of them
        does not cover are left out: nothing is drawn beyond the data, and no point is of fewer runs than others.
      num_points: see above.

    Returns:
      `[P]` grid and `[runs, P]` values; P is 0 where the curves have nothing in common.
    """
    curves = [(np.asarray(x, np.float64), np.asarray(y, np.float64)) for x, y in curves]
    if not curves or any(len(x) == 0 for x, _ in curves):
        return np.empty(0), np.empty((len(curves), 0))
    start, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    if grid is None:
        grid = np.linspace(start, end, num_points) if start <= end else np.empty(0)
    else:
        grid = np.asarray(grid, np.float64)
        grid = grid[(grid >= start) & (grid <= end)]
    return grid, np.stack([np.interp(grid, x, y) for x, y in curves])


def smooth(y: np.ndarray, window: int) -> np.ndarray:
    """Averages each point with the `window` - 1 before it, fewer at the start; 1 changes nothing."""
    sums = np.cumsum(np.concatenate([[0.0], y]))
    ends = np.arange(1, len(y) + 1)
    starts = np.maximum(ends - window, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def time_to_threshold(x: np.ndarray, y: np.ndarray, threshold: float) -> float | None:
    """Where a curve first reaches a threshold, between its points by interpolation; None if it never does."""
    reached = np.flatnonzero(np.asarray(y) >= threshold)
    if not reached.size:
        return None
    k = int(reached[0])
    if k == 0:
        return float(x[0])
    share = (threshold - y[k - 1]) / (y[k] - y[k - 1])
    return float(x[k - 1] + share * (x[k] - x[k - 1]))
