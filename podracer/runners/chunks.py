"""Calls a compiled program, some updates a call, and reads what it did while the next call runs."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import jax

from podracer.parallel.mesh import Plan
from podracer.runner import Due, Report
from podracer.runners.learn import Learned, mean_metrics
from podracer.runners.pacing import ChunkSizes
from podracer.runners.unroll import UnrollSums, to_episodes
from podracer.runners.workers import Reports, Stopped
from podracer.types import ArrayTree, PolicySnapshot

Tree = TypeVar("Tree")


class Totals(NamedTuple):
    """What a call sums over its updates, of one run."""

    learned: Learned  # the same on every device
    unrolls: UnrollSums  # [D] each


class Program(Protocol):
    """A compiled program that trains one run, or several together, with what belongs to it."""

    plan: Plan  # the same for all runs but their seeds

    def compile(self, state: ArrayTree) -> Callable[[ArrayTree, int], tuple[ArrayTree, ArrayTree]]:
        """Compiles `(state, number of updates) -> (state, totals)` ahead; the state is donated."""
        ...

    def snapshots(self, state: ArrayTree) -> Sequence[PolicySnapshot]:
        """What each run acts with."""
        ...

    def split(self, tree: ArrayTree) -> Sequence[Any]:
        """Each run's share of a state or of totals."""
        ...


class AnakinState(NamedTuple):
    """A run between two calls."""

    device: ArrayTree  # what the program carries of it
    updates: int
    env_steps: int  # a Python integer: it outgrows 32 bits


class _Call(NamedTuple):
    """A call of the program that was dispatched and not read yet."""

    updates: int  # total at its end
    num_updates: int
    totals: ArrayTree
    snapshots: Sequence[PolicySnapshot] | None
    states: Sequence[ArrayTree] | None


class Chunks:
    """What compiles a program and calls it: `run` is the target of a thread."""

    def __init__(
        self,
        program: Program,
        state: ArrayTree,
        updates: int,
        env_steps: Sequence[int],
        due: Callable[[int], Due],
        reports: Reports[Sequence[Report]],
        updates_per_call: int | None,
    ):
        """Begins nothing yet.

        Args:
          program: of one run or several.
          state: what it carries; it is donated.
          updates: done so far.
          env_steps: of each run so far.
          due: says where a call has to end.
          reports: takes the reports of all runs at a time.
          updates_per_call: None measures how many fit into a second.
        """
        self._program, self._device, self._updates, self._env_steps = program, state, updates, list(env_steps)
        self._due, self._reports = due, reports
        self._sizes = ChunkSizes(updates_per_call)
        self._completed = 0.0  # when the last call that was read had ended
        self._compile_seconds = 0.0

    def run(self) -> None:
        """Calls the program until the budget is spent."""
        started = time.monotonic()
        call_program = self._program.compile(self._device)
        self._completed = time.monotonic()
        self._compile_seconds = self._completed - started  # timed apart
        pending: _Call | None = None
        while self._updates < self._program.plan.updates:
            call = self._dispatch(call_program)
            try:
                if pending is not None:
                    self._reports.send(self._read(pending))
            except Stopped:
                jax.block_until_ready(self._device)  # a process that exits while its devices compute may crash
                raise
            pending = call
            if call.snapshots is not None or call.states is not None:
                # Whoever asked works on the same devices: training pauses, so that neither is timed with the other.
                self._reports.send(self._read(call), pause=True)
                pending, self._completed = None, time.monotonic()
        if pending is not None:
            self._reports.send(self._read(pending))
        self._reports.end()

    def _dispatch(self, call_program: Callable[[ArrayTree, int], tuple[ArrayTree, ArrayTree]]) -> _Call:
        due = self._due(self._updates)
        end = min(due.updates, self._program.plan.updates)
        num_updates = min(self._sizes.next(), end - self._updates)
        self._device, totals = call_program(self._device, num_updates)
        self._updates += num_updates
        is_due = self._updates == end
        return _Call(
            self._updates,
            num_updates,
            totals,
            self._program.snapshots(self._device) if is_due and due.snapshot else None,
            self._program.split(self._device) if is_due and due.state else None,
        )

    def _read(self, call: _Call) -> Sequence[Report]:
        """Waits for a call and reports it."""
        totals = self._program.split(jax.device_get(call.totals))
        now = time.monotonic()
        seconds, self._completed = now - self._completed, now
        self._sizes.record(call.num_updates, seconds)
        compile_seconds, self._compile_seconds = self._compile_seconds, 0.0
        timings = {"train_seconds": seconds, "compile_seconds": compile_seconds}
        return [self._report(index, call, run_totals, timings) for index, run_totals in enumerate(totals)]

    def _report(self, index: int, call: _Call, totals: Totals, timings: dict[str, float]) -> Report:
        self._env_steps[index] += int(totals.unrolls.env_steps.sum(dtype="int64"))
        env_steps = self._env_steps[index]
        return Report(
            updates=call.updates,
            env_steps=env_steps,
            metrics=mean_metrics(totals.learned),
            episodes=to_episodes(totals.unrolls),
            timings=dict(timings),
            counters={
                "agent_updates": int(totals.learned.agent_updates),
                "skipped_updates": int(totals.learned.skipped),
            },
            snapshot=None if call.snapshots is None else call.snapshots[index],
            state=None if call.states is None else AnakinState(call.states[index], call.updates, env_steps),
        )
