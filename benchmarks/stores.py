"""Replay stores behind one interface: ours, and flashbax's with the same contents."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from podracer.replay.base import EpisodeEnds, ReplaySpec
from podracer.replay.prioritised import Prioritised
from podracer.replay.uniform import Uniform
from podracer.spaces import StackedFrames
from podracer.types import Array, ArrayTree, Key, Step, StepType, TimeStep, Trajectory

NUM_ENVS = 64
BATCH_SIZE = 256


@dataclass(frozen=True)
class Setting:
    """What is stored, and how it is added and sampled."""

    shape: tuple[int, ...]  # of an observation
    dtype: Any
    capacity: int  # transitions
    prioritised: bool
    unroll_length: int
    sequence_length: int  # timesteps
    period: int = 1
    episode_ends: EpisodeEnds = "mask"
    stacked_frames: StackedFrames | None = None


class Sample(NamedTuple):
    contents: ArrayTree
    indices: Array | tuple[()]
    probabilities: Array | tuple[()]


class Store(NamedTuple):
    """Pure functions over a state."""

    init: Callable[[], ArrayTree]
    add: Callable[[ArrayTree, ArrayTree], ArrayTree]
    sample: Callable[[ArrayTree, Key], Sample]
    set_priorities: Callable[[ArrayTree, Array, Array], ArrayTree]
    to_addable: Callable[[Trajectory], ArrayTree]
    """Lays trajectories `[K, T+1, B, ...]` out for `add`, outside of what is measured."""


def ours(setting: Setting) -> Store:
    """The store of this package."""
    spec = ReplaySpec(
        num_envs=NUM_ENVS,
        unroll_length=setting.unroll_length,
        batch_size=BATCH_SIZE,
        sequence_length=setting.sequence_length,
        sequence_period=setting.period,
        episode_ends=setting.episode_ends,
        stacked_frames=setting.stacked_frames,
    )
    kind = Prioritised if setting.prioritised else Uniform
    replay = kind(spec=spec, capacity=setting.capacity, learning_starts=0)

    def sample(state: ArrayTree, key: Key) -> Sample:
        _, batch = replay.sample(state, key)
        return Sample(batch.trajectory, batch.indices, batch.probabilities)

    return Store(
        init=lambda: replay.init(_example(setting)),
        add=replay.add,
        sample=sample,
        set_priorities=replay.set_priorities,
        to_addable=lambda trajectories: trajectories,
    )


def flashbax(setting: Setting) -> Store:
    """The trajectory buffer of flashbax, which its flat buffer is made of.

    Raises:
      ImportError: it is not installed.
    """
    import flashbax as fbx

    settings = {
        "add_batch_size": NUM_ENVS,
        "sample_batch_size": BATCH_SIZE,
        "sample_sequence_length": setting.sequence_length,
        "period": setting.period,
        "min_length_time_axis": setting.sequence_length,
        # A prioritised buffer of its own makes the length a multiple of the period.
        "max_length_time_axis": setting.capacity // NUM_ENVS // setting.period * setting.period,
    }
    if setting.prioritised:
        buffer = fbx.make_prioritised_trajectory_buffer(**settings, device=jax.default_backend())
    else:
        buffer = fbx.make_trajectory_buffer(**settings)

    def sample(state: ArrayTree, key: Key) -> Sample:
        drawn = buffer.sample(state, key)
        return Sample(drawn.experience, getattr(drawn, "indices", ()), getattr(drawn, "probabilities", ()))

    return Store(
        init=lambda: buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], _example(setting).steps)),
        add=buffer.add,
        sample=sample,
        set_priorities=buffer.set_priorities if setting.prioritised else lambda state, indices, priorities: state,
        to_addable=lambda trajectories: jax.tree.map(lambda leaf: jnp.swapaxes(leaf[:, :-1], 1, 2), trajectories.steps),
    )


def random_unrolls(key: Key, count: int, setting: Setting) -> Trajectory:
    """Noise, `[count, T+1, B, ...]`, in which one step of 200 ends an episode."""
    observation_key, reward_key, action_key, end_key = jax.random.split(key, 4)
    batch_shape = (count, setting.unroll_length + 1, NUM_ENVS)
    noise = jax.random.uniform(observation_key, (*batch_shape, *setting.shape), maxval=256.0)
    if setting.dtype == jnp.bool:
        noise = noise > 128.0
    is_last = jax.random.bernoulli(end_key, 1 / 200, batch_shape)
    timestep = TimeStep(
        step_type=jnp.where(is_last, StepType.LAST, StepType.MID),
        reward=jax.random.normal(reward_key, batch_shape),
        discount=jnp.where(is_last, 0.0, 1.0),
        observation=noise.astype(setting.dtype),
    )
    return Trajectory(Step(timestep, jax.random.randint(action_key, batch_shape, 0, 4), ()), ())


def _example(setting: Setting) -> Trajectory:
    """Zeros, `[T+1, B, ...]`."""
    shapes = jax.eval_shape(lambda: random_unrolls(jax.random.key(0), 1, setting))
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), shapes)
