"""Environments of gymnax 1.0, and any environment of the same form with its parameters."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from podracer.envs.base import EnvConfig, restart, transition
from podracer.randomness import run_key
from podracer.spaces import Box, Discrete, EnvSpec, to_env_action
from podracer.suggest import did_you_mean
from podracer.types import Array, ArrayTree, Key, TimeStep

# The longest episode, in steps, of those that truly end by themselves.
_LONGEST_EPISODE: dict[str, Callable[[Any, Any], int]] = {
    "Catch-bsuite": lambda env, params: env.rows - 1,
    "DeepSea-bsuite": lambda env, params: env.size,
    "MemoryChain-bsuite": lambda env, params: params.memory_length + 1,
    "UmbrellaChain-bsuite": lambda env, params: params.chain_length,
    "SimpleBandit-bsuite": lambda env, params: 1,
}
# Their observations leave the bounds that they declare.
_WRONG_BOUNDS = ("BernoulliBandit-misc", "GaussianBandit-misc", "MetaMaze-misc", "MemoryChain-bsuite")
_DOWNLOADS = "MNISTBandit-bsuite"
_LIMIT = "max_steps_in_episode"


@dataclass(frozen=True, eq=False)
class GymnaxEnv:
    """A gymnax environment and its parameters as a `JaxEnv`, stepped without gymnax's own reset.

    An episode truly ends where `step_env` says so, and is truncated where `is_truncated` says so of the
    new state; the true end wins. Environments in the form of gymnax 0.0, whose `step_env` calls both
    done, have no `is_truncated`: they are truncated where they are done at `max_steps_in_episode`.

    MinAtar's observations, 0 or 1, are emitted as bool: a quarter of the memory.
    """

    env: Any
    params: Any
    spec: EnvSpec

    def reset(self, key: Key) -> tuple[ArrayTree, TimeStep]:
        observation, state = self.env.reset_env(key, self.params)
        return state, restart(self._cast(observation))

    def step(self, key: Key, state: ArrayTree, action: Array) -> tuple[ArrayTree, TimeStep]:
        action = to_env_action(self.spec.action, action, jnp)
        observation, state, reward, ended, _ = self.env.step_env(key, state, action, self.params)
        terminated, truncated = self._endings(ended, state)
        return state, transition(reward, self._cast(observation), terminated=terminated, truncated=truncated)

    def _endings(self, ended: Array, state: ArrayTree) -> tuple[Array, Array]:
        if hasattr(self.env, "is_truncated"):
            return ended, self.env.is_truncated(state, self.params)
        limit, time = getattr(self.params, _LIMIT, None), getattr(state, "time", None)
        truncated = ended & (time >= limit) if limit is not None and time is not None else False
        return ended & ~jnp.asarray(truncated), truncated

    def _cast(self, observation: ArrayTree) -> ArrayTree:
        return jax.tree.map(lambda space, leaf: jnp.asarray(leaf, space.dtype), self.spec.observation, observation)


def make(config: EnvConfig) -> GymnaxEnv:
    """Makes the gymnax environment `env.id`.

    `env.kwargs` go to its constructor, `env.params` and `env.time_limit` into its parameters: so a
    limit above gymnax's own holds, too.

    Raises:
      ImportError: gymnax is not installed.
      ValueError: an unknown id, argument or parameter, or an environment that needs a download.
    """
    try:
        import gymnax
    except ModuleNotFoundError as error:
        raise ImportError('env.suite=gymnax needs gymnax: pip install "podracer[gymnax]"') from error
    if config.id not in gymnax.registered_envs:
        raise ValueError(
            f"env.id={config.id!r} is no gymnax environment; {did_you_mean(config.id, gymnax.registered_envs)}"
        )
    if config.id == _DOWNLOADS:
        raise ValueError(f"env.id={config.id} downloads MNIST when it is made, which is not supported")
    try:
        env, params = gymnax.make(config.id, **config.kwargs)
    except TypeError as error:
        raise ValueError(f"env.kwargs={dict(config.kwargs)} were refused by {config.id}: {error}") from error
    return from_gymnax(env, params, config, config.id)


def from_gymnax(env: Any, params: Any, config: EnvConfig, env_id: str) -> GymnaxEnv:
    """Adapts an environment in gymnax's form.

    Args:
      env: has `reset_env`, `step_env`, `observation_space` and `action_space`.
      params: its parameters, a dataclass.
      config: `params` and `time_limit` replace fields of the parameters.
      env_id: what it is called.
    """
    params = _replace_params(params, config, env_id)
    observation, _ = jax.eval_shape(lambda key: env.reset_env(key, params), run_key(0))
    limit = getattr(params, _LIMIT, None)
    longest = _LONGEST_EPISODE[env_id](env, params) if env_id in _LONGEST_EPISODE else None
    spec = EnvSpec(
        id=env_id,
        observation=_observation_spaces(env.observation_space(params), observation, env_id),
        action=_convert_space(env.action_space(params), f"{env_id}'s actions"),
        time_limit=None if limit is None else int(limit),
        can_truncate=longest is None or limit < longest,
    )
    return GymnaxEnv(env, params, spec)


def _replace_params(params: Any, config: EnvConfig, env_id: str) -> Any:
    values = dict(config.params)
    if config.time_limit is not None and hasattr(params, _LIMIT):
        if values.get(_LIMIT, config.time_limit) != config.time_limit:
            raise ValueError(
                f"env.time_limit={config.time_limit} contradicts env.params.{_LIMIT}={values[_LIMIT]}; give one of them"
            )
        values[_LIMIT] = config.time_limit
    if not values:
        return params
    known = [field.name for field in dataclasses.fields(params)]
    for name in values:
        if name not in known:
            raise ValueError(f"env.params.{name} is no parameter of {env_id}; {did_you_mean(name, known)}")

    def like(default, value):  # a parameter keeps its type: a whole number may stand for a float
        if isinstance(default, bool | int | float):
            return type(default)(value)
        return jnp.asarray(value, getattr(default, "dtype", None))

    return dataclasses.replace(params, **{name: like(getattr(params, name), value) for name, value in values.items()})


def _observation_spaces(declared: Any, emitted: ArrayTree, env_id: str) -> Any:
    """Takes structure, shape and dtype from what is emitted, and only the bounds from what is declared."""
    declared = _convert_space(declared, f"{env_id}'s observations")
    if jax.tree.structure(declared) != jax.tree.structure(emitted):
        raise ValueError(
            f"{env_id} declares observations {jax.tree.structure(declared)} but emits {jax.tree.structure(emitted)}"
        )

    def space_of(space, leaf):
        if isinstance(space, Discrete) and leaf.shape == () and jnp.issubdtype(leaf.dtype, jnp.integer):
            return space
        dtype = np.dtype(np.bool_) if env_id.endswith("-MinAtar") else leaf.dtype
        if isinstance(space, Discrete):
            return Box(leaf.shape, dtype, 0, space.num_values - 1)
        has_bounds = env_id not in _WRONG_BOUNDS
        return Box(leaf.shape, dtype, *((space.low, space.high) if has_bounds else ()))

    return jax.tree.map(space_of, declared, emitted)


def _convert_space(space: Any, what: str) -> Any:
    """Converts a gymnax space; by its name, as suites in gymnax's form bring classes of their own."""
    match type(space).__name__:
        case "Discrete":
            return Discrete(int(space.n))
        case "Box":
            return Box(tuple(space.shape), space.dtype, np.asarray(space.low), np.asarray(space.high))
        case "Dict":
            return {name: _convert_space(child, what) for name, child in space.spaces.items()}
        case "Tuple":
            return tuple(_convert_space(child, what) for child in space.spaces)
        case other:
            raise ValueError(f"{what} are in a {other}; known are Discrete, Box, Dict and Tuple")
