"""What a run writes down: rows of metrics while it goes on, a result at its end.

A row is a moment of the run. Every logger keeps every row, also one whose step count is below the
one before it: an evaluation belongs to the parameters it was made with, not to the moment it ended.
"""

import contextlib
import functools
import importlib.util
import json
import math
import numbers
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from podracer.conversion import ConfigError

if TYPE_CHECKING:
    from podracer.runner import Report

# The keys of result.json that every run has; the value is null where there is nothing to tell.
RESULT_KEYS = (
    "status",
    "env_steps",
    "updates",
    "episodes",
    "train_seconds",
    "compile_seconds",
    "steps_per_second",
    "final_return",
    "best_return",
    "policy_lag_mean",
    "policy_lag_max",
)

# Loggers that are packages of their own, each an extra of the same name, and keep a run outside of its files.
TRACKERS = ("wandb", "mlflow")


@dataclass(frozen=True, kw_only=True)
class LoggerConfig:
    """Where the metrics of a run go. `metrics.jsonl` is always written."""

    tensorboard: bool = True
    """Whether to write TensorBoard events into the run's folder."""
    csv: bool = False
    """Whether to write `metrics_train.csv` and `metrics_evaluation.csv`, one column a metric."""
    wandb: bool = False
    """Whether to log to Weights & Biases: pip install 'podracer[wandb]'."""
    wandb_project: str = "podracer"
    """Project of the W&B run."""
    wandb_entity: str | None = None
    """User or team that the W&B run belongs to; null is your default one."""
    wandb_group: str | None = None
    """Groups W&B runs, such as those of a sweep."""
    wandb_mode: Literal["auto", "online", "offline"] = "auto"
    """Whether W&B uploads, or writes files into the run's folder for `wandb sync`; auto: as WANDB_MODE says."""
    mlflow: bool = False
    """Whether to log to MLflow: pip install 'podracer[mlflow]'."""
    mlflow_uri: str | None = None
    """Tracking server or store of MLflow; null is a file store in the run's folder, `mlruns/`."""
    mlflow_experiment: str = "podracer"
    """Experiment of the MLflow run; it is made if it is not there."""
    fail_on_error: bool = False
    """Whether a failing logger ends the run; otherwise it is told of once and dropped. `metrics.jsonl` always does."""
    console: Literal["auto", "live", "plain", "none"] = "auto"
    """What the terminal shows: a live panel, plain lines, nothing; auto: live on a terminal, plain elsewhere."""
    console_period_seconds: float = 5.0
    """Least time between two plain lines, in seconds."""

    def __post_init__(self):
        if self.console_period_seconds < 0:
            raise ValueError(f"logger.console_period_seconds={self.console_period_seconds} is below 0; use 5.0")


class Row(NamedTuple):
    """The metrics of one moment of a run. All values live on the host."""

    kind: Literal["train", "evaluation"]
    env_steps: int  # valid transitions up to the parameters described, a Python integer
    updates: int  # updates behind the parameters described
    wall_seconds: float  # since the run began
    values: Mapping[str, float]  # keys carry their unit; a key without a value is absent


class Logger(Protocol):
    """Something that keeps rows. Called from one thread."""

    def write(self, row: Row) -> None:
        """Keeps one row; when it returns, the row outlives the process."""
        ...

    def close(self, status: str) -> None:
        """Ends the record of a run that completed, was interrupted or failed, as `status` says."""
        ...


def check_installed(config: LoggerConfig) -> None:
    """Refuses loggers whose package is not there.

    Raises:
      ConfigError: naming the extra to install.
    """
    for name in TRACKERS:
        # A mere folder of that name, such as W&B's own files, can be imported, too, but has no origin.
        spec = importlib.util.find_spec(name) if getattr(config, name) else None
        if getattr(config, name) and (spec is None or spec.origin is None):
            raise ConfigError(f"logger.{name}=true needs a package that is missing: pip install 'podracer[{name}]'")


