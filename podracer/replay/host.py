"""Uniform replay from host memory, for more steps than a device holds.

A store on the device samples as always, but of each step it holds no more than what sampling asks for, and in place
of the observation where that lies on the host: about 20 bytes. The rest is in NumPy arrays. What a batch needs of
them is gathered by a thread while the batch before is learnt from: an update that takes longer than that waits for
the copy to the device only.

So a batch is drawn when the one before is handed out, from what was stored then. Nothing depends on timing.
"""

import dataclasses
import functools
import math
import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podracer.parallel import collectives
from podracer.parallel.host_calls import host_call
from podracer.parallel.memory import format_bytes
from podracer.replay.settings import StoreSettings
from podracer.replay.uniform import Uniform, UniformState
from podracer.types import Array, ArrayTree, Batch, Key, Step, Trajectory

_CALLS = jax.ShapeDtypeStruct((1,), np.int32)


class Rest(NamedTuple):
    """What is on the host of each step."""

    observation: ArrayTree
    action: ArrayTree
    extras: ArrayTree


class HostState(NamedTuple):
    store: UniformState  # its observations are places on the host: row · B + column
    ahead: Batch  # drawn, and being gathered; its observations are places
    has_ahead: Array  # [1] bool
    head: Array  # [1] int32 row that is written next
    calls: Array  # [1] int32 of the host, made in order as each takes what the one before returned
    form: Rest  # [1, ...] shapes and dtypes of what is on the host; an array of no elements loses its sharding


@dataclass(frozen=True, kw_only=True)
class Host(StoreSettings):
    """Samples uniformly from host memory. See `podracer.replay.base.Replay`.

    There is one state at a time: what is on the host belongs to the last one. Checkpoints do not hold it.
    """

    _memories: dict[int, "_Memory"] = field(default_factory=dict, init=False, repr=False, compare=False)

    def init(self, example: Trajectory) -> HostState:
        num_envs = example.steps.timestep.reward.shape[1]
        store = self._store.init(jax.eval_shape(lambda t: _without_rest(t, _places(0, t)), example))
        _, drawn = jax.eval_shape(self._store.sample, store, jax.random.key(0))
        ahead = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), drawn)
        form = jax.tree.map(lambda leaf: np.zeros((1, *leaf.shape[2:]), leaf.dtype), _rest_of(example))

        def allocate(shard: np.ndarray) -> np.ndarray:
            self._memories[int(shard)] = _Memory(form, self.num_rows * num_envs, self.spec.num_devices)
            return np.zeros((1,), np.int32)

        calls = host_call(allocate, _CALLS, self._shard())
        has_ahead, head = jnp.zeros((1,), bool), jnp.zeros((1,), jnp.int32)
        return HostState(store, ahead, has_ahead, head, calls, jax.tree.map(jnp.asarray, form))

    def add(self, state: HostState, trajectory: Trajectory) -> HostState:
        length = self.spec.unroll_length
        places = _places(state.head[0], trajectory)

        def write(shard: np.ndarray, calls: np.ndarray, first: np.ndarray, rest: Rest) -> np.ndarray:
            self._memories[int(shard)].write(int(first), rest)
            return calls + 1

        rest = jax.tree.map(lambda leaf: leaf[:length], _rest_of(trajectory))
        calls = host_call(write, _CALLS, self._shard(), state.calls, places[0, 0], rest)
        store = self._store.add(state.store, _without_rest(trajectory, places))
        return state._replace(store=store, head=(state.head + length) % self.num_rows, calls=calls)

    def take_updates(self, state: HostState) -> tuple[HostState, Array]:
        store, updates = self._store.take_updates(state.store)
        return state._replace(store=store), updates

    def can_sample(self, state: HostState) -> Array:
        return self._store.can_sample(state.store)

    def sample(self, state: HostState, key: Key) -> tuple[HostState, Batch]:
        """Hands out the batch that was drawn with the key before, and draws the next one with this key."""
        first_key, key = jax.random.split(key)

        def draw(key: Key) -> Batch:
            return self._store.sample(state.store, key)[1]

        batch = jax.lax.cond(state.has_ahead[0], lambda: state.ahead, lambda: draw(first_key))
        ahead = draw(key)

        def exchange(shard: np.ndarray, calls: np.ndarray, places: np.ndarray, ahead: np.ndarray) -> ArrayTree:
            return self._memories[int(shard)].exchange(places, ahead), calls + 1

        places, next_places = (drawn.trajectory.steps.timestep.observation for drawn in (batch, ahead))  # [L, N]
        gathered = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((*places.shape, *leaf.shape[1:]), leaf.dtype), state.form
        )
        rest, calls = host_call(exchange, (gathered, _CALLS), self._shard(), state.calls, places, next_places)
        steps = batch.trajectory.steps
        steps = Step(steps.timestep._replace(observation=rest.observation), rest.action, rest.extras)
        batch = batch._replace(trajectory=batch.trajectory._replace(steps=steps))
        return state._replace(ahead=ahead, has_ahead=jnp.ones((1,), bool), calls=calls), batch

    def set_priorities(self, state: HostState, indices: ArrayTree, priorities: Array) -> HostState:
        del indices, priorities  # all starts stay equally likely
        return state

    def retain(self, state: HostState) -> HostState:
        return state

    def reshard(self, state: HostState, num_devices: int) -> HostState:
        raise ValueError("what a store holds on the host is in no checkpoint: a run with replay=host begins anew")

    def size(self, state: HostState) -> Array:
        return self._store.size(state.store)

    @functools.cached_property
    def _store(self) -> Uniform:
        settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(StoreSettings)}
        # Places have no frames; on the host stacks are held as they are.
        return Uniform(**{**settings, "spec": dataclasses.replace(self.spec, stacked_frames=None)})

    @property
    def num_rows(self) -> int:
        return self._store.num_rows

    def _shard(self) -> Array:
        return collectives.axis_index(self.axis_name)


