"""What trackers outside of the run's folder have in common: they cannot forget a row."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from podracer.logging import Row, write_json


class Told:
    """What a tracker has been told of a run, kept in the run's folder.

    A run that goes on from a checkpoint comes by rows that its tracker has already. They are not told
    again, so that the tracker's axis increases.
    """

    def __init__(self, path: Path, *, resume: bool):
        """Args: path: the file; resume: whether to go on from it, if it is there."""
        self._path = path
        stored = json.loads(path.read_text(encoding="utf-8")) if resume and path.exists() else {}
        self.run_id: str | None = stored.get("run_id")  # None until the tracker knows the run
        self.rows: int = stored.get("rows", 0)
        self._env_steps: dict[str, int] = stored.get("env_steps", {})  # the greatest of each kind
        self._before = dict(self._env_steps)

    def begin(self, run_id: str) -> None:
        """Keeps the name by which the tracker knows the run."""
        self.run_id = run_id
        self._save()

    def has(self, row: Row) -> bool:
        """Whether an earlier process of the run has told this row, or one beyond it."""
        return row.env_steps <= self._before.get(row.kind, -1)

    def add(self, row: Row) -> None:
        """Keeps that a row was told."""
        self.rows += 1
        self._env_steps[row.kind] = max(int(row.env_steps), self._env_steps.get(row.kind, -1))
        self._save()

    def _save(self) -> None:
        write_json(self._path, {"run_id": self.run_id, "rows": self.rows, "env_steps": self._env_steps})


def run_name(folder: Path) -> str:
    """What a tracker calls a run: the end of its path, of which a sweep's last part is a mere number."""
    return "/".join(folder.resolve().parts[-2:])


def parameters(folder: Path) -> dict[str, Any]:
    """The configuration of the run, as its folder holds it; empty where it holds none."""
    path = folder / "config.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}


def flattened(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings by dotted key."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
