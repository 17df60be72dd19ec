"""Uniform replay: every start of a sequence that is in the store is as likely as any other."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podracer.replay import ratio, ring, shards
from podracer.replay.ratio import Credit
from podracer.replay.ring import Ring
from podracer.replay.settings import StoreSettings
from podracer.types import Array, ArrayTree, Batch, Key, Trajectory

# Rounds of guesses. One in a thousand is still none where a fifth of what is stored are starts.
_GUESSES = 8


class UniformState(NamedTuple):
    ring: Ring
    starts_before: Array  # [C / P · B] uint32 number of starts that came before each that may be one, since the first
    starts: Array  # [1] uint32 number of starts so far
    credit: Credit


@dataclass(frozen=True, kw_only=True)
class Uniform(StoreSettings):
    """Samples starts uniformly, with replacement. See `podracer.replay.base.Replay`."""

    def init(self, example: Trajectory) -> UniformState:
        num_envs = example.steps.timestep.reward.shape[1]
        return UniformState(
            ring.init(example, self.num_rows, self.spec),
            jnp.zeros((self.num_rows // self.spec.sequence_period * num_envs,), jnp.uint32),
            jnp.zeros((1,), jnp.uint32),
            ratio.no_credit(),
        )

    def add(self, state: UniformState, trajectory: Trajectory) -> UniformState:
        credit = ratio.insert(state.credit, trajectory, self.updates_per_insert, self.learning_starts, self.axis_name)
        state = state._replace(ring=ring.add(state.ring, trajectory, self.spec), credit=credit)
        return self._count_starts(state, self.spec.unroll_length)

    def _count_starts(self, state: UniformState, length: int) -> UniformState:
        """Counts the starts among the last `length` rows that are known."""
        rows, is_start = ring.find_starts(state.ring, self.spec, length)
        # The counts grow along the ring, so that the n-th start is found by bisection. They may pass 2³²: only
        # their differences are looked at.
        counts = jnp.cumsum(is_start.reshape(-1), dtype=jnp.uint32)
        before = state.starts + counts - is_start.reshape(-1)
        num_envs = is_start.shape[1]
        at = rows[:, None] // self.spec.sequence_period * num_envs + jnp.arange(num_envs)[None]  # [K, B]
        return state._replace(
            starts_before=state.starts_before.at[at.reshape(-1)].set(before, mode="drop"),
            starts=state.starts + counts[-1],
        )

    def take_updates(self, state: UniformState) -> tuple[UniformState, Array]:
        credit, updates = ratio.take(state.credit, self.can_sample(state), self.axis_name)
        return state._replace(credit=credit), updates

    def can_sample(self, state: UniformState) -> Array:
        return self._num_starts(state) > 0

    def sample(self, state: UniformState, key: Key) -> tuple[UniformState, Batch]:
        num_starts = self._num_starts(state)
        starts = self._draw(state, key)
        probabilities = jnp.full(starts.shape, 1.0) / jnp.maximum(num_starts, 1).astype(jnp.float32)
        return state, Batch(ring.read(state.ring, starts, self.spec), starts, probabilities)

    def set_priorities(self, state: UniformState, indices: ArrayTree, priorities: Array) -> UniformState:
        del indices, priorities  # all starts stay equally likely
        return state

    def retain(self, state: UniformState) -> UniformState:
        return state

    def reshard(self, state: UniformState, num_devices: int) -> UniformState:
        stored = ring.reshard(state.ring, num_devices)
        num_rows, num_envs = self.num_rows // self.spec.sequence_period, stored.steps.timestep.reward.shape[0]
        starts_before = np.zeros(num_rows * num_envs, np.uint32)
        credit = jax.tree.map(lambda leaf: leaf[:1].repeat(num_devices), state.credit)
        spread = UniformState(stored, starts_before, np.zeros(num_devices, np.uint32), credit)
        count_starts = jax.jit(self._count_starts, static_argnums=1)
        return shards.join([count_starts(shard, self.num_rows) for shard in shards.split(spread, num_devices)])

    def size(self, state: UniformState) -> Array:
        return ring.size(state.ring)

    def _num_starts(self, state: UniformState) -> Array:
        """`[]` uint32 number of starts that can be read."""
        oldest, readable = ring.readable_starts(state.ring, self.spec)
        first = state.starts_before[oldest * self._num_envs(state)]
        return jnp.where(readable > 0, state.starts[0] - first, jnp.uint32(0))

    def _draw(self, state: UniformState, key: Key) -> Array:
        """`[N]` int32 starts, each independently as likely as any other that can be read.

        Most of what is stored are starts, so that to guess some and check them takes a few rounds. What is left then
        is found among the starts by their numbers, which is exact but slow.
        """
        num_envs = self._num_envs(state)
        oldest, readable = ring.readable_starts(state.ring, self.spec)
        counts, origin, number = state.starts_before, oldest * num_envs, jnp.maximum(readable * num_envs, 1)
        shape = (self.spec.batch_size_per_device,)

        def is_start(offset: Array) -> Array:
            at = (origin + offset) % counts.size
            following = jnp.where(at + 1 == counts.size, 0, at + 1)
            before, after = (counts.at[index].get(mode="promise_in_bounds") for index in (at, following))
            # What follows the newest is not known yet, or of long ago.
            return jnp.where(offset + 1 == number, state.starts[0], after) != before

        def is_missing(carry: tuple[Array, Array, Array]) -> Array:
            turn, _, found = carry
            return (turn < _GUESSES) & ~jnp.all(found)

        def guess(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            turn, offset, found = carry
            # By a remainder, since a bound that is traced would make `randint` draw twice; what is drawn more often
            # than another is so by `number` in 2³². A share of float32 would leave out every other one of many.
            drawn = jax.random.bits(jax.random.fold_in(key, turn), shape) % number.astype(jnp.uint32)
            offset = jnp.where(found, offset, drawn.astype(jnp.int32))
            return turn + 1, offset, found | is_start(offset)

        nothing = jnp.int32(0), jnp.zeros(shape, jnp.int32), jnp.zeros(shape, bool)
        _, offset, found = jax.lax.while_loop(is_missing, guess, nothing)

        def by_number() -> Array:
            bits = jax.random.bits(jax.random.fold_in(key, _GUESSES), shape)
            return self._find(state, bits % jnp.maximum(self._num_starts(state), 1))

        guessed = (origin + offset) % counts.size
        return jax.lax.cond(jnp.all(found), lambda: guessed, lambda: jnp.where(found, guessed, by_number()))

    def _find(self, state: UniformState, chosen: Array) -> Array:
        """`[N]` int32 starts that have these numbers, counted from the oldest one that can be read."""
        num_envs = self._num_envs(state)
        oldest, readable = ring.readable_starts(state.ring, self.spec)
        counts, origin = state.starts_before, oldest * num_envs
        size, first = counts.size, counts[origin]

        def halve(_, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = bounds
            middle = (low + high) // 2
            at = jnp.where(middle >= size, middle - size, middle)
            goes_right = counts.at[at].get(mode="promise_in_bounds") - first <= chosen
            return jnp.where(goes_right, middle, low), jnp.where(goes_right, high, middle)

        # The last step that no more starts came before is the start itself. A loop, since a compiler may fuse each
        # of many steps with all that come before it.
        low = jnp.full(chosen.shape, origin)
        high = jnp.full(chosen.shape, origin + jnp.maximum(readable * num_envs, 1))
        low, _ = jax.lax.fori_loop(0, math.ceil(math.log2(size + 1)), halve, (low, high))
        return low % size

    def _num_envs(self, state: UniformState) -> int:
        return state.ring.steps.timestep.reward.shape[0]
