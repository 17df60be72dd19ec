"""Several loggers at once, and what the failure of one of them costs."""

import contextlib
import sys
from collections.abc import Callable, Sequence

from podracer.logging import Logger, Row


class Multi:
    """Several loggers as one. Each gets every call even if another fails; then the failure is raised."""

    def __init__(self, loggers: Sequence[Logger]):
        self._loggers = tuple(loggers)

    def write(self, row: Row) -> None:
        with contextlib.ExitStack() as calls:
            for logger in reversed(self._loggers):
                calls.callback(logger.write, row)

    def close(self, status: str) -> None:
        with contextlib.ExitStack() as calls:
            for logger in reversed(self._loggers):
                calls.callback(logger.close, status)


class Expendable:
    """A logger whose first failure is told on standard error; after it the run goes on without that logger."""

    def __init__(self, name: str, make: Callable[[], Logger]):
        """Makes the logger, which may fail, too; `name` is what the failure is told of."""
        self._name = name
        self._logger: Logger | None = None
        try:
            self._logger = make()
        except Exception as error:
            self._tell(error, "could not start")

    def write(self, row: Row) -> None:
        if self._logger is None:
            return
        try:
            self._logger.write(row)
        except Exception as error:
            failed, self._logger = self._logger, None
            self._tell(error, f"failed at env_steps={row.env_steps}")
            with contextlib.suppress(Exception):
                failed.close("failed")

    def close(self, status: str) -> None:
        if self._logger is None:
            return
        try:
            self._logger.close(status)
        except Exception as error:
            self._tell(error, "failed to close")
        self._logger = None

    def _tell(self, error: Exception, what: str) -> None:
        print(
            f"podracer: the logger {self._name} {what} and gets no more rows; the run goes on, metrics.jsonl has them"
            f" (logger.fail_on_error=true would end it): {type(error).__name__}: {error}",
            file=sys.stderr,
            flush=True,
        )
