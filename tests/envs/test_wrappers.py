from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.envs.base import EnvConfig, restart, transition
from podracer.envs.checks import check_env
from podracer.envs.probe import Counter
from podracer.envs.probe_structures import ActionMask, Tree
from podracer.envs.wrappers import RecordEpisodes, RewardTransform, TimeLimit, wrap
from podracer.spaces import Box, Discrete, EnvSpec
from podracer.types import StepType


def episode(env, num_steps: int):
    """The first `num_steps + 1` timesteps of one environment, stacked."""
    key = jax.random.key(0)
    step = jax.jit(env.step)
    state, timestep = jax.jit(env.reset)(key)
    timesteps = [timestep]
    for _ in range(num_steps):
        state, timestep = step(key, state, jnp.int32(0))
        timesteps.append(timestep)
    return timesteps


@dataclass(frozen=True)
class FiveAStep:
    """Raw reward 5 a step for ever."""

    spec = EnvSpec("five_a_step", Box((1,), np.float32, 0, 0), Discrete(2), can_truncate=False)

    def reset(self, key):
        return jnp.int32(0), restart(jnp.zeros((1,)))

    def step(self, key, state, action):
        return state, transition(5, jnp.zeros((1,)))


def test_E03_time_limit_is_exact_and_bootstraps():
    env = TimeLimit(FiveAStep(), 5)
    timesteps = episode(env, 5)
    assert [int(t.step_type) for t in timesteps] == [0, 1, 1, 1, 1, 2]
    assert timesteps[5].discount == 1
    assert env.spec.time_limit == 5
    assert env.spec.can_truncate


def test_E03_true_end_on_the_limit_wins():
    timesteps = episode(TimeLimit(Counter(num_steps=3), 3), 3)
    assert timesteps[3].step_type == StepType.LAST
    assert timesteps[3].discount == 0


def test_E03_limit_that_could_not_hold_is_refused():
    with pytest.raises(ValueError, match=r"env\.time_limit=10 .*probe/counter ends after 3 steps"):
        wrap(Counter(truncates=True), EnvConfig(suite="probe", time_limit=10))
    with pytest.raises(ValueError, match=r"env\.time_limit=0"):
        wrap(Counter(), EnvConfig(suite="probe", time_limit=0))


def test_B15_statistics_are_raw_and_count_truncated_episodes():
    env = wrap(FiveAStep(), EnvConfig(suite="probe", time_limit=4, reward_clip=1.0))
    timesteps = episode(env, 4)
    assert [float(t.reward) for t in timesteps] == [0, 1, 1, 1, 1]
    assert [float(t.extras.episode_return) for t in timesteps] == [0, 5, 10, 15, 20]
    assert [int(t.extras.episode_length) for t in timesteps] == [0, 1, 2, 3, 4]
    assert [bool(t.extras.ended) for t in timesteps] == [False] * 4 + [True]


def test_rewards_are_scaled_then_clipped():
    # 5 · 0.1 = 0.5 is within the clip; 5 · 10 = 50 is not.
    assert episode(RewardTransform(FiveAStep(), scale=0.1, clip=1.0), 1)[1].reward == 0.5
    assert episode(RewardTransform(FiveAStep(), scale=10.0, clip=3.0), 1)[1].reward == 3
    assert episode(RewardTransform(FiveAStep(), scale=-10.0, clip=3.0), 1)[1].reward == -3
    with pytest.raises(ValueError, match=r"env\.reward_clip=-1"):
        RewardTransform(FiveAStep(), clip=-1.0)


def test_without_settings_only_statistics_are_added():
    env = wrap(Counter(), EnvConfig(suite="probe"))
    assert env == RecordEpisodes(Counter())


@pytest.mark.parametrize("inner", [Counter(num_steps=20), Tree(), ActionMask()])
def test_E14_every_wrapper_at_once_keeps_the_declared_space(inner):
    config = EnvConfig(suite="probe", time_limit=7, frame_stack=3, flatten=True, reward_scale=0.5, reward_clip=1.0)
    check_env(wrap(inner, config), num_steps=100)
