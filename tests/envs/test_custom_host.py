"""A user's own host environments, of the three kinds that a function may return."""

import gymnasium
import pytest
from gymnasium.wrappers import ClipReward, TimeLimit

from podracer.envs.base import EnvConfig
from podracer.envs.custom_host import make
from podracer.envs.gymnasium_loop import EnvLoop
from podracer.envs.gymnasium_vector import VectorLoop
from podracer.envs.host_checks import check_host_env

indices = []


def one(index, env_id="CartPole-v1"):
    indices.append(index)
    return gymnasium.make(env_id)


def one_limited_inside(index):
    return ClipReward(gymnasium.make("CartPole-v1"), 0.0, 1.0)


def one_without_limit(index):
    return gymnasium.make("CartPole-v1").unwrapped


def vector(num_envs):
    return gymnasium.make_vec("CartPole-v1", num_envs)


def one_too_few(num_envs):
    return vector(num_envs - 1)


def host(num_envs, num_threads, scale=1):
    assert (num_threads, scale) == (7, 2)
    return EnvLoop([gymnasium.make("CartPole-v1") for _ in range(num_envs)], "mine")


def neither():
    return None


def nothing(index):
    return None


def batch_for_index(index):
    return vector(2)


def single_for_num_envs(num_envs):
    return gymnasium.make("CartPole-v1")


def make_from(function, num_envs=2, **config):
    path = f"{__name__}:{function.__name__}"
    return make(EnvConfig(suite="custom_host", make=path, **config), num_envs, 7)


@pytest.mark.parametrize(("function", "kwargs"), [(one, {}), (vector, {}), (host, {"scale": 2})])
def test_what_the_function_returns_becomes_a_host_env(function, kwargs):
    env = make_from(function, 3, kwargs=kwargs)
    assert env.num_envs == 3
    check_host_env(env, num_steps=30)
    env.close()


def test_single_environments_are_made_once_an_index():
    indices.clear()
    assert isinstance(make_from(one, 3), EnvLoop)
    assert indices == [0, 1, 2]
    assert isinstance(make_from(vector), VectorLoop)


def test_kwargs_are_handed_on_and_checked():
    assert make_from(one, kwargs={"env_id": "Acrobot-v1"}).spec.action.num_values == 3
    with pytest.raises(ValueError, match=r"env.kwargs=.*size.*one takes \(index, env_id='CartPole-v1'\)"):
        make_from(one, kwargs={"size": 1})


@pytest.mark.parametrize("limit", [10, 10_000])
@pytest.mark.parametrize("function", [one, one_without_limit])
def test_E03_the_users_limit_replaces_the_environments_own(function, limit):
    env = make_from(function, time_limit=limit)
    assert env.spec.time_limit == limit
    assert [single._max_episode_steps for single in env._envs if isinstance(single, TimeLimit)] == [limit] * 2
    assert not any(isinstance(single.env, TimeLimit) for single in env._envs)


@pytest.mark.parametrize(
    ("function", "config", "error", "message"),
    [
        (one_limited_inside, {"time_limit": 9}, ValueError, "env.time_limit=9.*a limit of its own inside"),
        (vector, {"time_limit": 9}, ValueError, "env.time_limit=9 cannot be applied to a whole batch"),
        (one_too_few, {}, ValueError, "asked for 2 environments and made 1"),
        (neither, {}, ValueError, r"takes \(\); it has to take either index.*or num_envs"),
        (nothing, {}, TypeError, "takes index and returned builtins.NoneType; it has to return one gymnasium.Env"),
        (batch_for_index, {}, TypeError, "takes index and returned .*CartPoleVectorEnv"),
        (single_for_num_envs, {}, TypeError, "takes num_envs and returned .*TimeLimit"),
    ],
)
def test_misfits_are_refused_with_the_repair(function, config, error, message):
    with pytest.raises(error, match=message):
        make_from(function, **config)


def test_a_path_is_needed():
    with pytest.raises(ValueError, match=r"needs env.make=package\.module:function"):
        make(EnvConfig(suite="custom_host"), 1, 1)
