"""Exploration of agents that value discrete actions: random actions, with a probability ε."""

import jax
import jax.numpy as jnp

from podracer.spaces import ACTION_MASK, Discrete
from podracer.types import Array, ArrayTree, Key


def scheduled_epsilon(
    progress: Array, start: Array | float, end: Array | float, exploration_fraction: Array | float
) -> Array:
    """`[]` ε, which changes linearly with the share of the budget that is done.

    Args:
      progress: `[]` the share, in [0, 1].
      start: ε at the start.
      end: ε from `exploration_fraction` on.
      exploration_fraction: share of the budget until then; 0 starts with `end`.
    """
    done = jnp.clip(progress / jnp.maximum(exploration_fraction, 1e-9), 0.0, 1.0)
    done = jnp.where(exploration_fraction > 0, done, 1.0)
    return start + done * (end - start)


def epsilon_ladder(base: Array | float, exponent: Array | float, env_indices: Array, num_envs: int) -> Array:
    """Gives every environment an ε of its own, from careless to nearly greedy.

    εᵢ = ε^(1 + α i / (N − 1))

    "Distributed Prioritized Experience Replay", Horgan et al., arXiv 1803.00933, section 4.1.

    Args:
      base: ε, of the first environment.
      exponent: α; the last environment has ε^(1 + α).
      env_indices: `[B]` int32 i, counted over all devices.
      num_envs: N, global.

    Returns:
      `[B]` f32.
    """
    rung = env_indices.astype(jnp.float32) / max(num_envs - 1, 1)
    return jnp.asarray(base, jnp.float32) ** (1.0 + exponent * rung)


def explore(key: Key, action: Array, epsilon: Array, space: Discrete, observation: ArrayTree) -> Array:
    """Replaces actions by uniformly random legal ones, with probability ε.

    Args:
      key: consumed.
      action: `[B]` int32, what to do otherwise.
      epsilon: `[]`, or `[B]` for each.
      space: of the action.
      observation: `[B, ...]`; its `action_mask`, if it has one, says what is legal.

    Returns:
      `[B]` actions.
    """
    uniform = jax.random.uniform(key, (*action.shape, 1 + space.num_values))
    ranks = uniform[..., 1:]
    if isinstance(observation, dict) and ACTION_MASK in observation:
        ranks = jnp.where(observation[ACTION_MASK], ranks, -1.0)
    random = jnp.argmax(ranks, -1).astype(action.dtype)
    return jnp.where(uniform[..., 0] < epsilon, random, action)
