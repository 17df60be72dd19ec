"""Steps per second of a run, through its own runner, a piece at a time."""

import contextlib
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from podracer.build import Run
from podracer.runner import Due


class Piece(NamedTuple):
    """A stretch of training, or of what it is compared with."""

    env_steps: int
    seconds: float  # of wall time
    cpu_seconds: float  # of the process, over all its threads
    updates: int = 0  # of the run

    @property
    def steps_per_second(self) -> float:
        return self.env_steps / self.seconds

    @property
    def steps_per_cpu_second(self) -> float:
        return self.env_steps / self.cpu_seconds


class SteadyRun:
    """A run that trains for as long as it is asked to and pauses in between."""

    def __init__(self, run: Run):
        """Compiles the run and makes its first updates, which no piece contains."""
        self.compile_seconds = 0.0
        self.agent_updates = 0
        self._updates = self._env_steps = 0
        self._target = 1
        # A snapshot is what a runner pauses for.
        self._reports = run.runner.run(run.runner.init(), lambda updates: Due(self._target, snapshot=True))
        self._advance(1)  # compiles
        first = self._advance(2)
        self._seconds_per_update = first.seconds / 2

    def train(self, seconds: float) -> Piece:
        """Trains for about so many seconds of wall time."""
        updates = max(1, round(seconds / self._seconds_per_update))
        piece = self._advance(updates)
        self._seconds_per_update = piece.seconds / updates
        return piece

    def close(self) -> None:
        """Ends the run; no thread of it is left."""
        self._reports.close()

    def _advance(self, updates: int) -> Piece:
        self._target = self._updates + updates
        env_steps, seconds, cpu = self._env_steps, 0.0, time.process_time()
        for report in self._reports:
            self._updates, self._env_steps = report.updates, report.env_steps
            seconds += report.timings["train_seconds"]
            self.compile_seconds += report.timings.get("compile_seconds", 0.0)
            self.agent_updates += report.counters["agent_updates"]
            if report.snapshot is not None:
                break
        return Piece(self._env_steps - env_steps, seconds, time.process_time() - cpu, updates)


@contextlib.contextmanager
def steady(run: Run, warm_up_seconds: float) -> Iterator[SteadyRun]:
    """A run past its warm-up, ended on leaving."""
    training = SteadyRun(run)
    try:
        training.train(warm_up_seconds)
        while not training.agent_updates:  # a replay fills before it is learnt from
            training.train(warm_up_seconds)
        yield training
    finally:
        training.close()


def summarise(pieces: Sequence[Piece]) -> dict[str, Any]:
    """Median, least and greatest rate."""
    rates = [piece.steps_per_second for piece in pieces]
    return {
        "steps_per_second": statistics.median(rates),
        "steps_per_second_min": min(rates),
        "steps_per_second_max": max(rates),
        "steps_per_cpu_second": statistics.median(piece.steps_per_cpu_second for piece in pieces),
    }