class _Memory:
    """A shard of what is on the host."""

    def __init__(self, form: Rest, size: int, num_shards: int):
        """Takes the memory of `size` steps, which is not used before it is written to.

        Raises:
          MemoryError: the machine has less than all shards together need.
        """
        needed = (
            num_shards * size * sum(leaf.dtype.itemsize * math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(form))
        )
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if needed > there:
            raise MemoryError(
                f"replay=host needs {format_bytes(needed)} and the machine has {format_bytes(there)}; lower "
                "replay.capacity"
            )
        self._steps = jax.tree.map(lambda leaf: np.zeros((size, *leaf.shape[1:]), leaf.dtype), form)
        self._thread = ThreadPoolExecutor(1, "replay")
        self._ahead: Future[Rest] | None = None

    def write(self, first: int, rest: Rest) -> None:
        """Writes `[T, B, ...]` steps from a place on."""
        if self._ahead is not None:
            self._ahead.result()  # it may be of what is written over now

        def write(stored: np.ndarray, new: np.ndarray) -> None:
            size = new.shape[0] * new.shape[1]
            stored[first : first + size] = new.reshape(size, *new.shape[2:])

        jax.tree.map(write, self._steps, rest)

    def exchange(self, places: np.ndarray, ahead: np.ndarray) -> Rest:
        """Returns the steps at `[L, N]` places, asked for by the exchange before, and begins with those to come."""
        rest = self._gather(places) if self._ahead is None else self._ahead.result()
        self._ahead = self._thread.submit(self._gather, ahead.copy())
        return rest

    def _gather(self, places: np.ndarray) -> Rest:
        return jax.tree.map(lambda stored: np.take(stored, places, axis=0), self._steps)


def _rest_of(trajectory: Trajectory) -> Rest:
    steps = trajectory.steps
    return Rest(steps.timestep.observation, steps.action, steps.extras)


def _without_rest(trajectory: Trajectory, places: Array) -> Trajectory:
    timestep = trajectory.steps.timestep._replace(observation=places)
    return trajectory._replace(steps=Step(timestep, (), ()))


def _places(row: Array | int, trajectory: Trajectory) -> Array:
    """`[T+1, B]` int32 of the steps of a trajectory whose first is written to a row."""
    length, num_envs = trajectory.steps.timestep.reward.shape
    return ((row + jnp.arange(length))[:, None] * num_envs + jnp.arange(num_envs)[None]).astype(jnp.int32)
