"""One console for runs that are trained together: it shows their mean."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from podracer.console import Console
from podracer.logging import Row

if TYPE_CHECKING:
    from podracer.parallel.mesh import Plan


class Shared:
    """What each run takes for a console of its own, in any thread; `seat` gives it one."""

    def __init__(self, console: Console):
        self._console = console
        self._lock = threading.Lock()
        self._seats: list[Seat] = []
        self._rows: dict[tuple[str, int], dict[Seat, Row]] = {}  # of the runs so far, by kind and update

    def seat(self) -> "Seat":
        """A place for one run."""
        self._seats.append(Seat(self))
        return self._seats[-1]

    def start(self, plan: "Plan", title: str) -> None:
        self._console.start(plan, title)

    def close(self) -> None:
        self._console.close()

    def phase(self, seat: "Seat", name: str) -> None:
        with self._lock:
            if seat is self._seats[0]:
                self._console.phase(name)

    def take(self, seat: "Seat", row: Row) -> None:
        """Shows the mean of a row once every run has given its own."""
        with self._lock:
            self._rows.setdefault((row.kind, row.updates), {})[seat] = row
            self._show_complete()

    def leave(self, seat: "Seat") -> None:
        """Waits for a run no longer, which may have been the last that rows waited for."""
        with self._lock:
            self._seats.remove(seat)
            for rows in self._rows.values():
                rows.pop(seat, None)
            self._show_complete()

    def finish(self, results: Sequence[Mapping[str, Any]]) -> None:
        """Shows what the results come to: sums of steps and episodes, means of returns."""
        returns = [result["final_return"] for result in results if result["final_return"] is not None]
        rates = [result["steps_per_second"] for result in results if result["steps_per_second"] is not None]
        best = [result["best_return"] for result in results if result["best_return"] is not None]
        completed = sum(result["status"] == "completed" for result in results)
        is_whole = completed == len(results)
        shown = {
            "status": "completed" if is_whole else f"{completed} of {len(results)} runs completed",
            "env_steps": sum(result["env_steps"] for result in results),
            "updates": max(result["updates"] for result in results),
            "episodes": sum(result["episodes"] for result in results),
            "train_seconds": max(result["train_seconds"] for result in results),
            "compile_seconds": max(result["compile_seconds"] for result in results),
            "steps_per_second": sum(rates) if rates else None,
            "final_return": float(np.mean(returns)) if returns else None,
            "final_return_std": float(np.std(returns)) if returns else None,
            "best_return": max(best, default=None),
        }
        self._console.finish(shown, None)

    def _show_complete(self) -> None:
        """Shows the rows that every run has given, in the order of their first."""
        complete = [key for key, rows in self._rows.items() if all(seat in rows for seat in self._seats)]
        for kind, updates in complete:
            rows = list(self._rows.pop((kind, updates)).values())
            if rows:
                shown = self._console.report if kind == "train" else self._console.evaluation
                shown(_mean(rows))


class Seat:
    """The console of one run among others."""

    def __init__(self, shared: Shared):
        self._shared = shared

    def start(self, plan: "Plan", title: str) -> None:
        del plan, title

    def phase(self, name: str) -> None:
        self._shared.phase(self, name)

    def report(self, row: Row) -> None:
        self._shared.take(self, row)

    def evaluation(self, row: Row) -> None:
        self._shared.take(self, row)

    def finish(self, result: Mapping[str, Any], folder: Path | None) -> None:
        del result, folder

    def close(self) -> None:
        pass


def _mean(rows: Sequence[Row]) -> Row:
    """The mean of the runs' rows, each metric over those that have it; their speeds add up."""
    names = dict.fromkeys(name for row in rows for name in row.values)
    values = {name: float(np.mean([row.values[name] for row in rows if name in row.values])) for name in names}
    if "steps_per_second" in values:
        values["steps_per_second"] *= len(rows)
    env_steps = round(sum(row.env_steps for row in rows) / len(rows))
    return rows[0]._replace(env_steps=env_steps, values=values)
