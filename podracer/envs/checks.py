"""What is checked of a JAX environment once, before anything is trained on it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from podracer.envs.autoreset import AutoReset
from podracer.envs.base import JaxEnv
from podracer.randomness import run_key
from podracer.spaces import ACTION_MASK, ActionSpace, Box, Discrete, check_observation
from podracer.types import Array, ArrayTree, Key, TimeStep

_TIMESTEP_DTYPES = {"step_type": jnp.int8, "reward": jnp.float32, "discount": jnp.float32}


def check_env(env: JaxEnv, num_steps: int = 8, num_envs: int = 4) -> None:
    """Checks that an environment emits what its spec says, and keeps the contract of `JaxEnv`.

    Structures, shapes and dtypes are checked without running anything; then `num_envs` environments
    take `num_steps` random steps, whose values are checked: step types, discounts, finite rewards, and
    observations within their declared bounds.

    Args:
      env: before `AutoReset`.
      num_steps: of the rollout; with 0 nothing is compiled or run.
      num_envs: of the rollout.

    Raises:
      ValueError: naming the environment, the leaf, what was declared and what came.
    """
    who, spec = env.spec.id, env.spec
    if isinstance(spec.action, Box) and not spec.action.is_bounded:
        raise ValueError(f"{who}'s actions are unbounded: Box({spec.action.low}, {spec.action.high}); bound them")
    key = run_key(0)
    state, first = jax.eval_shape(env.reset, key)
    action = jax.eval_shape(lambda: random_actions(spec.action, key, ()))
    next_state, later = jax.eval_shape(env.step, key, state, action)
    for method, timestep in {"reset": first, "step": later}.items():
        _check_timestep(timestep, spec, f"{who}.{method}")
    _check_same(state, next_state, f"{who}: the state")
    _check_same(first, later, f"{who}: the timestep")
    if num_steps:
        _check_values(jax.device_get(_rollout(env, key, num_steps, num_envs)), spec.observation, who)


def random_actions(space: ActionSpace, key: Key, batch_shape: tuple[int, ...]) -> Array:
    """Draws uniform canonical actions `[*batch_shape, *space.shape]`. The key is consumed."""
    if isinstance(space, Box):
        return jax.random.uniform(key, batch_shape + space.shape, jnp.float32, -1.0, 1.0)
    shape = batch_shape + space.shape
    return jax.random.randint(key, shape, 0, jnp.broadcast_to(jnp.asarray(space.num_values), shape))


def _rollout(env: JaxEnv, key: Key, num_steps: int, num_envs: int) -> TimeStep:
    """Takes random steps: `[T+1, B, ...]`."""
    batched = AutoReset(env)

    def advance(state, step_key):
        action_key, env_key = jax.random.split(step_key)
        return batched.step(env_key, state, random_actions(env.spec.action, action_key, (num_envs,)))

    @jax.jit
    def rollout(key):
        reset_key, step_key = jax.random.split(key)
        state, first = batched.reset(reset_key, num_envs)
        _, later = jax.lax.scan(advance, state, jax.random.split(step_key, num_steps))
        return jax.tree.map(lambda x, xs: jnp.concatenate([x[None], xs]), first, later)

    return rollout(key)


def _check_timestep(timestep: TimeStep, spec: Any, who: str) -> None:
    for name, dtype in _TIMESTEP_DTYPES.items():
        leaf = getattr(timestep, name)
        if leaf.shape != () or leaf.dtype != dtype:
            raise ValueError(f"{who} emits {name} as {leaf.dtype}{leaf.shape}; it must be {np.dtype(dtype)}()")
    check_observation(spec.observation, timestep.observation, (), who)
    if isinstance(spec.observation, dict) and ACTION_MASK in spec.observation and isinstance(spec.action, Discrete):
        mask = spec.observation[ACTION_MASK]
        if mask.shape != (spec.action.num_values,) or mask.dtype != np.bool_:
            raise ValueError(
                f"{who} emits {ACTION_MASK} as {mask.dtype}{mask.shape}; with {spec.action.num_values} actions it must "
                f"be bool({spec.action.num_values},)"
            )


def _check_same(from_reset: ArrayTree, from_step: ArrayTree, what: str) -> None:
    if jax.tree.structure(from_reset) != jax.tree.structure(from_step):
        raise ValueError(
            f"{what} is {jax.tree.structure(from_reset)} after reset but {jax.tree.structure(from_step)} after step"
        )
    after_step = jax.tree.leaves(from_step)
    for (path, before), after in zip(jax.tree_util.tree_leaves_with_path(from_reset), after_step):
        if (before.shape, before.dtype) != (after.shape, after.dtype):
            raise ValueError(
                f"{what}{jax.tree_util.keystr(path)} is {before.dtype}{before.shape} after reset but "
                f"{after.dtype}{after.shape} after step"
            )


def _check_values(timesteps: TimeStep, spaces: Any, who: str) -> None:
    if not timesteps.is_first[0].all():
        raise ValueError(f"{who}.reset emits step types {timesteps.step_type[0]}; each must be FIRST (0)")
    is_start = timesteps.is_first & np.concatenate([np.ones_like(timesteps.is_first[:1]), timesteps.is_last[:-1]])
    if not np.array_equal(is_start, timesteps.is_first):
        raise ValueError(f"{who}.step emits FIRST (0); it must emit MID (1) or LAST (2)")
    if timesteps.reward[is_start].any() or (timesteps.discount[is_start] != 1).any():
        raise ValueError(f"{who}.reset must emit reward 0 and discount 1")
    if not np.isfinite(timesteps.reward).all():
        raise ValueError(f"{who} emits rewards that are not finite")
    if (timesteps.discount < 0).any() or (timesteps.discount > 1).any():
        raise ValueError(f"{who} emits discounts outside of [0, 1]")
    values = jax.tree.leaves(timesteps.observation)
    for (path, space), value in zip(jax.tree_util.tree_leaves_with_path(spaces), values):
        if isinstance(space, Box):
            low, high = space.low, space.high
        else:
            low, high = space.start, space.start + space.num_values - 1
        at_bounds = np.isclose(value, low) | np.isclose(value, high)  # rounding is no fault
        if not (at_bounds | ((value >= low) & (value <= high))).all():
            raise ValueError(
                f"{who} declares {jax.tree_util.keystr(path) or 'observations'} in [{np.min(low)}, {np.max(high)}] "
                f"but emits values in [{value.min()}, {value.max()}]"
            )
