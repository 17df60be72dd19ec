"""The one trajectory store: on-policy is a store of one unroll, off-policy a larger one."""

from typing import Any, Protocol, TypeVar

from podracer.types import Array, ArrayTree, Batch, Key, Trajectory

State = TypeVar("State")


class Replay(Protocol[State]):
    """Pure functions over an explicit state, one shard a learner device, sampled locally."""

    updates_per_unroll: int  # how many batches are sampled for every trajectory that is added

    def init(self, example: Trajectory) -> State:
        """Makes an empty store for trajectories of this structure, `[T+1, B, ...]`."""
        ...

    def add(self, state: State, trajectory: Trajectory) -> State:
        """Stores one trajectory."""
        ...

    def can_sample(self, state: State) -> Array:
        """`[]` bool, whether there is enough to sample from."""
        ...

    def sample(self, state: State, key: Key) -> Batch:
        """Draws a batch of sequences."""
        ...

    def set_priorities(self, state: State, indices: ArrayTree, priorities: Array) -> State:
        """Changes the priorities of sampled sequences."""
        ...

    def retain(self, state: State) -> Any:
        """Selects what outlives the learn phase, a state as `init` makes it. An on-policy store keeps nothing."""
        ...

    def size(self, state: State) -> Array:
        """`[]` int32, number of stored transitions."""
        ...
