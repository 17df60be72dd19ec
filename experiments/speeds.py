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
    "return, last tenth",
    "steps to {threshold:g}",
    "mean lag",
    "learner waits",
    "load average",
)


def rates(variant: dict[str, Any]) -> list[float]:
    """Steps per second of every run; without its first report, which warms up, unless it is the only one."""
    return [run["steady_steps_per_second"] or run["steps_per_second"] for run in variant["runs"]]


def steps_to(variant: dict[str, Any], threshold: float) -> list[float | None]:
    """When the training returns of every run reached a threshold, None where they never did."""
    curves = [(run["training"]["env_steps"], run["training"]["episode_return"]) for run in variant["runs"]]
    return [time_to_threshold(np.array(x), np.array(y), threshold) for x, y in curves]


def table(result: dict[str, Any]) -> list[str]:
    """The lines of a study's table, a row a variant that has runs.

    Args:
      result: as `learning.py` writes it, of a study with a threshold.
    """
    variants = [variant for variant in result["variants"] if variant["runs"]]
    columns = [name.format(threshold=result["threshold"]) for name in _COLUMNS]
    first = np.median(rates(variants[0])) if variants else None
    rows = [_row(variant, first, result["threshold"]) for variant in variants]
    return [_line(columns), _line(["---"] * len(columns)), *map(_line, rows)]


def _row(variant: dict[str, Any], first: float, threshold: float) -> list[str]:
    speed, runs = rates(variant), variant["runs"]
    returns = [run["last_tenth_return"] for run in runs if run["last_tenth_return"] is not None]
    reached = [steps for steps in steps_to(variant, threshold) if steps is not None]
    loads = [load for run in runs for load in run["load_average"]]
    waits = [run["shares_of_time"]["learner waiting"] for run in runs if "learner waiting" in run["shares_of_time"]]
    steps = f"{human(float(np.median(reached)))} ({len(reached)} of {len(runs)})" if reached else "never"
    return [
        variant["label"],
        f"{human(float(np.median(speed)))} ({human(min(speed))} to {human(max(speed))})",
        f"{np.median(speed) / first:.2f}",
        f"{np.median(returns):.1f}" if returns else "-",
        steps,
        f"{np.median([run['policy_lag_mean'] for run in runs]):.2f}",
        f"{np.median(waits):.0%}" if waits else "-",
        f"{min(loads):.1f} to {max(loads):.1f}",
    ]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
