"""What drives runs to their end: a runner on one side, the loops of one run or of several on the other."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from podracer.runner import Due, Report, Runner, RunState
from podracer.runners.workers import call_in_worker
from podracer.trees import Arrays

if TYPE_CHECKING:
    from podracer.loop import Loop


class Pruned(Exception):
    """Who watches a run has seen enough of it."""


class Together(Protocol):
    """A `Runner` of one run or of several that are trained together: its arguments and reports are those of each."""

    def init(self) -> RunState: ...

    def restore(self, saved: Sequence[Arrays]) -> RunState: ...

    def run(self, state: RunState, due: Callable[[int], Due]) -> Iterator[Sequence[Report]]: ...


class Single:
    """A runner of one run."""

    def __init__(self, runner: Runner):
        self._runner = runner
        self.init = runner.init

    def restore(self, saved: Sequence[Arrays]) -> RunState:
        return self._runner.restore(saved[0])

    def run(self, state: RunState, due: Callable[[int], Due]) -> Iterator[Sequence[Report]]:
        with contextlib.closing(self._runner.run(state, due)) as reports:
            del state
            for report in reports:
                yield [report]


def drive(
    loops: Sequence["Loop"],
    runner: Together,
    failed: Callable[["Loop", Exception], None] | None = None,
    num_threads: int = 1,
) -> None:
    """Trains runs to the end of their common budget.

    Args:
      loops: one of each run, with the same `interrupts`.
      runner: trains all of them.
      failed: is told of the error of one run; the others go on without it. None raises it.
      num_threads: how many runs are evaluated and saved at a time.

    Raises:
      KeyboardInterrupt: a signal came. The update in hand was finished and saved if it ended in time.
    """
    interrupts, running = loops[0].interrupts, list(loops)

    def attempt(calls: Sequence[Callable[[], None]]) -> None:
        """Calls something for each of the runs that go on, and leaves out those that fail."""
        for loop, error in zip(list(running), _errors(calls, num_threads)):
            if error is None:
                continue
            if failed is None:
                raise error
            failed(loop, error)
            running.remove(loop)

    def due(updates: int) -> Due:
        return _first([loop.due(updates) for loop in list(running) or loops])

    with interrupts, contextlib.ExitStack() as stack:
        for loop in loops:
            stack.enter_context(loop.opened())
        state = call_in_worker("init", lambda workers: _start(loops, runner))
        attempt([loop.make_up_evaluation for loop in loops])
        with contextlib.closing(runner.run(state, due)) as reports:
            del state  # it is donated
            for latest in reports:
                interrupts.has_work = True
                reported = zip(loops, latest, strict=True)
                attempt([functools.partial(loop.handle, report) for loop, report in reported if loop in running])
                if not running:
                    return
                if interrupts.requested and latest[0].snapshot is not None:
                    raise KeyboardInterrupt


def _errors(calls: Sequence[Callable[[], None]], num_threads: int) -> Sequence[Exception | None]:
    """Makes some calls, as many at a time as there are threads for, and returns what each raised."""

    def call(function: Callable[[], None]) -> Exception | None:
        try:
            function()
        except Exception as error:
            return error
        return None

    num_threads = min(len(calls), num_threads)
    if num_threads == 1:
        return [call(function) for function in calls]
    with ThreadPoolExecutor(num_threads, "member") as pool:
        try:
            return list(pool.map(call, calls))
        except BaseException:  # a second signal: those at work end soon, as the first was heard by them
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _start(loops: Sequence["Loop"], runner: Together) -> RunState:
    saved = [loop.take_saved() for loop in loops]
    return runner.init() if saved[0] is None else runner.restore(saved)


def _first(dues: Sequence[Due]) -> Due:
    """What falls due first of several."""
    end = min(due.updates for due in dues)
    first = [due for due in dues if due.updates == end]
    return Due(end, any(due.snapshot for due in first), any(due.state for due in first))
