"""Every environment keeps the conventions of episodes, and is the same behind the interface of the host."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer import build
from podracer.config import load_config
from podracer.envs.autoreset import AutoReset
from podracer.envs.base import BatchedEnv
from podracer.envs.checks import random_actions
from podracer.envs.host_from_jax import HostFromJax
from podracer.envs.probe import Counter
from podracer.envs.wrappers import RecordEpisodes
from podracer.spaces import check_observation
from podracer.types import StepType, TimeStep
from tests.contract.members import leaves_with_names
from tests.contract.tables import ENVS

NUM_ENVS, NUM_STEPS = 4, 30
RESET_KEY, STEP_KEY = jax.random.key(1), jax.random.key(2)


def random_episodes(env: BatchedEnv) -> tuple[TimeStep, np.ndarray]:
    """`[T+1, B]` timesteps and the `[T, B]` random actions between them."""

    def step(state, time):
        action = random_actions(env.spec.action, jax.random.fold_in(jax.random.key(0), time), (NUM_ENVS,))
        state, timestep = env.step(jax.random.fold_in(STEP_KEY, time), state, action)
        return state, (timestep, action)

    def run():
        state, first = env.reset(RESET_KEY, NUM_ENVS)
        _, (timesteps, actions) = jax.lax.scan(step, state, jnp.arange(NUM_STEPS, dtype=jnp.uint32))
        return jax.tree.map(lambda x, xs: jnp.concatenate([x[None], xs]), first, timesteps), actions

    return jax.device_get(jax.jit(run)())


def check_episodes(env: BatchedEnv, timesteps: TimeStep) -> None:
    """What follows what, what a reset carries, and that statistics are sums over an episode."""
    check_observation(env.spec.observation, timesteps.observation, (NUM_STEPS + 1, NUM_ENVS), env.spec.id)
    step_type, reward, discount, _, episode = timesteps
    is_first, is_last = step_type == StepType.FIRST, step_type == StepType.LAST
    assert np.all(is_first[0]) and np.any(is_first[1:])
    assert set(np.unique(discount)) <= {0.0, 1.0}

    # An ended episode is followed by a FIRST, sooner or later; nothing else is, but an end within the step.
    assert np.all((is_first | is_last)[1:][is_last[:-1]])
    ends_within_step = is_first[1:] & ~is_last[:-1]
    assert np.all(discount[1:][ends_within_step] == 0)
    carries_nothing = is_first.copy()
    carries_nothing[1:] &= ~ends_within_step
    assert np.all(reward[carries_nothing] == 0) and np.all(discount[carries_nothing] == 1)
    assert np.all(discount[step_type == StepType.MID] == 1)

    total, length = np.zeros(NUM_ENVS), np.zeros(NUM_ENVS, int)
    for t in range(1, NUM_STEPS + 1):
        within = ~is_first[t] | ends_within_step[t - 1]
        moves = within & ~is_last[t - 1]
        total, length = np.where(moves, total + reward[t], total), length + moves
        np.testing.assert_array_equal(episode.ended[t], moves & (is_last[t] | ends_within_step[t - 1]))
        np.testing.assert_allclose(episode.episode_return[t][moves], total[moves], rtol=1e-6)
        np.testing.assert_array_equal(episode.episode_length[t][moves], length[moves])
        total, length = np.where(is_first[t], 0.0, total), np.where(is_first[t], 0, length)


@functools.cache
def built(name: str) -> BatchedEnv:
    return build.build_environments(load_config(ENVS[name])).batched


@pytest.mark.parametrize("name", ENVS)
def test_episodes_begin_and_end_by_the_conventions(name):
    timesteps, _ = random_episodes(built(name))
    check_episodes(built(name), timesteps)


@pytest.mark.parametrize("name", ENVS)
def test_an_environment_behind_the_hosts_interface_is_the_same(name):
    timesteps, actions = random_episodes(built(name))
    host = HostFromJax(built(name), NUM_ENVS, RESET_KEY, STEP_KEY)
    emitted = [host.reset(np.zeros(NUM_ENVS, np.int64)), *(host.step(action) for action in actions)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *emitted)
    for (path, a), (_, b) in zip(leaves_with_names(timesteps), leaves_with_names(stacked), strict=True):
        assert a.dtype == b.dtype, path
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6, err_msg=path)


@pytest.mark.parametrize(
    "fault",
    [
        lambda t: t._replace(reward=t.reward + t.is_first),
        lambda t: t._replace(discount=t.discount * ~t.is_first),
        lambda t: t._replace(step_type=np.where(t.is_last, StepType.MID, t.step_type)),
        lambda t: t._replace(extras=t.extras._replace(ended=t.extras.ended | t.is_first)),
        lambda t: t._replace(extras=t.extras._replace(episode_length=t.extras.episode_length + 1)),
        lambda t: t._replace(observation=t.observation.astype(np.float64)),
    ],
    ids=["reward_on_first", "discount_on_first", "no_last", "ended_twice", "counts_the_reset", "observation_type"],
)
def test_wrong_environments_are_rejected(fault):
    env = AutoReset(RecordEpisodes(Counter(num_steps=3, truncates=True)))
    timesteps, _ = random_episodes(env)
    check_episodes(env, timesteps)
    with pytest.raises((AssertionError, ValueError)):
        check_episodes(env, fault(timesteps))


def test_every_env_row_changes_nothing_but_its_environment():
    default = load_config(())
    for name, overrides in ENVS.items():
        assert dataclasses.replace(load_config(overrides), env=default.env) == default, name
