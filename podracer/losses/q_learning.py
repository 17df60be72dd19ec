"""Parts of Q-learning: policies that follow from action values, and the loss of a temporal difference.

Illegal actions come with the lowest finite action value, so no policy takes them.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from podracer.types import Array


class SoftPolicy(NamedTuple):
    probabilities: Array  # [..., A]
    log_probs: Array  # [..., A], finite
    entropy: Array  # [...] in nats


def of_action(values: Array, action: Array) -> Array:
    """Selects `[...]` what belongs to the action taken, `[...]` int, from `[..., A]` values of all actions."""
    # A selection fuses with what made the values; a gather does not, and its gradient is a scatter.
    chosen = jax.nn.one_hot(action, values.shape[-1], dtype=bool)
    return jnp.sum(jnp.where(chosen, values, 0.0), axis=-1)


def huber_loss(error: Array, threshold: Array | float) -> Array:
    """Squares small errors and takes the size of large ones: ½ e² if |e| ≤ κ, else κ (|e| − ½ κ).

    "Robust Estimation of a Location Parameter", Huber, 1964. With κ = 1 it is the clipping of errors in "Human-level
    control through deep reinforcement learning", Mnih et al., Nature 518, 2015.

    Args:
      error: `[...]`.
      threshold: κ, positive.

    Returns:
      `[...]` losses.
    """
    chex.assert_type(error, float)
    size = jnp.abs(error)
    small = jnp.minimum(size, threshold)
    return 0.5 * jnp.square(small) + threshold * (size - small)


def greedy_policy(q_value: Array) -> Array:
    """Puts all probability on the best action, the first of equal ones.

    Applied to the values of the online network, and those of the target network averaged by it, this is Double
    Q-learning: "Deep Reinforcement Learning with Double Q-learning", van Hasselt et al., arXiv 1509.06461, eq. 4.

    Args:
      q_value: `[..., A]`.

    Returns:
      `[..., A]` probabilities, in the type of the values.
    """
    chex.assert_type(q_value, float)
    return jax.nn.one_hot(jnp.argmax(q_value, axis=-1), q_value.shape[-1], dtype=q_value.dtype)


def soft_policy(q_value: Array, temperature: Array | float) -> SoftPolicy:
    """Prefers better actions by degrees: π(a) ∝ exp(Q(a) / τ).

    Args:
      q_value: `[..., A]`.
      temperature: τ, positive, in units of the value.
    """
    chex.assert_type(q_value, float)
    # The value of an illegal action must stay finite: 0 · log 0 would be NaN.
    logits = jnp.maximum(q_value / temperature, jnp.finfo(q_value.dtype).min)
    log_probs = jax.nn.log_softmax(logits)
    probabilities = jnp.exp(log_probs)
    return SoftPolicy(probabilities, log_probs, -jnp.sum(probabilities * log_probs, axis=-1))


def munchausen_bonus(
    log_prob: Array, scale: Array | float, temperature: Array | float, lower_bound: Array | float
) -> Array:
    """Rewards an action for being likely: α max(τ log π(aₜ|sₜ), l₀).

    "Munchausen Reinforcement Learning", Vieillard et al., arXiv 2007.14430, eq. 1 and section 3.

    Args:
      log_prob: `[...]` log π(aₜ|sₜ) of the soft policy of the target network, in nats.
      scale: α, in [0, 1].
      temperature: τ of the policy, in units of the value.
      lower_bound: l₀, negative.

    Returns:
      `[...]` what is added to the rewards, at most 0.
    """
    chex.assert_type(log_prob, float)
    return scale * jnp.maximum(temperature * log_prob, lower_bound)
