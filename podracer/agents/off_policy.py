"""What agents that learn from replay share: the shape of their states, and actions before anything was learnt."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from podracer.agents import parts
from podracer.agents.optimiser import Trained
from podracer.agents.parts import Statistics
from podracer.losses.returns import join_transitions
from podracer.networks.distributions import Categorical, mask_illegal
from podracer.spaces import ACTION_MASK, Box, Discrete
from podracer.types import Array, ArrayTree, Key, Step


class LearnerState(NamedTuple):
    trained: Trained
    target_params: ArrayTree
    updates: Array  # [] int32 gradient updates made
    statistics: Statistics


class ActorParams(NamedTuple):
    params: ArrayTree
    statistics: Statistics
    has_learnt: Array  # [] bool, False until the first update


class Transition(NamedTuple):
    """From the first step of a sequence to the last, or to the end of the episode: `[N, ...]`."""

    observation: ArrayTree  # normalised, where the agent does
    action: Array
    reward: Array  # f32, sum of the discounted rewards in between
    discount: Array  # f32, of the value of the last observation; 0 after a true end
    last_observation: ArrayTree
    valid: Array  # bool, whether the first step is followed by one of its episode


def join_sequence(steps: Step, statistics: Statistics, discount_factor: Array | float) -> Transition:
    """Views `[n+1, N, ...]` steps of the replay, padded after the end of an episode, as one transition each."""
    reward, discount, valid = parts.transitions(steps, statistics)  # [n, N]
    joined = join_transitions(reward, discount * discount_factor, valid)
    observation = parts.normalise_observation(statistics, steps.timestep.observation)
    first, last = (jax.tree.map(lambda leaf, t=t: leaf[t], observation) for t in (0, -1))
    return Transition(first, steps.action[0], joined.reward, joined.discount, last, valid[0])


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
