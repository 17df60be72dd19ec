"""Wrappers on the host, against the same wrappers on the device."""

import jax
import numpy as np
import pytest

from podracer.envs.autoreset import AutoReset
from podracer.envs.base import EnvConfig
from podracer.envs.catch import Catch
from podracer.envs.host_checks import check_host_env
from podracer.envs.host_from_jax import HostFromJax
from podracer.envs.host_wrappers import wrap_host
from podracer.envs.probe_structures import ActionMask, Tree
from podracer.envs.wrappers import RecordEpisodes, wrap
from podracer.spaces import ACTION_MASK, Box, Discrete, EnvSpec
from podracer.types import EpisodeStatistics, TimeStep

NUM_ENVS = 2


def on_host(env):
    return HostFromJax(AutoReset(env), NUM_ENVS, *jax.random.split(jax.random.key(3)))


def play(env, num_steps):
    rng = np.random.default_rng(0)
    action = rng.integers(0, env.spec.action.num_values, (num_steps, NUM_ENVS), np.int32)
    return [env.reset(np.arange(NUM_ENVS)), *map(env.step, action)]


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        (Tree(), {"frame_stack": 3}),
        (Tree(), {"frame_stack": 2, "flatten": True}),
        (ActionMask(), {"frame_stack": 2}),
        (ActionMask(), {"flatten": True}),
        (Catch(), {"reward_scale": 10.0, "reward_clip": 3.0}),
    ],
    ids=str,
)
def test_E14_host_and_device_wrap_alike(env, settings):
    config = EnvConfig(suite="probe", **settings)
    host, device = wrap_host(on_host(RecordEpisodes(env)), config), on_host(wrap(env, config))
    jax.tree.map(np.testing.assert_array_equal, play(host, 15), play(device, 15))
    spaces = zip(jax.tree.leaves(host.spec.observation), jax.tree.leaves(device.spec.observation), strict=True)
    assert all((one.shape, one.dtype) == (other.shape, other.dtype) for one, other in spaces)
    check_host_env(host)


class Scripted:
    """Emits given observations and step types; reward 5 a step."""

    num_envs = 2

    def __init__(self, space, observations, step_types=()):
        self.spec = EnvSpec("scripted", space, Discrete(2))
        self._observations, self._step_types = iter(observations), iter(step_types)
        self._zeros = np.zeros(2, np.float32)

    def _emit(self, step_type):
        extras = EpisodeStatistics(self._zeros + 5, np.ones(2, np.int32), np.zeros(2, bool))
        return TimeStep(np.int8(step_type), self._zeros + 5, self._zeros + 1, next(self._observations), extras)

    def reset(self, seeds):
        return self._emit([0, 0])

    def step(self, action):
        return self._emit(next(self._step_types))

    def close(self):
        self.closed = True


def test_B15_statistics_stay_raw_when_rewards_are_changed():
    env = wrap_host(Scripted(Box((1,), np.float32), [np.ones((2, 1))]), EnvConfig(suite="custom_host", reward_clip=1.0))
    timestep = env.reset(np.arange(2))
    assert timestep.reward.tolist() == [1, 1]
    assert timestep.extras.episode_return.tolist() == [5, 5]
    env.close()
    assert env._env.closed


def test_B22_a_stack_that_was_handed_out_is_not_changed_later():
    frames = [np.full((2, 1), t, np.float32) for t in range(4)]
    # The second environment starts anew at t = 2.
    inner = Scripted(Box((1,), np.float32), frames, [[1, 1], [1, 0], [1, 1]])
    env = wrap_host(inner, EnvConfig(suite="custom_host", frame_stack=3))
    stacks = []
    for t in range(4):
        observation = (env.step(None) if t else env.reset(np.arange(2))).observation
        stacks.append(observation.copy())
        observation[:] = 7  # whoever got it may write into it
    assert [stack[0].tolist() for stack in stacks] == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3]]
    assert [stack[1].tolist() for stack in stacks] == [[0, 0, 0], [0, 0, 1], [2, 2, 2], [2, 2, 3]]


def test_E06_a_stack_keeps_uint8():
    space = Box((4, 4, 1), np.uint8, 0, 255)
    inner = Scripted(space, [np.full((2, 4, 4, 1), 255, np.uint8)])
    env = wrap_host(inner, EnvConfig(suite="custom_host", frame_stack=4))
    observation = env.reset(np.arange(2)).observation
    assert (observation.shape, observation.dtype) == ((2, 4, 4, 4), np.uint8)
    flat = wrap_host(Scripted(space, [observation[..., :1]]), EnvConfig(suite="custom_host", flatten=True))
    assert flat.reset(np.arange(2)).observation.max() == 1.0


def masked(*masks, step_types=()):
    space = {"legal": Box((2,), np.int8, 0, 1), "x": Box((1,), np.float32)}
    observations = [{"legal": np.array(mask, np.int8), "x": np.zeros((2, 1), np.float32)} for mask in masks]
    return wrap_host(Scripted(space, observations, step_types), EnvConfig(suite="custom_host", action_mask_key="legal"))


def test_A18_the_mask_is_renamed_and_made_bool():
    env = masked([[1, 0], [0, 1]])
    assert env.spec.observation[ACTION_MASK].dtype == np.bool_
    observation = env.reset(np.arange(2)).observation
    assert sorted(observation) == [ACTION_MASK, "x"]
    assert observation[ACTION_MASK].dtype == np.bool_
    assert observation[ACTION_MASK].tolist() == [[True, False], [False, True]]


def test_A18_a_mask_that_allows_nothing_is_refused_unless_the_episode_is_over():
    env = masked([[1, 1], [1, 1]], [[1, 1], [0, 0]], [[1, 1], [0, 0]], step_types=[[1, 2], [1, 1]])
    env.reset(np.arange(2))
    env.step(None)
    with pytest.raises(ValueError, match=r"scripted.*in environments \[1\]"):
        env.step(None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"preset": "impala"}, "env.preset=impala is for env.suite=envpool"),
        ({"autoreset": "same_step"}, "env.autoreset=same_step is for JAX environments"),
        ({"resets_per_step": 4}, "env.resets_per_step=4 is for JAX environments"),
        ({"params": {"gravity": 1}}, "env.params=.*gravity.* is for JAX environments"),
        ({"action_mask_key": "legl"}, "env.action_mask_key='legl'"),
        ({"reward_clip": 0.0}, "env.reward_clip=0.0 must be above 0"),
        ({"frame_stack": 0}, "env.frame_stack=0 must be at least 1"),
    ],
)
def test_settings_that_a_host_environment_cannot_have_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        wrap_host(Scripted(Box((1,), np.float32), []), EnvConfig(suite="gymnasium", **settings))
