"""What is compared of groups of runs: returns, speed, time to a threshold, where the time went, lag, who wins."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from podracer.analysis.curves import Logged, scores
from podracer.analysis.statistics import (
    STATISTICS,
    Estimate,
    estimate,
    probability_of_improvement,
    time_to_threshold,
)

# Seconds in the rows of training, by what passes them.
ACTIVITIES = {
    "env_seconds": "environment",
    "act_seconds": "acting",
    "actor_wait_seconds": "actors waiting",
    "learn_seconds": "learning",
    "learner_wait_seconds": "learner waiting",
}


class Standing(NamedTuple):
    """A group in an environment."""

    group: str
    num_runs: int
    num_unfinished: int  # runs without a final return
    final_return: Estimate | None
    steps_per_second: float | None  # median over runs
    env_steps_to_threshold: list[float | None]  # of each run, None if never
    seconds_to_threshold: list[float | None]
    shares: dict[str, float]  # of the time of training, by activity; of threads that run side by side
    policy_lag_mean: float | None
    policy_lag_max: float | None


class Duel(NamedTuple):
    """The best group of an environment against another."""

    better: str
    worse: str
    difference: Estimate  # of the statistic of final returns
    probability: float  # that a run of the better scores higher


def standings(
    groups: Mapping[str, Sequence[Logged]], statistic: str = "iqm", threshold: float | None = None
) -> dict[str, list[Standing]]:
    """Sums up every group in every environment, the best first.

    Args:
      groups: of runs.
      statistic: over runs.
      threshold: return of an evaluation that counts as solved; None asks for no time.
    """
    result: dict[str, list[Standing]] = {}
    for env in sorted({logged.run.env for runs in groups.values() for logged in runs}):
        of_env = {label: [logged for logged in runs if logged.run.env == env] for label, runs in groups.items()}
        found = [_standing(label, runs, statistic, threshold) for label, runs in of_env.items() if runs]
        found.sort(key=lambda standing: -standing.final_return.value if standing.final_return else np.inf)
        result[env] = found
    return result


def duels(
    groups: Mapping[str, Sequence[Logged]], statistic: str = "iqm", resamples: int = 2000
) -> dict[str, list[Duel]]:
    """Sets the best group of every environment against each of the others."""
    by_env: dict[str, dict[str, np.ndarray]] = {}
    for label, returns in scores(groups).items():
        for env, values in returns.items():
            by_env.setdefault(env, {})[label] = np.array(values)
    result = {}
    function = STATISTICS[statistic]
    for env, returns in sorted(by_env.items()):
        best = max(returns, key=lambda label: function(returns[label]))
        result[env] = [
            Duel(
                best,
                other,
                _difference(returns[best], values, statistic, resamples),
                probability_of_improvement([returns[best]], [values]),
            )
            for other, values in returns.items()
            if other != best
        ]
    return result


def _difference(first: np.ndarray, second: np.ndarray, statistic: str, resamples: int) -> Estimate:
    """The difference of two groups' statistics; without interval where one of them has a single run."""
    function = STATISTICS[statistic]
    value = function(first) - function(second)
    if len(first) == 1 or len(second) == 1:
        return Estimate(value, None, None)
    rng = np.random.default_rng(0)
    drawn = [function(values[rng.integers(0, len(values), (len(values), resamples))]) for values in (first, second)]
    low, high = np.quantile(drawn[0] - drawn[1], [0.025, 0.975])
    return Estimate(value, low, high)


def _standing(label: str, runs: Sequence[Logged], statistic: str, threshold: float | None) -> Standing:
    returns = [logged.run.final_return for logged in runs if logged.run.final_return is not None]
    rates = [rate for rate in (steps_per_second(logged.rows) for logged in runs) if rate is not None]
    lags = [row for logged in runs for row in logged.rows if row.get("policy_lag_mean") is not None]
    reached = [_time_to(logged, threshold) for logged in runs] if threshold is not None else []
    return Standing(
        group=label,
        num_runs=len(runs),
        num_unfinished=len(runs) - len(returns),
        final_return=estimate([np.array(returns)], STATISTICS[statistic]) if returns else None,
        steps_per_second=float(np.median(rates)) if rates else None,
        env_steps_to_threshold=[steps for steps, _ in reached],
        seconds_to_threshold=[seconds for _, seconds in reached],
        shares=shares([row for logged in runs for row in logged.rows]),
        policy_lag_mean=float(np.mean([row["policy_lag_mean"] for row in lags])) if lags else None,
        policy_lag_max=float(np.max([row["policy_lag_max"] for row in lags])) if lags else None,
    )


def steps_per_second(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Of a run's training, without its first row, which warms up; None of fewer than two."""
    rows = [row for row in rows if row["kind"] == "train" and row.get("train_seconds")]
    if len(rows) < 2:
        return None
    return (rows[-1]["env_steps"] - rows[0]["env_steps"]) / sum(row["train_seconds"] for row in rows[1:])


def _time_to(logged: Logged, threshold: float) -> tuple[float | None, float | None]:
    steps, seconds = (logged.curve("episode_return", x=x) for x in ("env_steps", "wall_seconds"))
    return time_to_threshold(*steps, threshold), time_to_threshold(*seconds, threshold)


def shares(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds of each activity for a second of training; actors and learner run side by side, so each sums to 1."""
    rows = [row for row in rows if row["kind"] == "train"]
    total = sum(row.get("train_seconds") or 0.0 for row in rows)
    sums = {name: sum(row.get(name) or 0.0 for row in rows) for name in ACTIVITIES}
    return {ACTIVITIES[name]: seconds / total for name, seconds in sums.items() if seconds and total}
