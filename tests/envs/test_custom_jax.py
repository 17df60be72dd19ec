import dataclasses
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.envs.base import EnvConfig
from podracer.envs.checks import check_env
from podracer.envs.custom_jax import make
from podracer.envs.probe import Counter
from podracer.envs.wrappers import wrap


@dataclasses.dataclass
class OldState:
    time: jax.Array
    position: jax.Array


jax.tree_util.register_dataclass(OldState, data_fields=["time", "position"], meta_fields=[])


@dataclasses.dataclass
class OldParams:
    goal: float = 100.0
    max_steps_in_episode: int = 6


class Discrete(types.SimpleNamespace):
    pass


class Box(types.SimpleNamespace):
    pass


class Dict(types.SimpleNamespace):
    pass


class OldEnv:
    """In the form of gymnax 0.0: no `is_truncated`; done at the goal and at the limit alike; its own spaces."""

    name = "old"

    def reset_env(self, key, params):
        state = OldState(jnp.int32(0), jnp.float32(0))
        return self._observe(state), state

    def step_env(self, key, state, action, params):
        state = OldState(state.time + 1, state.position + action)
        done = (state.position >= params.goal) | (state.time >= params.max_steps_in_episode)
        return self._observe(state), state, 1, done, {}

    def observation_space(self, params):
        return Dict(spaces={"position": Box(shape=(), dtype=np.float32, low=0.0, high=np.inf)})

    def action_space(self, params):
        return Discrete(n=3)

    def _observe(self, state):
        return {"position": state.position}


def gymnax_style(**kwargs):
    return OldEnv(), OldParams(**kwargs)


def jax_env(num_steps: int = 3):
    return Counter(num_steps=num_steps)


def number():
    return 7


def config(function: str, **settings) -> EnvConfig:
    return EnvConfig(suite="custom_jax", make=f"{__name__}:{function}", **settings)


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Makes this module importable by its name, whatever the import mode of the tests."""
    monkeypatch.setitem(sys.modules, __name__, types.SimpleNamespace(**globals()))


def last_timestep(env, action: int):
    key = jax.random.key(0)
    step = jax.jit(env.step)
    state, timestep = jax.jit(env.reset)(key)
    steps = 0
    while not timestep.is_last:
        state, timestep = step(key, state, jnp.int32(action))
        steps += 1
    return steps, timestep


def test_jax_env_comes_as_it_is():
    settings = config("jax_env", kwargs={"num_steps": 4})
    env = make(settings)
    assert env == Counter(num_steps=4)
    check_env(wrap(env, settings))


def test_gymnax_style_pair_is_adapted():
    env = make(config("gymnax_style"))
    assert env.spec.id == "old"
    assert env.spec.action.num_values == 3
    assert set(env.spec.observation) == {"position"}
    assert env.spec.time_limit == 6
    check_env(wrap(env, config("gymnax_style")))


def test_E03_done_at_the_limit_of_the_old_form_is_truncation():
    steps, timestep = last_timestep(make(config("gymnax_style")), action=0)
    assert (steps, timestep.discount) == (6, 1)
    steps, timestep = last_timestep(make(config("gymnax_style", params={"goal": 4})), action=2)
    assert (steps, timestep.discount) == (2, 0)
    steps, timestep = last_timestep(make(config("gymnax_style", time_limit=9)), action=0)
    assert (steps, timestep.discount) == (9, 1)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (EnvConfig(suite="custom_jax"), ValueError, r"needs env\.make=package\.module:function"),
        (config("jax_envs"), ValueError, r"no 'jax_envs'; did you mean 'jax_env'"),
        (config("jax_env", kwargs={"steps": 3}), ValueError, r"env\.kwargs=\{'steps': 3\}.*num_steps"),
        (config("number"), TypeError, r"returned a int; it must return a JaxEnv"),
        (config("jax_env", params={"a": 1}), ValueError, r"env\.params=.*env\.kwargs"),
        (config("gymnax_style", params={"gaol": 1}), ValueError, r"env\.params\.gaol.*'goal'"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, error, message):
    with pytest.raises(error, match=message):
        make(settings)
