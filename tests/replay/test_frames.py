"""Stacks that are stored frame by frame come back as they were seen."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podracer.envs import catch, envpool
from podracer.envs.base import EnvConfig
from podracer.envs.wrappers import wrap
from podracer.replay.base import ReplaySpec
from podracer.replay.frames import stack, unstack
from podracer.replay.prioritised import Prioritised
from podracer.replay.uniform import Uniform
from podracer.spaces import ACTION_MASK, StackedFrames
from podracer.types import Step, Trajectory
from tests.replay.oracle import FIRST, Oracle, make_streams, to_trajectory

COUNT, ROWS = 3, 12
SPEC = ReplaySpec(num_envs=2, unroll_length=2, batch_size=2048, sequence_length=4)


def stack_numbers(streams: list, carries_over: bool) -> np.ndarray:
    """`[time, B, COUNT]` the stack of each step; some FIRST steps go on with the old stack, as after a lost life."""
    stacks = np.zeros((len(streams[0]), len(streams), COUNT), np.int32)
    for env, stream in enumerate(streams):
        for t, record in enumerate(stream):
            fills = record.step_type == FIRST and not (carries_over and t and record.number % 2)
            stacks[t, env] = record.number if fills else [*stacks[t - 1, env, 1:], record.number]
    return stacks


def as_images(numbers: np.ndarray, axis: int) -> np.ndarray:
    """A stack of uint8 images `[..., COUNT, 5, 4]` or `[..., 5, 4, COUNT]`, all pixels of a frame alike."""
    images = np.broadcast_to(numbers[..., None, None] % 256, (*numbers.shape, 5, 4)).astype(np.uint8)
    return images if axis == -3 else np.moveaxis(images, -3, -1)


def with_stacks(trajectory: Trajectory, stacks: np.ndarray, start: int, axis: int) -> Trajectory:
    rows = stacks[start : start + trajectory.steps.action.shape[0]]
    observation = {"pixels": as_images(rows, axis), "number": rows}
    observation[ACTION_MASK] = (rows % 2).astype(bool)
    timestep = trajectory.steps.timestep._replace(observation=observation)
    return trajectory._replace(steps=trajectory.steps._replace(timestep=timestep))


@pytest.mark.parametrize("kind", [Uniform, Prioritised])
@pytest.mark.parametrize("carries_over", [False, True])
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**20), adds=st.integers(1, 20))
def test_F09_stacks_come_back_as_they_were_seen(kind, carries_over, seed, adds):
    streams = make_streams(np.random.default_rng(seed), 2, 2 * adds + 1)
    for stream in streams:
        stream[0] = stream[0]._replace(step_type=FIRST)
    # Leaves that are stacked along another axis than the last are images only.
    stacks, oracle = stack_numbers(streams, carries_over), Oracle(SPEC, ROWS, streams)
    store = kind(
        spec=ReplaySpec(**{**vars(SPEC), "stacked_frames": StackedFrames(COUNT, -1)}),
        capacity=2 * ROWS,
        learning_starts=0,
    )
    example = with_stacks(to_trajectory(streams, 0, 2), stacks, 0, -1)
    state = store.init(jax.eval_shape(lambda: jax.tree.map(jnp.asarray, example)))
    add = jax.jit(store.add)
    for _ in range(adds):
        start = oracle.written
        state = add(state, with_stacks(oracle.add(), stacks, start, -1))
    starts = [s for s in oracle.starts() if s % 1000 >= max(0, oracle.written - ROWS) + COUNT - 1]
    assert store.can_sample(state) == bool(starts)
    if not starts:
        return
    _, batch = jax.jit(store.sample)(state, jax.random.key(seed))
    observation = jax.tree.map(np.asarray, batch.trajectory.steps.timestep.observation)
    numbers = observation["number"][..., -1]
    assert set(numbers[0].tolist()) == set(starts)
    for n in {int(number): n for n, number in enumerate(numbers[0])}.values():
        expected = [stacks[number % 1000, number // 1000] for number, *_ in oracle.sequence(int(numbers[0, n]))]
        np.testing.assert_array_equal(observation["number"][:, n], expected)
        np.testing.assert_array_equal(observation["pixels"][:, n], as_images(np.array(expected), -1))
        np.testing.assert_array_equal(observation[ACTION_MASK][:, n], np.array(expected) % 2)


@pytest.mark.parametrize(
    ("count", "dtype"), [(2, np.uint8), (3, np.uint8), (4, np.uint8), (2, np.uint16), (4, np.float32)]
)
def test_pixels_of_any_width_are_unstacked_and_stacked_alike(count, dtype):
    """Of some widths the frames of a stack are moved as one word."""
    rng, stacked, rows = np.random.default_rng(0), StackedFrames(count, -1), 9
    frames = rng.integers(0, 2**8, (rows, 3, 5, 4, 1)).astype(dtype) * dtype(np.iinfo(np.uint8).max)
    fills = rng.random((rows, 3)) < 0.3
    fills[0] = True
    stacks = np.zeros((rows, 3, 5, 4, count), dtype)
    for t in range(rows):
        rolled = np.concatenate([stacks[t - 1][..., 1:], frames[t]], axis=-1)
        stacks[t] = np.where(fills[t, :, None, None, None], np.repeat(frames[t], count, axis=-1), rolled)

    streams = make_streams(np.random.default_rng(0), 3, rows + 1)
    trajectory = to_trajectory(streams, 0, rows - 1)
    timestep = trajectory.steps.timestep._replace(observation=stacks, step_type=np.full((rows, 3), FIRST))
    steps, is_filled = jax.jit(unstack, static_argnums=1)(trajectory.steps._replace(timestep=timestep), stacked)
    np.testing.assert_array_equal(steps.timestep.observation, frames)
    assert steps.timestep.observation.dtype == dtype
    np.testing.assert_array_equal(is_filled, fills)

    def gather(leaf, offsets):
        return leaf[offsets, jnp.arange(3)]

    offsets = np.arange(count - 1, rows)[:, None]
    read = jax.jit(lambda frames, fills: stack(gather, frames, fills, offsets, stacked))(frames, fills)
    assert read.dtype == dtype
    np.testing.assert_array_equal(read, stacks[count - 1 :])


def test_E06_frames_are_stored_once_as_uint8():
    """Atari: 4 frames of 84x84 a step are stored as one, a quarter of the bytes, in the dtype they came in."""
    spec = ReplaySpec(num_envs=8, unroll_length=1, batch_size=8, sequence_length=2, stacked_frames=StackedFrames(4, -3))
    store = Uniform(spec=spec, capacity=8000, learning_starts=0)
    example = to_trajectory(make_streams(np.random.default_rng(0), 8, 2), 0, 1)
    timestep = example.steps.timestep._replace(observation=np.zeros((2, 8, 4, 84, 84), np.uint8))
    example = example._replace(steps=example.steps._replace(timestep=timestep))
    state = jax.eval_shape(lambda: store.init(jax.tree.map(jnp.asarray, example)))
    observation = state.ring.steps.timestep.observation
    assert observation.dtype == np.uint8 and math.prod(observation.shape) == 8000 * 84 * 84
    _, batch = jax.eval_shape(store.sample, state, jax.random.key(0))
    sampled = batch.trajectory.steps.timestep.observation
    assert sampled.dtype == np.uint8 and sampled.shape == (2, 8, 4, 84, 84)


@pytest.mark.parametrize("axis", [-1, -3])
def test_stacks_along_either_axis(axis):
    streams = make_streams(np.random.default_rng(1), 2, 21)
    stacks = stack_numbers(streams, False)
    spec = ReplaySpec(**{**vars(SPEC), "stacked_frames": StackedFrames(COUNT, axis)})
    store = Uniform(spec=spec, capacity=2 * ROWS, learning_starts=0)

    def trajectory(start: int) -> Trajectory:
        plain = with_stacks(to_trajectory(streams, start, 2), stacks, start, axis)
        timestep = plain.steps.timestep
        return plain._replace(
            steps=plain.steps._replace(timestep=timestep._replace(observation=timestep.observation["pixels"]))
        )

    state = store.init(jax.eval_shape(lambda: jax.tree.map(jnp.asarray, trajectory(0))))
    for start in range(0, 20, 2):
        state = store.add(state, trajectory(start))
    _, batch = store.sample(state, jax.random.key(0))
    numbers = np.asarray(batch.trajectory.steps.action) - 1
    expected = as_images(stacks[numbers % 1000, numbers // 1000], axis)
    np.testing.assert_array_equal(batch.trajectory.steps.timestep.observation, expected)


def test_environments_say_how_they_stack():
    config = EnvConfig(suite="catch", frame_stack=4)
    assert wrap(catch.make(config), config).spec.stacked_frames == StackedFrames(4, -1)
    config = EnvConfig(suite="catch", frame_stack=4, flatten=True)
    assert wrap(catch.make(config), config).spec.stacked_frames is None


def test_stacks_of_atari_come_back_as_they_were_seen():
    """Breakout where a life is an episode: EnvPool's stack is filled at a new game, and goes on after a lost life."""
    config = EnvConfig(
        suite="envpool", id="Breakout-v5", kwargs={"episodic_life": True, "img_height": 42, "img_width": 42}
    )
    env = envpool.make(config, 2, 1)
    assert env.spec.stacked_frames == StackedFrames(4, -3)
    timesteps = [env.reset(np.arange(2, dtype=np.int32))]
    rng = np.random.default_rng(0)
    for _ in range(200):
        timesteps.append(env.step(rng.integers(0, 4, 2).astype(np.int32)))
    env.close()
    timestep = jax.tree.map(lambda *leaves: np.stack(leaves), *(t._replace(extras=()) for t in timesteps))
    assert np.sum(timestep.is_first) > 4
    time = np.broadcast_to(np.arange(201, dtype=np.int32)[:, None], (201, 2))
    unrolls = Trajectory(Step(timestep, time * 2 + np.arange(2), ()), ())
    spec = ReplaySpec(
        num_envs=2, unroll_length=20, batch_size=500, sequence_length=3, stacked_frames=env.spec.stacked_frames
    )
    store = Uniform(spec=spec, capacity=400, learning_starts=0)
    state = store.init(jax.eval_shape(lambda: jax.tree.map(lambda leaf: jnp.asarray(leaf[:21]), unrolls)))
    for start in range(0, 200, 20):
        state = store.add(state, jax.tree.map(lambda leaf, start=start: leaf[start : start + 21], unrolls))
    _, batch = store.sample(state, jax.random.key(0))
    number = np.asarray(batch.trajectory.steps.action)
    np.testing.assert_array_equal(
        batch.trajectory.steps.timestep.observation, timestep.observation[number // 2, number % 2]
    )
