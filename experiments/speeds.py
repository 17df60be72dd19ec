"""What a study of speed comes to: medians over its seeds, as a table in Markdown."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from podracer.analysis.statistics import time_to_threshold
from podracer.console import human

_COLUMNS = (
    "variant",
    "steps/s, median (least to greatest)",
    "of the first",
    "steps a second of processor",
    "of the first",
    "return, last tenth",
    "steps to {threshold:g}",
    "mean lag",
    "learner waits",
    "load average",
)


def rates(variant: dict[str, Any], unit: str = "second") -> list[float]:
    """Steps of every run by the clock, or by the time that it had of processors (`cpu_second`)."""
    return [run["speed"][f"steps_per_{unit}"] for run in variant["runs"]]


def steps_to(training: dict[str, list[float]], threshold: float, num_episodes: int = 100) -> float | None:
    """After how many steps the last hundred episodes and more had reached a mean return; None if they never did.

    Args:
      training: a run's curve, each point the mean of some episodes.
      threshold: the mean return.
      num_episodes: that a mean is of, at least.
    """
    weighted = np.array(training["episode_return"]) * training["episodes"]
    ends, sums = (np.concatenate([[0.0], np.cumsum(values)]) for values in (training["episodes"], weighted))
    # Of every point with enough episodes before it, the latest start that leaves enough.
    points = np.flatnonzero(ends[1:] >= num_episodes) + 1
    starts = np.searchsorted(ends, ends[points] - num_episodes, side="right") - 1
    means = (sums[points] - sums[starts]) / (ends[points] - ends[starts])
    return time_to_threshold(np.array(training["env_steps"])[points - 1], means, threshold)


def table(result: dict[str, Any]) -> list[str]:
    """The lines of a study's table, a row a variant that has runs.

    Args:
      result: as `learning.py` writes it, of a study with a threshold.
    """
    variants = [variant for variant in result["variants"] if variant["runs"]]
    columns = [name.format(threshold=result["threshold"]) for name in _COLUMNS]
    rows = [_row(variant, variants[0], result["threshold"]) for variant in variants]
    return [_line(columns), _line(["---"] * len(columns)), *map(_line, rows)]


def _row(variant: dict[str, Any], first: dict[str, Any], threshold: float) -> list[str]:
    speed, of_processor, runs = rates(variant), rates(variant, "cpu_second"), variant["runs"]
    returns = [run["last_tenth_return"] for run in runs if run["last_tenth_return"] is not None]
    reached = [steps for run in runs if (steps := steps_to(run["training"], threshold)) is not None]
    loads = [load for run in runs for load in run["load_average"]]
    waits = [run["shares_of_time"]["learner waiting"] for run in runs if "learner waiting" in run["shares_of_time"]]
    steps = f"{human(float(np.median(reached)))} ({len(reached)} of {len(runs)})" if reached else "never"
    return [
        variant["label"],
        f"{human(float(np.median(speed)))} ({human(min(speed))} to {human(max(speed))})",
        f"{np.median(speed) / np.median(rates(first)):.2f}",
        human(float(np.median(of_processor))),
        f"{np.median(of_processor) / np.median(rates(first, 'cpu_second')):.2f}",
        f"{np.median(returns):.1f}" if returns else "-",
        steps,
        f"{np.median([run['policy_lag_mean'] for run in runs]):.2f}",
        f"{np.median(waits):.0%}" if waits else "-",
        f"{min(loads):.1f} to {max(loads):.1f}",
    ]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
