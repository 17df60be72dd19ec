"""Comma-separated values: a file for every kind of row, a column for every metric."""

import csv
import io
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from podracer.loggers.files import rewrite
from podracer.logging import Row, stamped_numbers

_UPDATES = 1  # the column of `updates`: the counters come first


class Csv:
    """`metrics_train.csv` and `metrics_evaluation.csv`; a metric that a row lacks is an empty cell.

    A metric that appears later gets a column at the end. The file is then written anew, as often as
    new metrics appear and not as often as rows do; older rows are extended by empty cells.
    """

    def __init__(self, folder: Path, resume_updates: int | None = None):
        """Args: folder: of the run; resume_updates: rows behind it are dropped; None keeps all."""
        self._folder = folder
        self._tables: dict[str, _Table] = {}
        if resume_updates is not None:
            for path in folder.glob("metrics_*.csv"):
                rewrite(path, lambda lines: _keep(lines, resume_updates))

    def write(self, row: Row) -> None:
        if row.kind not in self._tables:
            self._tables[row.kind] = _Table(self._folder / f"metrics_{row.kind}.csv")
        self._tables[row.kind].write(stamped_numbers(row))

    def close(self, status: str) -> None:
        del status
        for table in self._tables.values():
            table.close()


class _Table:
    """One file, open for appending."""

    def __init__(self, path: Path):
        self._path = path
        self._file: IO[str] | None = None
        self._columns: list[str] = []
        if path.exists():
            with open(path, encoding="utf-8", newline="") as file:
                self._columns = next(csv.reader(file), [])

    def write(self, values: dict[str, float]) -> None:
        new = [key for key in values if key not in self._columns]
        if new:
            self._add_columns(new)
        if self._file is None:
            self._file = open(self._path, "a", encoding="utf-8", newline="")  # noqa: SIM115
        self._file.write(_line(repr(values[key]) if key in values else "" for key in self._columns))
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _add_columns(self, new: list[str]) -> None:
        self.close()
        self._columns += new
        header = _line(self._columns)
        self._path.touch()
        rewrite(self._path, lambda lines: _extend(lines, header, len(new)))


def _extend(lines: Iterator[str], header: str, num_new: int) -> Iterator[str]:
    """A header in place of the old one, and empty cells behind the rows."""
    empty = "," * num_new + "\n"
    yield header
    for line in itertools.islice(lines, 1, None):
        yield line.removesuffix("\n") + empty


def _keep(lines: Iterator[str], updates: int) -> Iterator[str]:
    yield from itertools.islice(lines, 1)  # the header
    for line in lines:
        written = line.split(",", _UPDATES + 1)[_UPDATES : _UPDATES + 1]
        # A power failure leaves zeros where a line was.
        if written and written[0].isdecimal() and int(written[0]) <= updates:
            yield line


def _line(cells: Iterable[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()
