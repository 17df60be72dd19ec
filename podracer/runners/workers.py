"""Threads that end together: the main thread supervises, workers compile and run.

Python hears signals only in its main thread, and not while that is inside XLA. So the main thread
waits with short timeouts, an exception in a worker travels to it, and closing joins every worker.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")

_POLL_SECONDS = 0.1
_JOIN_SECONDS = 10.0
_OUT_OF_MEMORY = (
    "a device is out of memory: podracer plan shows what it holds; fewer env.num_envs, a shorter agent.unroll_length, "
    "more agent.num_minibatches or a network.chunk_size need less"
)


class Stopped(Exception):
    """Raised in a worker that waits when the run ends; ends the worker silently."""


class WorkerHung(RuntimeError):
    """A worker did not stop in time, for instance inside an environment's native code."""


class Workers:
    """A group of threads with one fate: the first exception of any of them ends all.

    Leaving its `with` block stops and joins them, and raises a failure that nobody has seen yet.
    """

    def __init__(self):
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind, error, traceback) -> None:
        try:
            self.close()
        except WorkerHung as hung:
            if kind is None or kind is GeneratorExit:
                raise
            error.add_note(str(hung))  # what ended the run is told first
        if kind is None:
            self.check()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def start(self, name: str, target: Callable[[], Any]) -> None:
        """Runs `target` in a thread of this name."""
        # Daemons, so that a thread that hangs in native code cannot keep the process alive.
        thread = threading.Thread(name=name, target=self._run, args=(target,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def check(self) -> None:
        """Raises the first exception of a worker, if there was one."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Stops and joins every worker.

        Raises:
          WorkerHung: naming the threads that did not stop within 10 seconds.
        """
        self._stopping.set()
        deadline = time.monotonic() + _JOIN_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        hung = [thread.name for thread in self._threads if thread.is_alive()]
        if hung:
            raise WorkerHung(f"did not stop within {_JOIN_SECONDS:.0f} s: {', '.join(hung)}")

    def wait(self, condition: threading.Condition, predicate: Callable[[], bool]) -> None:
        """Waits, with the condition held, until the predicate holds; raises `Stopped` when the run ends."""
        while not predicate():
            if self.stopping:
                raise Stopped
            condition.wait(_POLL_SECONDS)

    def _run(self, target: Callable[[], Any]) -> None:
        try:
            target()
        except Stopped:
            self._stopping.set()  # a worker may have decided that itself, and others wait for it
        except BaseException as error:
            if "RESOURCE_EXHAUSTED" in str(error):
                error.add_note(_OUT_OF_MEMORY)
            with self._lock:
                if self._failure is None:
                    self._failure = error
            self._stopping.set()


class Channel(Generic[Item]):
    """A bounded queue between workers; every wait ends when the run does."""

    def __init__(self, workers: Workers, size: int):
        self._workers = workers
        self._queue: queue.Queue = queue.Queue(size)

    def put(self, item: Item) -> None:
        """Waits for room; raises `Stopped` when the run ends."""
        while True:
            if self._workers.stopping:
                raise Stopped
            try:
                return self._queue.put(item, timeout=_POLL_SECONDS)
            except queue.Full:
                pass

    def get(self, check: Callable[[float], None] | None = None) -> Item:
        """Waits for an item; raises `Stopped` when the run ends.

        Args:
          check: called now and then with the seconds waited.
        """
        started = time.monotonic()
        while True:
            try:
                return self._queue.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                if self._workers.stopping:
                    raise Stopped from None
            if check is not None:
                check(time.monotonic() - started)

    def qsize(self) -> int:
        return self._queue.qsize()


class Reports(Generic[Item]):
    """Hands items from one worker to the main thread, which may ask it to pause meanwhile."""

    def __init__(self, workers: Workers):
        self._workers = workers
        self._channel: Channel = Channel(workers, 1)
        self._resumed = threading.Condition()
        self._handled = 0
        self._sent = 0

    def send(self, item: Item, *, pause: bool = False) -> None:
        """Hands out an item; with `pause`, waits until the main thread has handled it and those before."""
        self._sent += 1
        self._channel.put(item)
        if pause:
            with self._resumed:
                self._workers.wait(self._resumed, lambda: self._handled >= self._sent)

    def end(self) -> None:
        """Says that no item follows."""
        self._channel.put(_END)

    def __iter__(self) -> Iterator[Item]:
        """Yields the items in the main thread; raises a worker's exception with its own traceback."""
        return self.watched(lambda seconds: None)

    def watched(self, check: Callable[[float], None]) -> Iterator[Item]:
        """Yields the items as iteration does, and calls `check` with the seconds of waiting while there is none."""
        while True:
            item = _END
            with contextlib.suppress(Stopped):
                item = self._channel.get(check)
            if item is _END:
                # Not while `Stopped` is handled: a failure would be told with two tracebacks.
                self._workers.check()
                return
            yield item
            with self._resumed:
                self._handled += 1
                self._resumed.notify_all()


_END: Any = object()


def call_in_worker(name: str, function: Callable[[Workers], Item]) -> Item:
    """Calls a function in a thread and returns its result, so that the main thread hears signals meanwhile.

    The function is given the group it belongs to: where it loops, it looks at `stopping`.

    Raises:
      Stopped: if the function did.
    """
    with Workers() as workers:
        reports: Reports[Item] = Reports(workers)

        def work():
            reports.send(function(workers))
            reports.end()

        workers.start(name, work)
        for result in reports:
            return result
        raise Stopped
