"""Where Sebulba's actors stop while the state of a run is read: between unrolls, each with what it goes on from."""

import threading
from typing import Any, NamedTuple

from podracer.runners.workers import Workers
from podracer.trees import Arrays, to_arrays
from podracer.types import ArrayTree, TimeStep


class ActorState(NamedTuple):
    """What an actor goes on from."""

    next_unroll: int
    memory: ArrayTree  # [B, ...]
    timestep: TimeStep  # [B, ...] not acted on yet
    env: Any  # `state` of an environment that has one; None for one that starts anew


class Parking:
    """Open, it lets actors pass; closed, it keeps them, and their states as arrays, from some unroll on."""

    def __init__(self, workers: Workers, num_actors: int):
        self._workers = workers
        self._num_actors = num_actors
        self._closed_from: int | None = None
        self._states: dict[int, Arrays] = {}
        self._changed = threading.Condition()

    def close(self, first_unroll: int) -> None:
        """Keeps every actor that comes to this unroll or a later one."""
        with self._changed:
            self._closed_from = first_unroll

    def open(self) -> None:
        """Lets all actors go on."""
        with self._changed:
            self._closed_from = None
            self._changed.notify_all()

    def enter(self, actor: int, state: ActorState) -> None:
        """Called by an actor before every unroll: waits while it is to be kept."""
        with self._changed:
            if self._passes(state):
                return
            self._states[actor] = to_arrays(state)
            self._changed.notify_all()
            self._workers.wait(self._changed, lambda: self._passes(state))
            del self._states[actor]

    def leave(self, actor: int, state: ActorState) -> None:
        """Called by an actor after its last unroll: it counts as kept for ever."""
        with self._changed:
            self._states[actor] = to_arrays(state)
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Waits until every actor is kept, at most so long; says whether all are."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._states) == self._num_actors, seconds)

    def states(self) -> tuple[Arrays, ...]:
        """The states of all actors, in order."""
        with self._changed:
            return tuple(self._states[actor] for actor in range(self._num_actors))

    def _passes(self, state: ActorState) -> bool:
        return self._closed_from is None or state.next_unroll < self._closed_from
