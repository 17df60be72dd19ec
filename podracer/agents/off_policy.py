"""What agents that learn from replay share: the shape of their states, and actions before anything was learnt."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from podracer.agents.optimiser import Trained
from podracer.agents.parts import Statistics
from podracer.networks.distributions import Categorical, mask_illegal
from podracer.spaces import ACTION_MASK, Box, Discrete
from podracer.types import Array, ArrayTree, Key


class LearnerState(NamedTuple):
    trained: Trained
    target_params: ArrayTree
    updates: Array  # [] int32 gradient updates made
    statistics: Statistics


class ActorParams(NamedTuple):
    params: ArrayTree
    statistics: Statistics
    has_learnt: Array  # [] bool, False until the first update


def uniform_actions(space: Box | Discrete, observation: ArrayTree, key: Key) -> Array:
    """Draws actions uniformly: over the whole range of `Box`, over the legal values of `Discrete`.

    Args:
      space: of the environment's actions.
      observation: `[B, ...]`, perhaps with a mask of legal actions.
      key: consumed.

    Returns:
      `[B, ...]` canonical actions.
    """
    (batch_size, *_) = jax.tree.leaves(observation)[0].shape
    if isinstance(space, Box):
        return jax.random.uniform(key, (batch_size, *space.shape), jnp.float32, -1.0, 1.0)
    logits = jnp.zeros((batch_size, space.num_values))
    if isinstance(observation, dict) and ACTION_MASK in observation:
        logits = mask_illegal(logits, observation[ACTION_MASK])
    return Categorical(logits).sample(key)
