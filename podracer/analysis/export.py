"""Scores and curves in the formats of other tools: rliable's arrays and marl-eval's nested JSON."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from podracer.analysis.curves import Logged, scores
from podracer.conversion import ConfigError
from podracer.logging import write_json


def write_rliable(groups: Mapping[str, Sequence[Logged]], path: Path) -> None:
    """Writes the final returns as rliable takes them: an .npz of an array `[runs, tasks]` for each group.

    The columns are the environments in the order of their names, which the array `tasks` holds:
    `{name: array for name, array in np.load(path).items() if name != "tasks"}`.

    Raises:
      ConfigError: a group lacks runs in an environment, as an array has no place for none.
    """
    returns = scores(groups)
    tasks = sorted({task for by_task in returns.values() for task in by_task})
    arrays: dict[str, np.ndarray] = {}
    for label, by_task in returns.items():
        counts = {task: len(by_task.get(task, ())) for task in tasks}
        if len(set(counts.values())) != 1:
            raise ConfigError(
                f"rliable's format needs as many runs of {label!r} in every environment, but there are "
                f"{', '.join(f'{count} in {task}' for task, count in counts.items())}"
            )
        arrays[label] = np.array([by_task[task] for task in tasks]).T
    np.savez(path, tasks=np.array(tasks), **arrays)


def to_marl_eval(groups: Mapping[str, Sequence[Logged]], metric: str = "episode_return") -> dict[str, Any]:
    """Nests evaluations as marl-eval does: environment, task, algorithm, run, step.

    `elapsed_time` is in seconds, `step_count` in environment steps; `absolute_metrics` is the final evaluation.
    """
    result: dict[str, Any] = {}
    for label, runs in groups.items():
        for logged in runs:
            suite, _, task = logged.run.env.partition("/")
            algorithms = result.setdefault(suite, {}).setdefault(task or suite, {}).setdefault(label, {})
            rows = [row for row in logged.rows if row["kind"] == "evaluation" and row.get(metric) is not None]
            run: dict[str, Any] = {
                f"step_{index}": {
                    "step_count": row["env_steps"],
                    "elapsed_time": row["wall_seconds"],
                    metric: [row[metric]],
                }
                for index, row in enumerate(rows)
            }
            if logged.run.final_return is not None:
                run["absolute_metrics"] = {metric: [logged.run.final_return]}
            name = f"seed_{logged.run.seed}"
            algorithms[name if name not in algorithms else f"{name}_{len(algorithms)}"] = run
    return result


def write_marl_eval(groups: Mapping[str, Sequence[Logged]], path: Path) -> None:
    """Writes `to_marl_eval` as JSON."""
    write_json(path, to_marl_eval(groups))
