"""First in, first out: every unroll is learnt from once, whole, in the order in which they came.

For agents that learn from fresh unrolls. Several of them to an update make a larger batch than acts at a time.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from podracer.replay import shards
from podracer.types import Array, ArrayTree, Batch, Key, Trajectory, valid_transitions


class QueueState(NamedTuple):
    unrolls: Trajectory  # [K, T+1, B, ...], its memory [K, B, ...]
    head: Array  # [1] int32 place of the oldest
    waiting: Array  # [1] int32 unrolls, from head onwards


@dataclass(frozen=True, kw_only=True)
class Queue:
    """Hands out unrolls joined along the batch and forgets them. See `podracer.replay.base.Replay`."""

    unrolls_per_update: int = 1
    """Unrolls of all environments that the agent is updated with at a time."""
    capacity_unrolls: int | None = None
    """Unrolls that may wait; of more, the oldest is given up. None: as many as an update takes, and with one update
    for every so many unrolls, none is ever given up."""

    def __post_init__(self):
        if self.unrolls_per_update < 1:
            raise ValueError(f"replay.unrolls_per_update={self.unrolls_per_update} is too small; use at least 1")
        if self._places < self.unrolls_per_update:
            raise ValueError(
                f"replay.capacity_unrolls={self.capacity_unrolls} holds no batch of replay.unrolls_per_update="
                f"{self.unrolls_per_update}; use at least {self.unrolls_per_update}"
            )

    def summary(self) -> dict[str, float]:
        return {"unrolls_per_update": self.unrolls_per_update, "capacity_unrolls": self._places}

    def init(self, example: Trajectory) -> QueueState:
        unrolls = jax.tree.map(lambda leaf: jnp.zeros((self._places, *leaf.shape), leaf.dtype), example)
        return QueueState(unrolls, jnp.zeros((1,), jnp.int32), jnp.zeros((1,), jnp.int32))

    def add(self, state: QueueState, trajectory: Trajectory) -> QueueState:
        place = (state.head[0] + state.waiting[0]) % self._places
        unrolls = jax.tree.map(
            lambda stored, new: jax.lax.dynamic_update_index_in_dim(stored, new, place, 0), state.unrolls, trajectory
        )
        given_up = jnp.maximum(state.waiting + 1 - self._places, 0)
        return QueueState(unrolls, (state.head + given_up) % self._places, state.waiting + 1 - given_up)

    def take_updates(self, state: QueueState) -> tuple[QueueState, Array]:
        return state, state.waiting[0] // self.unrolls_per_update

    def can_sample(self, state: QueueState) -> Array:
        return state.waiting[0] >= self.unrolls_per_update

    def sample(self, state: QueueState, key: Key) -> tuple[QueueState, Batch]:
        """Takes out the oldest unrolls, side by side in the batch: all environments of the first, then of the next."""
        del key
        count = self.unrolls_per_update
        places = (state.head[0] + jnp.arange(count)) % self._places
        oldest = jax.tree.map(lambda stored: stored[places], state.unrolls)  # [N, T+1, B, ...]
        steps = jax.tree.map(
            lambda leaf: jnp.moveaxis(leaf, 0, 1).reshape(leaf.shape[1], count * leaf.shape[2], *leaf.shape[3:]),
            oldest.steps,
        )
        memory = jax.tree.map(lambda leaf: leaf.reshape(count * leaf.shape[1], *leaf.shape[2:]), oldest.actor_state)
        batch_size = steps.timestep.reward.shape[1]
        batch = Batch(Trajectory(steps, memory), jnp.arange(batch_size, dtype=jnp.int32), jnp.ones((batch_size,)))
        return QueueState(state.unrolls, (state.head + count) % self._places, state.waiting - count), batch

    def set_priorities(self, state: QueueState, indices: ArrayTree, priorities: Array) -> QueueState:
        raise TypeError("a queue has no priorities: use replay=prioritised")

    def retain(self, state: QueueState) -> QueueState:
        return state

    def reshard(self, state: QueueState, num_devices: int) -> QueueState:
        old = state.head.shape[0]

        def respread(leaf: Array) -> Array:  # [D · K, T+1, B, ...]
            rows = leaf.reshape(-1, *leaf.shape[2:])  # a row is a timestep of an unroll
            return shards.respread(rows, old, num_devices).reshape(
                -1, leaf.shape[1], rows.shape[1] * old // num_devices, *leaf.shape[3:]
            )

        unrolls = Trajectory(
            jax.tree.map(respread, state.unrolls.steps),
            jax.tree.map(lambda leaf: shards.respread(leaf, old, num_devices), state.unrolls.actor_state),
        )
        return QueueState(unrolls, state.head[:1].repeat(num_devices), state.waiting[:1].repeat(num_devices))

    def size(self, state: QueueState) -> Array:
        timestep = state.unrolls.steps.timestep
        valid = jax.vmap(valid_transitions)(timestep.step_type, timestep.discount)  # [K, T, B]
        age = (jnp.arange(self._places) - state.head) % self._places
        return jnp.sum(valid & (age < state.waiting)[:, None, None], dtype=jnp.int32)

    @property
    def _places(self) -> int:
        return self.unrolls_per_update if self.capacity_unrolls is None else self.capacity_unrolls
