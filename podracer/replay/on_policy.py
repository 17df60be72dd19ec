"""On-policy learning as the smallest replay: one unroll, sampled once, whole, in its own order."""

from dataclasses import dataclass

import jax.numpy as jnp

from podracer.types import Array, ArrayTree, Batch, Key, Trajectory, valid_transitions

Empty = tuple[()]


@dataclass(frozen=True)
class OnPolicy:
    """Its state is the trajectory itself between `add` and `retain`, and nothing otherwise."""

    updates_per_unroll: int = 1
    """How many times the agent is updated with every unroll."""

    def summary(self) -> dict[str, float]:
        return {}

    def init(self, example: Trajectory) -> Empty:
        del example
        return ()

    def add(self, state: Empty | Trajectory, trajectory: Trajectory) -> Trajectory:
        del state
        return trajectory

    def take_updates(self, state: Trajectory) -> tuple[Trajectory, int]:
        return state, self.updates_per_unroll

    def can_sample(self, state: Empty | Trajectory) -> Array:
        return jnp.asarray(isinstance(state, Trajectory))

    def sample(self, state: Trajectory, key: Key) -> tuple[Trajectory, Batch]:
        del key
        batch_size = state.steps.timestep.reward.shape[1]
        batch = Batch(state, jnp.arange(batch_size, dtype=jnp.int32), jnp.ones((batch_size,), jnp.float32))
        return state, batch

    def set_priorities(self, state: Trajectory, indices: ArrayTree, priorities: Array) -> Trajectory:
        raise TypeError("an on-policy store has no priorities: use replay=prioritised")

    def retain(self, state: Trajectory) -> Empty:
        # The trajectory is not carried to the next unroll, so a device holds one at a time.
        return ()

    def reshard(self, state: Empty, num_devices: int) -> Empty:
        return state

    def size(self, state: Empty | Trajectory) -> Array:
        if not isinstance(state, Trajectory):
            return jnp.zeros((), jnp.int32)
        timestep = state.steps.timestep
        return jnp.sum(valid_transitions(timestep.step_type, timestep.discount), dtype=jnp.int32)
