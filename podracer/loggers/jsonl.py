"""JSON lines: the record of a run that is always written."""

import json
from collections.abc import Iterator
from pathlib import Path

from podracer.loggers.files import rewrite
from podracer.logging import Row, stamped, to_json


class JsonLines:
    """One JSON object a row, on disk as soon as it is written.

    A value that JSON has no number for (NaN, an infinity) is null, which pandas reads as NaN.
    """

    def __init__(self, path: Path, resume_updates: int | None = None):
        """Opens the file; a run that goes on from a checkpoint drops the rows behind it and appends."""
        self.last_env_steps = 0  # of the rows that were kept
        if resume_updates is not None:
            rewrite(path, lambda lines: self._keep(lines, resume_updates))
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115

    def write(self, row: Row) -> None:
        self._file.write(json.dumps(to_json({"kind": row.kind, **stamped(row)}), allow_nan=False) + "\n")
        self._file.flush()

    def close(self, status: str) -> None:
        del status
        self._file.close()

    def _keep(self, lines: Iterator[str], updates: int) -> Iterator[str]:
        for line in lines:
            try:
                row = json.loads(line)
            except ValueError:
                continue  # a power failure leaves zeros where a line was
            if row["updates"] <= updates:
                self.last_env_steps = max(self.last_env_steps, row["env_steps"])
                yield line


def read_rows(path: Path) -> Iterator[Row]:
    """Reads the rows of a file back; NaN and the infinities, which became null, are None."""
    with open(path, encoding="utf-8") as file:
        for line in file:
            values = json.loads(line)
            yield Row(*(values.pop(name) for name in ("kind", "env_steps", "updates", "wall_seconds")), values)
