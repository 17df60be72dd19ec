"""What a run does when something breaks."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class FaultsConfig:
    """What is done about faults; without these settings, a fault ends the run and says where it happened."""

    nonfinite: Literal["stop", "skip"] = "stop"
    """An update that gives NaN or infinite parameters is never made; then the run stops, or goes on without it."""
    environment: Literal["stop", "restart"] = "stop"
    """When host environments raise, or give NaN or other shapes: stop, or start those of that actor again."""
    max_restarts: int = 3
    """How often an actor's environments are started again before the run stops."""
    step_timeout_seconds: float = 300.0
    """A step of host environments that takes longer counts as hung, and ends the run."""
    stall_warning_seconds: float = 60.0
    """After so many seconds without an update it is told who waits for whom."""

    def __post_init__(self):
        if self.max_restarts < 0:
            raise ValueError(f"faults.max_restarts={self.max_restarts} is below 0; use 0 for none")
        for name in ("step_timeout_seconds", "stall_warning_seconds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"faults.{name}={getattr(self, name)} is not positive; use 60.0")


class NonFiniteError(ArithmeticError):
    """Updates gave parameters that are NaN or infinite."""


class EnvFault(RuntimeError):
    """Host environments gave what no environment may give."""


class EnvHung(RuntimeError):
    """A step of host environments did not return."""
