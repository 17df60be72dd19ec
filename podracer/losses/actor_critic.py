"""Losses of policies that follow the values of critics: SAC, TD3, DDPG.

One number an element: the caller averages the valid ones. Q is `[C, B]` or, of all A discrete actions,
`[C, B, A]`, from C critics of which the lowest counts: "Addressing Function Approximation Error in
Actor-Critic Methods", Fujimoto et al., arXiv 1802.09477, section 4.2.
"""

import chex
import jax
import jax.numpy as jnp

from podracer.types import Array


def soft_value(q_values: Array, log_prob: Array, temperature: Array | float) -> Array:
    """Values a state by an action of its policy, and by how random that was.

    V(s) = minᵢ Qᵢ(s, a) − α log π(a|s),   a ~ π

    "Soft Actor-Critic Algorithms and Applications", Haarnoja et al., arXiv 1812.05905, eq. 3. Of target
    critics it is what bootstraps, eq. 5; of the critics and a reparameterised action, −V is the loss of
    the policy, eq. 9.

    Args:
      q_values: `[C, B]` of an action drawn from the policy.
      log_prob: `[B]` log π(a|s), the density of the squashed action, in nats.
      temperature: `[]` α.

    Returns:
      `[B]` values.
    """
    chex.assert_rank([q_values, log_prob], [2, 1])
    chex.assert_equal_shape([q_values[0], log_prob])
    chex.assert_type([q_values, log_prob], float)
    return jnp.min(q_values, axis=0) - temperature * log_prob


def expected_soft_value(q_values: Array, log_probs: Array, temperature: Array | float) -> Array:
    """Values a state by all its actions, the exact form of `soft_value` where they are discrete.

    V(s) = Σₐ π(a|s) (minᵢ Qᵢ(s, a) − α log π(a|s))

    "Soft Actor-Critic for Discrete Action Settings", Christodoulou, arXiv 1910.07207, eq. 10 and 12.

    Args:
      q_values: `[C, B, A]`; ignored where π is 0.
      log_probs: `[B, A]` log π(a|s).
      temperature: `[]` α.

    Returns:
      `[B]` values.
    """
    chex.assert_rank([q_values, log_probs], [3, 2])
    chex.assert_equal_shape([q_values[0], log_probs])
    chex.assert_type([q_values, log_probs], float)
    probability = jnp.exp(log_probs)
    # Of an illegal action both are the lowest number, whose multiples are infinite.
    is_possible = probability > 0
    value = jnp.where(is_possible, jnp.min(q_values, axis=0), 0.0)
    return jnp.sum(probability * (value - temperature * jnp.where(is_possible, log_probs, 0.0)), axis=-1)


def temperature_loss(log_temperature: Array, entropy: Array, target_entropy: float) -> Array:
    """Scores the temperature by how far the policy's entropy is from its target.

    log α · (H[π(·|s)] − H̄)

    Its slope in log α is the gap: α falls where the policy is more random than the target. arXiv
    1812.05905, eq. 18, has α in place of log α, whose slope in log α is α times the gap and dies out with α.

    Args:
      log_temperature: `[]` log α.
      entropy: `[B]` H, or the estimate −log π(a|s), in nats; no gradient flows through it.
      target_entropy: H̄, in nats.

    Returns:
      `[B]` losses.
    """
    chex.assert_rank([log_temperature, entropy], [0, 1])
    chex.assert_type([log_temperature, entropy], float)
    return log_temperature * (jax.lax.stop_gradient(entropy) - target_entropy)


def critics_loss(q_values: Array, target: Array) -> Array:
    """Regresses all critics to the same targets: Σᵢ ½ (Qᵢ(s, a) − y)².

    Args:
      q_values: `[C, B]` Qᵢ(s, a).
      target: `[B]` y, through which no gradient flows.

    Returns:
      `[B]` losses.
    """
    chex.assert_rank([q_values, target], [2, 1])
    chex.assert_equal_shape([q_values[0], target])
    chex.assert_type([q_values, target], float)
    return 0.5 * jnp.sum(jnp.square(q_values - jax.lax.stop_gradient(target)[None]), axis=0)


def smoothed_action(action: Array, noise: Array, max_noise: Array | float) -> Array:
    """Adds bounded noise to an action, so that the values of neighbouring actions are alike.

    clip(a + clip(ε, −c, c), −1, 1)

    arXiv 1802.09477, eq. 14.

    Args:
      action: `[B, K]` of the target policy, in [-1, 1].
      noise: `[B, K]` ε.
      max_noise: c, not negative.

    Returns:
      `[B, K]` actions in [-1, 1].
    """
    chex.assert_rank([action, noise], 2)
    chex.assert_equal_shape([action, noise])
    chex.assert_type([action, noise], float)
    return jnp.clip(action + jnp.clip(noise, -max_noise, max_noise), -1.0, 1.0)