def make_logger(config: LoggerConfig, folder: Path, *, is_writer: bool, resume_updates: int | None = None) -> Logger:
    """Makes the loggers of a run.

    Args:
      config: which ones.
      folder: the run's folder. Trackers take their parameters from its `config.yaml`.
      is_writer: True in the one process of a run that writes files; the others log nowhere.
      resume_updates: updates behind the checkpoint that the run goes on from, None for a new run. Rows that
        were written after it are dropped, since they are about to come again.

    Raises:
      ConfigError: a logger's package is missing.
      OSError: `metrics.jsonl` cannot be written.
    """
    from podracer.loggers.jsonl import JsonLines, read_rows
    from podracer.loggers.several import Expendable, Multi

    if not is_writer:
        return Multi([])
    check_installed(config)
    rows = JsonLines(folder / "metrics.jsonl", resume_updates)
    resume_env_steps = None if resume_updates is None else rows.last_env_steps
    loggers: list[Logger] = [rows]
    with contextlib.ExitStack() as opened:
        opened.callback(lambda: Multi(loggers).close("failed"))
        for name in [name for name in ("csv", "tensorboard", *TRACKERS) if getattr(config, name)]:
            make = functools.partial(_make, name, config, folder, resume_updates, resume_env_steps)
            loggers.append(make() if config.fail_on_error else Expendable(name, make))
            if resume_updates is not None and name in TRACKERS:
                for row in read_rows(folder / "metrics.jsonl"):
                    loggers[-1].write(row)  # a tracker passes over those that it has
        opened.pop_all()
    return Multi(loggers)


def _make(
    name: str, config: LoggerConfig, folder: Path, resume_updates: int | None, resume_env_steps: int | None
) -> Logger:
    """Makes one of the loggers beside `metrics.jsonl`. Nothing of it is imported before."""
    match name:
        case "csv":
            from podracer.loggers.csv import Csv

            return Csv(folder, resume_updates)
        case "tensorboard":
            from podracer.loggers.tensorboard import TensorBoard

            return TensorBoard(folder, resume_env_steps)
        case "wandb":
            from podracer.loggers.wandb import Wandb

            return Wandb(config, folder, resume_env_steps)
        case "mlflow":
            from podracer.loggers.mlflow import MLflow

            return MLflow(config, folder, resume_env_steps)
    raise ValueError(f"there is no logger {name!r}")


def train_values(report: "Report", chunk_env_steps: int) -> dict[str, float]:
    """Names what a runner reports of a chunk of updates.

    Args:
      report: of the chunk.
      chunk_env_steps: valid transitions of the chunk.

    Returns:
      The report's metrics and timings as they are, `steps_per_second` (of training only), `episodes`,
      and, if an episode ended, `episode_return` and `episode_length` (means), `episode_return_min`
      and `episode_return_max`.
    """
    count, return_sum, length_sum, return_min, return_max = report.episodes
    values = {**report.metrics, **report.timings, **report.counters, "episodes": count}
    values["steps_per_second"] = chunk_env_steps / max(report.timings["train_seconds"], 1e-9)
    if count:
        values["episode_return"] = return_sum / count
        values["episode_length"] = length_sum / count
        values["episode_return_min"] = return_min
        values["episode_return_max"] = return_max
    return values


def write_result(folder: Path, result: Mapping[str, Any]) -> None:
    """Writes `result.json`, the last thing that a run writes.

    Raises:
      ValueError: if a key of `RESULT_KEYS` is missing.
    """
    missing = [key for key in RESULT_KEYS if key not in result]
    if missing:
        raise ValueError(f"the result lacks {', '.join(missing)}; give None where there is nothing to tell")
    write_json(folder / "result.json", result)


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file in one stroke: a reader finds all of it, or what was there before.

    NaN and the infinities become null; paths become strings.
    """
    write_text(path, json.dumps(to_json(value), indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a text file in one stroke, over the one that is there."""
    partial = path.with_name(f".{path.name}.partial")
    with open(partial, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def stamped(row: Row) -> dict[str, float]:
    """The values of a row behind its three counters.

    Raises:
      ValueError: a value has the name of a counter.
    """
    counters = {"env_steps": row.env_steps, "updates": row.updates, "wall_seconds": row.wall_seconds}
    taken = sorted({"kind", *counters} & row.values.keys())
    if taken:
        raise ValueError(f"a row's values may not be called {', '.join(taken)}: every row has these already")
    return {**counters, **row.values}


def stamped_numbers(row: Row) -> dict[str, int | float]:
    """The same in Python's own numbers; a value that is None is NaN."""
    return {key: _to_number(value) for key, value in stamped(row).items()}


def to_json(value: Any) -> Any:
    """The same value in Python's own types, all of which JSON has."""
    match value:
        case None | bool() | str():
            return value
        case PurePath():
            return str(value)
        case numbers.Integral():  # NumPy's integers and floats are registered as these two
            return int(value)
        case numbers.Real():
            return float(value) if math.isfinite(value) else None
        case Mapping():
            return {str(key): to_json(item) for key, item in value.items()}
        case list() | tuple():
            return [to_json(item) for item in value]
    raise TypeError(f"{type(value).__name__} {value!r} has no place in a JSON file")


def _to_number(value: Any) -> int | float:
    if value is None:
        return math.nan
    return int(value) if isinstance(value, numbers.Integral) else float(value)
