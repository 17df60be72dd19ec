"""When the run loop saves a run, and what it reads back of one that it goes on with."""

import time
from pathlib import Path
from typing import Any

from podracer.checkpoint import CheckpointConfig, Checkpoints, Saved
from podracer.loggers.jsonl import read_rows
from podracer.parallel.mesh import Plan
from podracer.runner import Report


class Saving:
    """When a run is saved, and with what."""

    def __init__(self, plan: Plan, config: CheckpointConfig, folder: Path | None, saved: Saved | None):
        self._config = config
        self._period = config.period_env_steps and max(1, config.period_env_steps // plan.env_steps_per_update)
        best = [] if saved is None else saved.meta["best"]
        self._checkpoints = None if folder is None else Checkpoints(folder, config, best)
        self._folder = folder
        self._last = time.monotonic()
        self.keeps_state = config.enabled and folder is not None

    def is_overdue(self) -> bool:
        seconds = self._config.period_seconds
        return self.keeps_state and seconds is not None and time.monotonic() - self._last > seconds

    def next_after(self, updates: int) -> list[int]:
        """The number of updates at which the period in environment steps ends next; [] if there is none."""
        return [(updates // self._period + 1) * self._period] if self.keeps_state and self._period else []

    def save(self, report: Report, progress: dict[str, Any], episode_return: float | None) -> None:
        if self._checkpoints is not None:
            meta = {"env_steps": report.env_steps, "progress": progress}
            self._checkpoints.save(report.updates, report.snapshot, report.state, meta, episode_return)
        self._last = time.monotonic()

    def rate(self, updates: int, episode_return: float) -> None:
        """Notes the return of a checkpoint that was evaluated after it was saved."""
        if self._checkpoints is not None:
            self._checkpoints.rate(updates, episode_return)

    def logged_return(self, updates: int) -> float | None:
        """The mean return of the evaluation after so many updates; None where the run has logged none."""
        if self._folder is None:
            return None
        rows = (row for row in read_rows(self._folder / "metrics.jsonl") if row.kind == "evaluation")
        return next((row.values["episode_return"] for row in rows if row.updates == updates), None)

    def close(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.close()
