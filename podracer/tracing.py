"""The trace of JAX's profiler that `profile=true` writes."""

from pathlib import Path

import jax

# The updates between which a trace is recorded.
PROFILED_UPDATES = (10, 15)


class Trace:
    """A trace of `PROFILED_UPDATES`, or of the last updates of a run that has fewer."""

    def __init__(self, folder: Path | None, total_updates: int):
        """Args: folder: where it is written to; None writes none."""
        self._folder = folder
        self._is_running = False
        self.updates: list[int] = []  # after which it begins and ends
        # There is no moment between updates before the first, so a run of one has no trace.
        if folder is not None and total_updates > 1:
            first, last = PROFILED_UPDATES
            self.updates = [min(first, total_updates - 1), min(last, total_updates)]

    def begin_at(self, updates: int) -> None:
        if updates in self.updates[:1]:
            jax.profiler.start_trace(self._folder)
            self._is_running = True

    def end_at(self, updates: int) -> None:
        if updates in self.updates[1:]:
            self.close()

    def close(self) -> None:
        if self._is_running:
            self._is_running = False
            jax.profiler.stop_trace()
