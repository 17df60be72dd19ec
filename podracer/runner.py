"""What a runner is: a generator of reports. Logging, evaluation, checkpoints and stopping live outside of it."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from podracer.trees import Arrays
from podracer.types import PolicySnapshot

RunState = Any


class Due(NamedTuple):
    """What falls due next, so that a runner ends a chunk of updates there."""

    updates: int  # the number of updates at which the chunk has to end, if it did not end earlier
    snapshot: bool = False  # the report of that chunk carries the parameters of the actors
    state: bool = False  # the report of that chunk carries the whole state, and training pauses meanwhile


class Episodes(NamedTuple):
    """The episodes that ended within a report's chunk, raw; all zero if none did."""

    count: int
    return_sum: float
    length_sum: int
    return_min: float
    return_max: float


class Report(NamedTuple):
    """What a runner says after a chunk of updates. All values live on the host."""

    updates: int  # total so far
    env_steps: int  # valid transitions so far, over all actors, a Python integer
    metrics: dict[str, float]  # means over the updates that the agent made in the chunk; none if it made none
    episodes: Episodes
    timings: dict[str, float]  # seconds of the chunk by activity; `train_seconds` is the whole of it
    # Within the chunk: agent_updates, skipped_updates; of host environments restarted, dropped (transitions).
    counters: dict[str, int]
    snapshot: PolicySnapshot | None = None
    state: RunState | None = None  # a tree; its arrays are donated when the next report is asked for


class Runner(Protocol):
    """Drives an agent and its environments; knows the protocols and no concrete algorithm."""

    def init(self) -> RunState:
        """Makes the state of a new run."""
        ...

    def restore(self, arrays: Arrays) -> RunState:
        """Makes the state of a run that goes on, on the devices of this one.

        Args:
          arrays: `podracer.trees.to_arrays` of the state in a report, of a run with the same agent,
            environment and replay.

        Raises:
          ValueError: the arrays are those of another run.
        """
        ...

    def run(self, state: RunState, due: Callable[[int], Due]) -> Iterator[Report]:
        """Trains until the budget is spent, one report a chunk of updates, at most about 2 s long.

        The state is donated. Closing the generator ends the run in order: no thread is left.

        Args:
          state: from `init` or `restore`.
          due: called with the number of updates done before each chunk; says where it has to end.
        """
        ...


def no_episodes() -> Episodes:
    return Episodes(0, 0.0, 0, float(np.inf), float(-np.inf))


def merge_episodes(first: Episodes, second: Episodes) -> Episodes:
    """The summary of two sets of episodes together."""
    return Episodes(
        first.count + second.count,
        first.return_sum + second.return_sum,
        first.length_sum + second.length_sum,
        min(first.return_min, second.return_min),
        max(first.return_max, second.return_max),
    )
