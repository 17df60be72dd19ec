"""Prioritised replay: starts of sequences are sampled in proportion to a power of their priorities.

P(i) = pᵢ^α / Σₖ pₖ^α

"Prioritized Experience Replay", Schaul et al., arXiv 1511.05952, eq. 1, with p = |priority| + ε. New starts get
the largest priority that is in the store. Importance weights are the agent's, from the probabilities of a batch.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podracer.replay import ratio, ring, shards, sum_tree
from podracer.replay.ratio import Credit
from podracer.replay.ring import Ring
from podracer.replay.settings import StoreSettings
from podracer.replay.sum_tree import SumTree
from podracer.types import Array, ArrayTree, Batch, Key, Trajectory


class PrioritisedState(NamedTuple):
    ring: Ring
    tree: SumTree  # of p^α at row / P · B + environment; 0 where no sequence starts that can be read
    credit: Credit


@dataclass(frozen=True, kw_only=True)
class Prioritised(StoreSettings):
    """Samples starts by priority, with replacement. See `podracer.replay.base.Replay`."""

    priority_exponent: float = 0.6
    """α: 0 samples uniformly, 1 in proportion to the priorities."""
    priority_epsilon: float = 1e-6
    """ε: what is added to every priority, so that none is 0."""

    def __post_init__(self):
        super().__post_init__()
        if not self.priority_exponent >= 0:
            raise ValueError(f"replay.priority_exponent={self.priority_exponent} is negative; use 0 to 1")
        if not self.priority_epsilon > 0:
            raise ValueError(f"replay.priority_epsilon={self.priority_epsilon} is not positive; use 1e-6")

    def init(self, example: Trajectory) -> PrioritisedState:
        num_envs = example.steps.timestep.reward.shape[1]
        size = self.num_rows // self.spec.sequence_period * num_envs
        return PrioritisedState(ring.init(example, self.num_rows, self.spec), sum_tree.init(size), ratio.no_credit())

    def add(self, state: PrioritisedState, trajectory: Trajectory) -> PrioritisedState:
        stored = ring.add(state.ring, trajectory, self.spec)
        largest = sum_tree.maximum(state.tree)
        newest = jnp.where(largest > 0, largest, 1.0)
        rows, is_start = ring.find_starts(stored, self.spec, self.spec.unroll_length)
        # What was written over starts nothing until its sequence is complete.
        unreadable = ring.unreadable_starts(stored, self.spec)
        rows = jnp.concatenate([rows, unreadable])
        is_start = jnp.pad(is_start, [(0, unreadable.size), (0, 0)])
        num_envs = is_start.shape[1]
        starts = rows[:, None] // self.spec.sequence_period * num_envs + jnp.arange(num_envs)[None]  # [K, B]
        tree = sum_tree.assign(state.tree, starts.reshape(-1), jnp.where(is_start, newest, 0.0).reshape(-1))
        credit = ratio.insert(state.credit, trajectory, self.updates_per_insert, self.learning_starts, self.axis_name)
        return PrioritisedState(stored, tree, credit)

    def take_updates(self, state: PrioritisedState) -> tuple[PrioritisedState, Array]:
        credit, updates = ratio.take(state.credit, self.can_sample(state), self.axis_name)
        return state._replace(credit=credit), updates

    def can_sample(self, state: PrioritisedState) -> Array:
        return sum_tree.total(state.tree) > 0

    def sample(self, state: PrioritisedState, key: Key) -> tuple[PrioritisedState, Batch]:
        starts = sum_tree.find(state.tree, jax.random.uniform(key, (self.spec.batch_size_per_device,)))
        probabilities = state.tree.sums[0][starts] / sum_tree.total(state.tree)
        return state, Batch(ring.read(state.ring, starts, self.spec), starts, probabilities)

    def set_priorities(self, state: PrioritisedState, indices: ArrayTree, priorities: Array) -> PrioritisedState:
        """Sets the priorities of the starts at `[N]` indices; of an index that occurs twice, the larger counts.

        A priority that is not finite leaves the old one.
        """
        old = state.tree.sums[0][indices]
        new = (jnp.abs(priorities) + self.priority_epsilon) ** self.priority_exponent
        return state._replace(tree=sum_tree.assign(state.tree, indices, jnp.where(jnp.isfinite(new), new, old)))

    def retain(self, state: PrioritisedState) -> PrioritisedState:
        return state

    def reshard(self, state: PrioritisedState, num_devices: int) -> PrioritisedState:
        stored, old = ring.reshard(state.ring, num_devices), state.ring.head.shape[0]
        num_envs = state.ring.steps.timestep.reward.shape[0] // old
        rows = self.num_rows // self.spec.sequence_period
        leaves = np.reshape(state.tree.sums[0], (old, -1))[:, : rows * num_envs]
        leaves = shards.respread(leaves.reshape(-1, num_envs), old, num_devices).reshape(num_devices, -1)
        size = leaves.shape[1]
        trees = [sum_tree.assign(sum_tree.init(size), jnp.arange(size), own) for own in leaves]
        credit = jax.tree.map(lambda leaf: leaf[:1].repeat(num_devices), state.credit)
        return PrioritisedState(stored, shards.join(trees), credit)

    def size(self, state: PrioritisedState) -> Array:
        return ring.size(state.ring)
