"""The curves of runs, read from their folders, and sets of them that are compared."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from podracer.conversion import ConfigError, flattened, unknown_key
from podracer.runs import Run, find_runs

X_AXES = ("env_steps", "wall_seconds", "updates", "agent_updates", "usd")
KINDS = ("evaluation", "train")

# The C parser is eight times as fast.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Curve(NamedTuple):
    x: np.ndarray  # [N] ascending
    y: np.ndarray  # [N]


@dataclass(frozen=True)
class Logged:
    """A run with its settings and the rows of its metrics."""

    run: Run
    settings: Mapping[str, Any]  # by dotted key
    rows: Sequence[Mapping[str, Any]]

    def curve(
        self, y: str, *, kind: str = "evaluation", x: str = "env_steps", usd_per_hour: float | None = None
    ) -> Curve:
        """The points where a metric was logged.

        Args:
          y: the metric.
          kind: of the rows, train or evaluation.
          x: one of `X_AXES`.
          usd_per_hour: what an hour of the machine costs, for `x="usd"`.
        """
        total, points = 0, []
        for row in self.rows:
            total += row.get("agent_updates") or 0
            if row["kind"] != kind or row.get(y) is None:
                continue
            if x == "usd":
                at = row["wall_seconds"] / 3600 * usd_per_hour
            else:
                at = total if x == "agent_updates" else row[x]
            points.append((at, row[y]))
        values = np.array(points, np.float64).reshape(-1, 2)
        return Curve(values[:, 0], values[:, 1])


def read_runs(folders: Iterable[Path]) -> list[Logged]:
    """Reads the runs in and below some folders, each once.

    Raises:
      FileNotFoundError: there is no such folder, or no run in it.
    """
    found: dict[Path, Run] = {}
    for folder in folders:
        runs = find_runs(folder)
        if not runs:
            raise FileNotFoundError(f"there is no run in or below {folder}")
        found |= {run.folder.resolve(): run for run in runs}
    return [_read(run) for run in found.values()]


def group(runs: Sequence[Logged], keys: Sequence[str]) -> dict[str, list[Logged]]:
    """Sorts runs by the values of some settings, named as on the command line.

    Args:
      runs: any.
      keys: dotted settings; `env` stands for suite and id.

    Raises:
      ConfigError: no run has such a setting.
    """
    known = {key for logged in runs for key in logged.settings}
    for key in keys:
        if key not in known:
            raise unknown_key(key, known)
    groups: dict[str, list[Logged]] = {}
    for logged in runs:
        label = ", ".join(_label(key, logged.settings.get(key)) for key in keys) or "all runs"
        groups.setdefault(label, []).append(logged)
    return dict(sorted(groups.items()))


def differing_keys(runs: Sequence[Logged]) -> list[str]:
    """The settings by which runs differ, but their seeds: what one would tell them apart by."""
    keys = sorted({key for logged in runs for key in logged.settings} - {"seed", "env"})
    return [key for key in keys if len({repr(logged.settings.get(key)) for logged in runs}) > 1]


def scores(groups: Mapping[str, Sequence[Logged]], measure: str = "final_return") -> dict[str, dict[str, list[float]]]:
    """`{group: {environment: [score of each run]}}`; runs without a score are left out."""
    result: dict[str, dict[str, list[float]]] = {}
    for label, runs in groups.items():
        for logged in sorted(runs, key=lambda logged: logged.run.seed):
            value = getattr(logged.run, measure)
            if value is not None:
                result.setdefault(label, {}).setdefault(logged.run.env, []).append(value)
    return result


def _label(key: str, value: Any) -> str:
    return str(value) if key in ("env", "agent.name", "runner.name") else f"{key}={value}"


def _read(run: Run) -> Logged:
    config = yaml.load((run.folder / "config.yaml").read_text(encoding="utf-8"), Loader=_Loader)
    settings = {**dict(flattened(config)), "env": run.env}
    rows = []
    try:
        with open(run.folder / "metrics.jsonl", encoding="utf-8") as file:
            rows = [row for row in map(_parse, file) if row is not None]
    except FileNotFoundError:
        pass
    return Logged(run, settings, rows)


def _parse(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None  # the last line of a run that was killed
    return row if isinstance(row, dict) and "kind" in row else None


def check_x(x: str, usd_per_hour: float | None) -> None:
    """Raises `ConfigError` for an axis that there is none of, or that lacks its price."""
    if x not in X_AXES:
        raise ConfigError(f"--x {x} is none of {', '.join(X_AXES)}")
    if x == "usd" and usd_per_hour is None:
        raise ConfigError("--x usd needs the price of the machine: --usd-per-hour 4.5")
