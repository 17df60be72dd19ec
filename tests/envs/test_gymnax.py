import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.envs.base import EnvConfig
from podracer.envs.checks import check_env
from podracer.envs.gymnax import make
from podracer.envs.wrappers import wrap
from podracer.spaces import Box, Discrete
from podracer.types import StepType

gymnax = pytest.importorskip("gymnax")

OFFLINE = [name for name in gymnax.registered_envs if name != "MNISTBandit-bsuite"]
# Swimmer adds arrays of different ranks.
STRICT = [name for name in OFFLINE if name != "Swimmer-misc"]


def config(env_id: str, **settings) -> EnvConfig:
    return EnvConfig(suite="gymnax", id=env_id, **settings)


def play(env, num_steps: int, action, seed: int = 0):
    """Steps one environment, without a reset: NumPy leaves `[T, ...]`."""

    @jax.jit
    def run(key):
        state, _ = env.reset(key)

        def advance(state, key):
            state, timestep = env.step(key, state, action)
            return jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype), state), timestep

        # Two steps by hand: the first may still change weak types of the state.
        state, first = advance(state, key)
        _, later = jax.lax.scan(advance, state, jax.random.split(key, num_steps - 1))
        return jax.tree.map(lambda x, xs: jnp.concatenate([x[None], xs]), first, later)

    return jax.device_get(run(jax.random.key(seed)))


@pytest.mark.parametrize("env_id", OFFLINE)
def test_E14_every_offline_id_keeps_its_spec(env_id):
    with jax.numpy_rank_promotion("raise" if env_id in STRICT else "allow"):
        check_env(wrap(make(config(env_id)), config(env_id)), num_steps=0)


@pytest.mark.parametrize(
    "env_id", ["CartPole-v1", "Pendulum-v1", "MemoryChain-bsuite", "FourRooms-misc", "FrozenLake-misc"]
)
def test_E14_values_are_within_the_declared_bounds(env_id):
    check_env(wrap(make(config(env_id)), config(env_id)), num_steps=100)


def test_wrongly_declared_dtypes_are_put_right():
    assert make(config("Catch-bsuite")).spec.observation.dtype == np.float32  # declared int32
    assert make(config("FourRooms-misc")).spec.observation.dtype == np.int32  # declared float32
    assert make(config("UmbrellaChain-bsuite")).spec.observation.high == 1


def test_states_are_discrete():
    space = make(config("FrozenLake-misc")).spec.observation
    assert space == Discrete(16)


def test_minatar_is_bool_and_says_what_gymnax_says():
    env = make(config("Breakout-MinAtar"))
    assert env.spec.observation.dtype == np.bool_
    raw_env, params = gymnax.make("Breakout-MinAtar")
    raw, _ = raw_env.reset_env(jax.random.key(0), params)
    _, timestep = env.reset(jax.random.key(0))
    assert timestep.observation.dtype == np.bool_
    np.testing.assert_array_equal(timestep.observation.astype(np.float32), raw)


def test_E05_pendulum_torque_is_scaled_once():
    env = make(config("Pendulum-v1"))
    key = jax.random.key(0)
    raw_env, params = gymnax.make("Pendulum-v1")
    state, _ = env.reset(key)
    step, raw_step = jax.jit(env.step), jax.jit(raw_env.step_env)
    for canonical, torque in [(-1.0, -2.0), (0.25, 0.5), (1.0, 2.0), (9.0, 2.0)]:
        _, ours = step(key, state, jnp.array([canonical]))
        raw, *_ = raw_step(key, state, jnp.array([torque]), params)
        np.testing.assert_allclose(ours.observation, raw, rtol=1e-6)


@pytest.mark.parametrize(("limit", "wrapped"), [(10, False), (300, False), (10, True)])
def test_E03_limits_below_and_above_the_registered_one_hold(limit, wrapped):
    # Pendulum is cut after 200 steps and never ends by itself.
    settings = config("Pendulum-v1", time_limit=limit)
    env = wrap(make(settings), settings) if wrapped else make(settings)
    assert env.spec.time_limit == limit
    timesteps = play(env, limit, jnp.zeros((1,)))
    np.testing.assert_array_equal(timesteps.step_type, [StepType.MID] * (limit - 1) + [StepType.LAST])
    assert timesteps.discount[-1] == 1


def test_E03_10_000_over_500_and_its_spec():
    assert make(config("CartPole-v1")).spec.time_limit == 500
    assert make(config("CartPole-v1", time_limit=10_000)).spec.time_limit == 10_000
    assert make(config("BernoulliBandit-misc", time_limit=7)).params.max_steps_in_episode == 7.0


def test_E03_true_end_wins_over_the_limit():
    # DeepSea reaches its last row on the very step of its limit, 8.
    timesteps = play(make(config("DeepSea-bsuite")), 8, jnp.int32(0))
    np.testing.assert_array_equal(timesteps.step_type[-2:], [StepType.MID, StepType.LAST])
    assert timesteps.discount[-1] == 0


def test_truncation_is_possible_only_where_the_limit_comes_first():
    can_truncate = {env_id: make(config(env_id)).spec.can_truncate for env_id in ("CartPole-v1", "Catch-bsuite")}
    assert can_truncate == {"CartPole-v1": True, "Catch-bsuite": False}
    assert make(config("Catch-bsuite", time_limit=8)).spec.can_truncate
    assert not make(config("Catch-bsuite", time_limit=9)).spec.can_truncate  # it ends after 9 steps
    assert make(config("MemoryChain-bsuite", params={"memory_length": 1000})).spec.can_truncate


@pytest.mark.parametrize(("env_id", "longest"), [("MemoryChain-bsuite", 6), ("UmbrellaChain-bsuite", 10)])
def test_longest_episodes_are_what_the_environments_do(env_id, longest):
    timesteps = play(make(config(env_id)), longest, jnp.int32(0))
    np.testing.assert_array_equal(timesteps.discount, [1] * (longest - 1) + [0])


def test_rewards_are_float32():
    for env_id in ("UmbrellaChain-bsuite", "BernoulliBandit-misc"):  # int32 in gymnax
        env = make(config(env_id))
        _, timestep = jax.eval_shape(
            lambda key, env=env: env.step(key, env.reset(key)[0], jnp.int32(0)), jax.random.key(0)
        )
        assert timestep.reward.dtype == jnp.float32


def test_kwargs_and_params_arrive():
    env = make(config("DeepSea-bsuite", kwargs={"size": 5}))
    assert env.spec.observation.shape == (5, 5)
    assert env.spec.time_limit == 5
    params = make(config("CartPole-v1", params={"gravity": 3})).params
    assert params.gravity == 3.0
    assert isinstance(params.gravity, float)
    assert isinstance(env.spec.observation, Box)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (config("cartpole"), r"env\.id='cartpole'.*'CartPole-v1'"),
        (config("MNISTBandit-bsuite"), r"MNISTBandit-bsuite downloads"),
        (config("CartPole-v1", params={"gravty": 1.0}), r"env\.params\.gravty.*'gravity'"),
        (config("DeepSea-bsuite", kwargs={"rows": 4}), r"env\.kwargs=\{'rows': 4\}.*DeepSea-bsuite.*'rows'"),
        (config("CartPole-v1", time_limit=5, params={"max_steps_in_episode": 6}), r"env\.time_limit=5 contradicts.*6"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        make(settings)


def test_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnax", None)
    with pytest.raises(ImportError, match=r"pip install \"podracer\[gymnax\]\""):
        make(config("CartPole-v1"))
