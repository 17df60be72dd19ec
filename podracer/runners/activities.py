"""What every thread of Sebulba is doing, so that a run that does not move can say who waits for whom."""

import time
import warnings

from podracer.faults import EnvHung, FaultsConfig

STEPPING = "stepping its environments"


class Activities:
    """Written by the threads, watched by the main thread."""

    def __init__(self, config: FaultsConfig):
        self._config = config
        self._now: dict[str, tuple[str, float]] = {}
        self._warned = False

    def begin(self, thread: str, what: str) -> None:
        """Notes what a thread does from now on; assignment to a dictionary is atomic."""
        self._now[thread] = what, time.monotonic()

    def end(self, thread: str) -> None:
        self._now.pop(thread, None)

    def progressed(self) -> None:
        """Says that there was a report: the next stall is another one."""
        self._warned = False

    def check(self, waited_seconds: float) -> None:
        """Called while there is no report.

        Raises:
          EnvHung: a step of environments has not returned for too long.
        """
        now = time.monotonic()
        for thread, (what, since) in list(self._now.items()):
            if what == STEPPING and now - since > self._config.step_timeout_seconds:
                raise EnvHung(
                    f"{thread} has been {what} for {now - since:.0f} s "
                    f"(faults.step_timeout_seconds={self._config.step_timeout_seconds:g}); {self._describe(now)}"
                )
        if waited_seconds > self._config.stall_warning_seconds and not self._warned:
            self._warned = True
            warnings.warn(f"no update for {waited_seconds:.0f} s: {self._describe(now)}", stacklevel=2)

    def _describe(self, now: float) -> str:
        return "; ".join(
            f"{thread} {what} for {now - since:.0f} s" for thread, (what, since) in sorted(self._now.items())
        )
