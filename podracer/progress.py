"""What is known of a run so far: what its result is made of, and what a checkpoint keeps of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from podracer.runner import Episodes, no_episodes


@dataclass
class Progress:
    """What is known of a run so far."""

    updates: int = 0
    env_steps: int = 0
    episodes: Episodes = field(default_factory=no_episodes)
    train_seconds: float = 0.0
    compile_seconds: float = 0.0
    steady_seconds: float = 0.0  # of the chunks after the first
    steady_env_steps: int = 0
    best_return: float | None = None
    final_return: float | None = None
    policy_lag_sum: float = 0.0
    policy_lag_max: float = 0.0
    wall_seconds: float = 0.0  # up to the last report
    seconds: dict[str, float] = field(default_factory=dict)  # by activity, as rows name them

    def to_plain(self) -> dict[str, Any]:
        return {**vars(self), "episodes": list(self.episodes)}

    @staticmethod
    def from_plain(values: Mapping[str, Any]) -> "Progress":
        return Progress(**{**values, "episodes": Episodes(*values["episodes"])})
