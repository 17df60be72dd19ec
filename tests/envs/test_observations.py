from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.envs.base import EnvConfig, restart, transition
from podracer.envs.checks import check_env
from podracer.envs.observations import FlattenObservation, FrameStack, RenameMask
from podracer.envs.probe import Counter
from podracer.envs.probe_structures import ActionMask, Tree
from podracer.envs.wrappers import wrap
from podracer.spaces import Box, Discrete, EnvSpec


@dataclass(frozen=True)
class Numbered:
    """An environment with the given observation space whose every element is the time."""

    space: object

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("numbered", self.space, Discrete(2), can_truncate=False)

    def reset(self, key):
        return jnp.int32(0), restart(self._observe(0))

    def step(self, key, state, action):
        return state + 1, transition(0.0, self._observe(state + 1))

    def _observe(self, time):
        return jax.tree.map(lambda leaf: jnp.full(leaf.shape, time).astype(leaf.dtype), self.space)


def after_steps(env, num_steps: int):
    key = jax.random.key(0)
    step = jax.jit(env.step)
    state, timestep = jax.jit(env.reset)(key)
    for _ in range(num_steps):
        state, timestep = step(key, state, jnp.int32(0))
    return timestep.observation


@pytest.mark.parametrize(
    ("shape", "stacked"),
    [((), (3,)), ((2,), (6,)), ((4, 5), (4, 5, 3)), ((4, 5, 2), (4, 5, 6))],
)
def test_stack_is_newest_last_along_the_last_axis(shape, stacked):
    env = FrameStack(Numbered(Box(shape, np.uint8, 0, 255)), 3)
    assert env.spec.observation.shape == stacked
    assert env.spec.observation.dtype == np.uint8
    step_of_frame = [0, 0, 1]  # after one step: the first frame filled the stack
    expected = np.repeat(step_of_frame, stacked[-1] // 3)
    observation = after_steps(env, 1)
    assert observation.shape == stacked
    assert observation.dtype == jnp.uint8
    np.testing.assert_array_equal(np.asarray(observation).reshape(-1, stacked[-1])[0], expected)
    np.testing.assert_array_equal(
        np.asarray(after_steps(env, 4)).reshape(-1, stacked[-1])[0, :: stacked[-1] // 3], [2, 3, 4]
    )


def test_E14_stacked_bounds_repeat_per_frame():
    space = FrameStack(Numbered(Box((2,), np.float32, np.array([-1.0, -2.0]), 9.0)), 2).spec.observation
    np.testing.assert_array_equal(space.low, [-1, -2, -1, -2])
    assert space.high == 9


def test_stack_leaves_the_action_mask_alone():
    env = FrameStack(ActionMask(), 3)
    assert env.spec.observation["action_mask"].shape == (4,)
    assert env.spec.observation["observation"].shape == (3,)
    check_env(env)


def test_stack_of_states_is_refused():
    with pytest.raises(ValueError, match=r"env\.frame_stack=2.*one of 16 values"):
        FrameStack(Numbered(Discrete(16)), 2)
    with pytest.raises(ValueError, match=r"env\.frame_stack=0"):
        FrameStack(Counter(), 0)


def test_E07_flattened_order_is_by_key_and_stable():
    env = FlattenObservation(Tree())
    # goal (2), img (16), vec (3)
    assert env.spec.observation.shape == (21,)
    observation = np.asarray(after_steps(env, 1))
    assert observation.dtype == np.float32
    np.testing.assert_array_equal(observation[0], observation[1])
    np.testing.assert_allclose(observation[2:18], 170 / 255)
    np.testing.assert_array_equal(observation[18:], 1)
    check_env(env)


def test_E06_white_image_is_exactly_one_when_flattened():
    observation = after_steps(FlattenObservation(Tree()), 0)
    assert observation[2:18].max() == 1.0


def test_discrete_observation_flattens_to_one_hot():
    env = FlattenObservation(Numbered({"state": Discrete(3, start=-1), "x": Box((1,), np.float32)}))
    np.testing.assert_array_equal(after_steps(env, 1), [0, 0, 1, 1])  # state 1 is the last of −1, 0, 1
    assert env.spec.observation.high[0] == 1
    assert env.spec.observation.high[3] == np.inf


def test_flatten_keeps_the_action_mask_apart():
    env = FlattenObservation(ActionMask())
    assert set(env.spec.observation) == {"observation", "action_mask"}
    assert env.spec.observation["action_mask"].dtype == np.bool_
    check_env(env)


def test_mask_is_renamed_and_made_bool():
    inner = Numbered({"legal": Box((2,), np.int8, 0, 1), "x": Box((1,), np.float32)})
    env = wrap(inner, EnvConfig(suite="custom_jax", action_mask_key="legal"))
    observation = after_steps(env, 1)
    assert set(observation) == set(env.spec.observation) == {"x", "action_mask"}
    assert observation["action_mask"].dtype == env.spec.observation["action_mask"].dtype == bool
    with pytest.raises(ValueError, match=r"env\.action_mask_key='legel'.*did you mean 'legal'"):
        RenameMask(inner, "legel")
    with pytest.raises(ValueError, match=r"env\.action_mask_key='legal'"):
        wrap(Counter(), EnvConfig(suite="probe", action_mask_key="legal"))
