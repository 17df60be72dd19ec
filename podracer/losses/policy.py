"""Losses of policies and values, one number an element: the caller averages the valid ones."""

import chex
import jax
import jax.numpy as jnp

from podracer.parallel.collectives import masked_mean
from podracer.types import Array


def policy_gradient_loss(log_prob: Array, advantage: Array) -> Array:
    """Scores actions by their advantages: −Âₜ log π(aₜ|sₜ).

    "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning",
    Williams, 1992.

    Args:
      log_prob: `[T, B]` log π(aₜ|sₜ).
      advantage: `[T, B]` Âₜ, through which no gradient flows.

    Returns:
      `[T, B]` losses.
    """
    chex.assert_equal_shape([log_prob, advantage])
    chex.assert_type([log_prob, advantage], float)
    return -jax.lax.stop_gradient(advantage) * log_prob


def clipped_surrogate_loss(log_prob: Array, behaviour_log_prob: Array, advantage: Array, clip_epsilon: float) -> Array:
    """Scores actions by their advantages, without reward for moving far from the policy that acted.

    −min(ρₜ Âₜ, clip(ρₜ, 1 − ε, 1 + ε) Âₜ),   ρₜ = π(aₜ|sₜ) / μ(aₜ|sₜ)

    "Proximal Policy Optimization Algorithms", Schulman et al., arXiv 1707.06347, eq. 7.

    Args:
      log_prob: `[T, B]` log π(aₜ|sₜ).
      behaviour_log_prob: `[T, B]` log μ(aₜ|sₜ), as recorded by the actor.
      advantage: `[T, B]` Âₜ, through which no gradient flows.
      clip_epsilon: ε, positive.

    Returns:
      `[T, B]` losses.
    """
    chex.assert_equal_shape([log_prob, behaviour_log_prob, advantage])
    chex.assert_type([log_prob, behaviour_log_prob, advantage], float)
    advantage = jax.lax.stop_gradient(advantage)
    rho = jnp.exp(log_prob - behaviour_log_prob)
    clipped_rho = jnp.clip(rho, 1 - clip_epsilon, 1 + clip_epsilon)
    return -jnp.minimum(rho * advantage, clipped_rho * advantage)


def approximate_kl(log_prob: Array, behaviour_log_prob: Array) -> Array:
    """Estimates the divergence of the policy from the one that acted: (ρₜ − 1) − log ρₜ ≥ 0.

    Its mean over actions of μ is KL(μ ‖ π). "Approximating KL Divergence", Schulman, 2020.

    Args:
      log_prob: `[T, B]` log π(aₜ|sₜ).
      behaviour_log_prob: `[T, B]` log μ(aₜ|sₜ).

    Returns:
      `[T, B]` estimates, in nats.
    """
    chex.assert_equal_shape([log_prob, behaviour_log_prob])
    chex.assert_type([log_prob, behaviour_log_prob], float)
    log_rho = log_prob - behaviour_log_prob
    return jnp.expm1(log_rho) - log_rho


def value_loss(value: Array, target: Array) -> Array:
    """Regresses values to targets: ½ (V(sₜ) − Gₜ)².

    Args:
      value: `[T, B]` V(sₜ).
      target: `[T, B]` Gₜ, through which no gradient flows.

    Returns:
      `[T, B]` losses.
    """
    chex.assert_equal_shape([value, target])
    chex.assert_type([value, target], float)
    return 0.5 * jnp.square(value - jax.lax.stop_gradient(target))


def clipped_value_loss(value: Array, behaviour_value: Array, target: Array, clip_epsilon: float) -> Array:
    """Regresses values to targets, without reward for moving far from the values recorded.

    ½ max((V − G)², (V_μ + clip(V − V_μ, −ε, ε) − G)²)

    From the code of "Proximal Policy Optimization Algorithms" (OpenAI Baselines, ppo2); the paper,
    arXiv 1707.06347, does not have it.

    Args:
      value: `[T, B]` V(sₜ).
      behaviour_value: `[T, B]` V_μ(sₜ), as recorded by the actor.
      target: `[T, B]` Gₜ, through which no gradient flows.
      clip_epsilon: ε, positive, in units of the value.

    Returns:
      `[T, B]` losses.
    """
    chex.assert_equal_shape([value, behaviour_value, target])
    chex.assert_type([value, behaviour_value, target], float)
    clipped = behaviour_value + jnp.clip(value - behaviour_value, -clip_epsilon, clip_epsilon)
    return jnp.maximum(value_loss(value, target), value_loss(clipped, target))


def normalise_advantages(advantage: Array, where: Array, axis_name: str | None = None) -> Array:
    """Shifts and scales advantages to mean 0 and standard deviation 1 over all devices.

    Args:
      advantage: `[T, B]`, or a minibatch `[N]` of it.
      where: bool, of the same shape; elements that count.
      axis_name: the mesh axis of the learner devices, if any.

    Returns:
      Of the shape of `advantage`; 0 where `where` is False, and where one element counts alone.
    """
    chex.assert_equal_shape([advantage, where])
    chex.assert_type([advantage, where], [float, bool])
    # Two collectives, since E[x²] − E[x]² loses every digit where the mean is far from 0.
    centred = jnp.where(where, advantage - masked_mean(advantage, where, axis_name), 0.0)
    variance = masked_mean(jnp.square(centred), where, axis_name)
    return centred / (jnp.sqrt(variance) + 1e-8)
