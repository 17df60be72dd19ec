"""What is checked of host environments once, before anything is trained on them."""

from collections.abc import Mapping

import jax
import numpy as np

from podracer.envs.base import HostEnv
from podracer.envs.host_from_jax import HostFromJax
from podracer.spaces import ACTION_MASK, Box, Discrete, EnvSpec, check_observation
from podracer.types import EpisodeStatistics, StepType, TimeStep

_DTYPES = {"step_type": np.int8, "reward": np.float32, "discount": np.float32}
_STATISTICS_DTYPES = {"episode_return": np.float32, "episode_length": np.int32, "ended": np.bool_}


def check_host_env(env: HostEnv, num_steps: int = 4) -> None:
    """Checks that environments emit what their spec says and keep the contract of `HostEnv`.

    They are reset and take a few random legal steps; the caller resets them again before use. A
    `HostFromJax` is left alone: `checks.check_env` is for its environment, and its steps are counted.

    Raises:
      ValueError: naming the environment, what was declared and what came.
    """
    if isinstance(env, HostFromJax):
        return
    who, rng = env.spec.id, np.random.default_rng(0)
    if isinstance(env.spec.action, Box) and not env.spec.action.is_bounded:
        raise ValueError(
            f"{who}'s actions are unbounded: Box({env.spec.action.low}, {env.spec.action.high}); bound them"
        )
    before = env.reset(np.arange(env.num_envs))
    _check_timestep(before, env.spec, env.num_envs, f"{who}.reset")
    if not before.is_first.all() or before.reward.any() or (before.discount != 1).any():
        raise ValueError(f"{who}.reset has to emit FIRST (0), reward 0 and discount 1 for every environment")
    for _ in range(num_steps):
        after = env.step(random_legal_actions(env.spec, before, rng))
        _check_timestep(after, env.spec, env.num_envs, f"{who}.step")
        _check_stream(before, after, f"{who}.step")
        before = after


def random_legal_actions(spec: EnvSpec, timestep: TimeStep, rng: np.random.Generator) -> np.ndarray:
    """Draws canonical actions `[B, ...]`, of those that `action_mask` allows if there is one."""
    num_envs = len(timestep.step_type)
    if isinstance(spec.action, Box):
        return rng.uniform(-1.0, 1.0, (num_envs, *spec.action.shape)).astype(np.float32)
    observation = timestep.observation
    if isinstance(spec.action, Discrete) and isinstance(observation, Mapping) and ACTION_MASK in observation:
        # The largest of random numbers, among the legal actions.
        return np.argmax(rng.random(observation[ACTION_MASK].shape) + observation[ACTION_MASK], axis=-1).astype(
            np.int32
        )
    return rng.integers(0, spec.action.num_values, (num_envs, *spec.action.shape), np.int32)


def _check_timestep(timestep: TimeStep, spec: EnvSpec, num_envs: int, who: str) -> None:
    if not isinstance(timestep.extras, EpisodeStatistics):
        raise ValueError(f"{who} emits {type(timestep.extras).__name__} as extras; they have to be EpisodeStatistics")
    expected = [(timestep, name, dtype) for name, dtype in _DTYPES.items()]
    expected += [(timestep.extras, name, dtype) for name, dtype in _STATISTICS_DTYPES.items()]
    for part, name, dtype in expected:
        leaf = getattr(part, name)
        if not isinstance(leaf, np.ndarray) or leaf.shape != (num_envs,) or leaf.dtype != dtype:
            raise ValueError(
                f"{who} emits {name} as {type(leaf).__name__} {getattr(leaf, 'dtype', '')}{np.shape(leaf)};"
                f" it has to be a NumPy array {np.dtype(dtype)}({num_envs},)"
            )
    check_observation(spec.observation, timestep.observation, (num_envs,), who)
    if isinstance(spec.observation, Mapping) and ACTION_MASK in spec.observation and isinstance(spec.action, Discrete):
        mask = spec.observation[ACTION_MASK]
        if mask.shape != (spec.action.num_values,) or mask.dtype != np.bool_:
            raise ValueError(
                f"{who} emits {ACTION_MASK} as {mask.dtype}{mask.shape};"
                f" with {spec.action.num_values} actions it has to be bool({spec.action.num_values},)"
            )


def _check_stream(before: TimeStep, after: TimeStep, who: str) -> None:
    """Checks two neighbouring time steps: resets come on the next step, and memory is fresh."""
    wrong = np.flatnonzero(before.is_last != after.is_first)
    if wrong.size:
        names = ("FIRST", "MID", "LAST")
        i = wrong[0]
        raise ValueError(
            f"{who} emits {names[after.step_type[i]]} after {names[before.step_type[i]]} in environment {i};"
            " LAST, and nothing else, is followed by FIRST"
        )
    if (~np.isin(after.discount, (0.0, 1.0)) | ((after.discount == 0) & (after.step_type != StepType.LAST))).any():
        raise ValueError(f"{who} emits discounts {after.discount}; they are 0 at true ends and 1 elsewhere")
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after)):
        if np.may_share_memory(old, new):
            raise ValueError(f"{who} writes into arrays that it has handed out before; it has to return fresh ones")
