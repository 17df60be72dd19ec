"""What a run writes down: rows of metrics while it goes on, a result at its end.

A row is a moment of the run. Every logger keeps every row, also one whose step count is below the
one before it: an evaluation belongs to the parameters it was made with, not to the moment it ended.
"""

import contextlib
import json
import math
import numbers
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

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


@dataclass(frozen=True, kw_only=True)
class LoggerConfig:
    """Where the metrics of a run go. `metrics.jsonl` is always written."""

    tensorboard: bool = True
    """Whether to write TensorBoard events into the run's folder."""
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


def make_logger(config: LoggerConfig, folder: Path, *, is_writer: bool) -> Logger:
    """Makes the loggers of a run.

    Args:
      config: which ones.
      folder: the run's folder.
      is_writer: True in the one process of a run that writes files; the others log nowhere.
    """
    if not is_writer:
        return Multi([])
    return Multi([JsonLines(folder / "metrics.jsonl")] + ([TensorBoard(folder)] if config.tensorboard else []))


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
    values = {**report.metrics, **report.timings, "episodes": count}
    values["steps_per_second"] = chunk_env_steps / max(report.timings["train_seconds"], 1e-9)
    if count:
        values["episode_return"] = return_sum / count
        values["episode_length"] = length_sum / count
        values["episode_return_min"] = return_min
        values["episode_return_max"] = return_max
    return values


class JsonLines:
    """One JSON object a row, on disk as soon as it is written.

    A value that JSON has no number for (NaN, an infinity) is null, which pandas reads as NaN.
    """

    def __init__(self, path: Path):
        # A resumed run appends to the rows it already has.
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115

    def write(self, row: Row) -> None:
        self._file.write(json.dumps(_to_json({"kind": row.kind, **_stamped(row)}), allow_nan=False) + "\n")
        self._file.flush()

    def close(self, status: str) -> None:
        del status
        self._file.close()


class TensorBoard:
    """One event a row, tags `train/...` and `evaluation/...`, over `env_steps`.

    The event file is opened by the first row, since importing TensorBoard takes half a second. It is
    a plain file rather than TensorBoard's own `EventFileWriter`, which imports TensorFlow where that
    is installed.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._writer = None

    def write(self, row: Row) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self._writer is None:
            self._writer = _open_events(self._folder)
        values = {key: value for key, value in _stamped(row).items() if key != "env_steps"}
        summary = Summary(
            value=[Summary.Value(tag=f"{row.kind}/{key}", simple_value=value) for key, value in values.items()]
        )
        event = Event(wall_time=time.time(), step=row.env_steps, summary=summary)
        self._writer.write(event.SerializeToString())
        self._writer.flush()

    def close(self, status: str) -> None:
        del status
        if self._writer is not None:
            self._writer.close()


class Multi:
    """Several loggers as one. Each gets every call even if another fails; then the failure is raised."""

    def __init__(self, loggers: Sequence[Logger]):
        self._loggers = tuple(loggers)

    def write(self, row: Row) -> None:
        with contextlib.ExitStack() as calls:
            for logger in reversed(self._loggers):
                calls.callback(logger.write, row)

    def close(self, status: str) -> None:
        with contextlib.ExitStack() as calls:
            for logger in reversed(self._loggers):
                calls.callback(logger.close, status)


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
    text = json.dumps(_to_json(value), indent=2, allow_nan=False)
    partial = path.with_name(f".{path.name}.partial")
    with open(partial, "w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def _stamped(row: Row) -> dict[str, float]:
    """The values of a row behind its three counters."""
    counters = {"env_steps": row.env_steps, "updates": row.updates, "wall_seconds": row.wall_seconds}
    taken = sorted({"kind", *counters} & row.values.keys())
    if taken:
        raise ValueError(f"a row's values may not be called {', '.join(taken)}: every row has these already")
    return {**counters, **row.values}


def _to_json(value: Any) -> Any:
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
            return {str(key): _to_json(item) for key, item in value.items()}
        case list() | tuple():
            return [_to_json(item) for item in value]
    raise TypeError(f"{type(value).__name__} {value!r} has no place in a JSON file")


def _open_events(folder: Path):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    # TensorBoard reads the files of a folder in the order of their names.
    name = f"events.out.tfevents.{int(time.time()):010d}.{os.getpid()}"
    writer = RecordWriter(open(folder / name, "xb"))  # noqa: SIM115
    # With this version TensorBoard keeps events whose step is below the one before.
    writer.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
    return writer
