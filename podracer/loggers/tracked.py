"""What trackers outside of the run's folder have in common: they cannot forget a row."""

import collections
import json
import math
import time
from pathlib import Path
from typing import Any

import yaml

from podracer.logging import Row, write_json


class Told:
    """What a tracker has been told of a run, kept in the run's folder.

    A run that goes on from a checkpoint comes by rows that its tracker has already. They are not told
    again, so that the tracker's axis increases. A tracker that works in the background may lose the
    latest rows if the process is killed: a row counts when it has had the time to arrive, and the
    rows that the run keeps come by once more when it goes on.
    """

    def __init__(self, path: Path, *, resume: bool):
        """Args: path: the file; resume: whether to go on from it, if it is there."""
        self._path = path
        stored = json.loads(path.read_text(encoding="utf-8")) if resume and path.exists() else {}
        self.run_id: str | None = stored.get("run_id")  # None until the tracker knows the run
        self.rows: int = stored.get("rows", 0)  # told, whether they have arrived or not
        self._before: dict[str, int] = stored.get("env_steps", {})  # the greatest of each kind
        self._arrived_rows, self._arrived_env_steps = self.rows, dict(self._before)
        self._under_way: collections.deque[tuple[float, Row]] = collections.deque()
        self._arrival_seconds = 0.0

    def begin(self, run_id: str, arrival_seconds: float = 0.0) -> None:
        """Keeps the name by which the tracker knows the run, and how long a row may take to arrive."""
        self.run_id = run_id
        self._arrival_seconds = arrival_seconds
        self._save()

    def has(self, row: Row) -> bool:
        """Whether an earlier process of the run has told this row, or one beyond it."""
        return row.env_steps <= self._before.get(row.kind, -1)

    def add(self, row: Row) -> None:
        """Keeps that a row was told."""
        self.rows += 1
        now = time.monotonic()
        self._under_way.append((now, row))
        self._arrive(now - self._arrival_seconds)

    def end(self) -> None:
        """Keeps that all rows have arrived."""
        self._arrive(math.inf)

    def _arrive(self, until: float) -> None:
        while self._under_way and self._under_way[0][0] <= until:
            _, row = self._under_way.popleft()
            self._arrived_rows += 1
            self._arrived_env_steps[row.kind] = max(int(row.env_steps), self._arrived_env_steps.get(row.kind, -1))
        self._save()

    def _save(self) -> None:
        stored = {"run_id": self.run_id, "rows": self._arrived_rows, "env_steps": self._arrived_env_steps}
        write_json(self._path, stored)


def run_name(folder: Path) -> str:
    """What a tracker calls a run: the end of its path, of which a sweep's last part is a mere number."""
    return "/".join(folder.resolve().parts[-2:])


def parameters(folder: Path) -> dict[str, Any]:
    """The configuration of the run, as its folder holds it; empty where it holds none."""
    path = folder / "config.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
