"""A store whose every trajectory is written to disk, too."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from podracer.parallel import collectives
from podracer.parallel.host_calls import host_call
from podracer.replay.base import Replay
from podracer.replay.recorder import Recorder
from podracer.types import Array, ArrayTree, Batch, Key, Trajectory


class RecordedState(NamedTuple):
    store: ArrayTree
    index: Array  # [1] int32 unrolls that were recorded


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Another store, what is added to which is recorded. See `podracer.replay.base.Replay`."""

    store: Replay
    recorder: Recorder = field(compare=False)
    axis_name: str | None = None

    def summary(self) -> dict[str, float]:
        return self.store.summary()

    def init(self, example: Trajectory) -> RecordedState:
        return RecordedState(self.store.init(example), jnp.zeros((1,), jnp.int32))

    def add(self, state: RecordedState, trajectory: Trajectory) -> RecordedState:
        shard = collectives.axis_index(self.axis_name)
        next_index = jax.ShapeDtypeStruct((1,), jnp.int32)
        # The next call takes what this one returns, so they are made in order.
        index = host_call(self.recorder.put, next_index, shard, state.index, trajectory)
        return RecordedState(self.store.add(state.store, trajectory), index)

    def take_updates(self, state: RecordedState) -> tuple[RecordedState, int | Array]:
        store, updates = self.store.take_updates(state.store)
        return state._replace(store=store), updates

    def can_sample(self, state: RecordedState) -> Array:
        return self.store.can_sample(state.store)

    def sample(self, state: RecordedState, key: Key) -> tuple[RecordedState, Batch]:
        store, batch = self.store.sample(state.store, key)
        return state._replace(store=store), batch

    def set_priorities(self, state: RecordedState, indices: ArrayTree, priorities: Array) -> RecordedState:
        return state._replace(store=self.store.set_priorities(state.store, indices, priorities))

    def retain(self, state: RecordedState) -> Any:
        return state._replace(store=self.store.retain(state.store))

    def reshard(self, state: RecordedState, num_devices: int) -> RecordedState:
        raise ValueError(
            f"a recording goes on with as many learner devices as it began with: {state.index.shape[0]}, and not "
            f"{num_devices}; use mesh.learner={state.index.shape[0]}"
        )

    def size(self, state: RecordedState) -> Array:
        return self.store.size(state.store)
