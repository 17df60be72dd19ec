"""Losses of distributions of returns: probabilities of fixed atoms (C51), or quantiles of equal probability (QR)."""

import chex
import jax
import jax.numpy as jnp

from podracer.losses.q_learning import huber_loss
from podracer.types import Array


def project_categorical(value: Array, probability: Array, atoms: Array) -> Array:
    """Moves a distribution onto fixed atoms: each value's probability is shared by the two atoms next to it.

    mᵢ = Σⱼ pⱼ max(0, 1 − |clip(vⱼ, z₁, z_N) − zᵢ| / Δz)

    "A Distributional Perspective on Reinforcement Learning", Bellemare et al., arXiv 1707.06887, eq. 7. The sum of
    the probabilities is kept, and the mean where no value is outside of the atoms.

    Args:
      value: `[B, M]` v, in any order.
      probability: `[B, M]` p of each value.
      atoms: `[N]` z, ascending, at equal distances Δz; N at least 2.

    Returns:
      `[B, N]` probabilities of the atoms.
    """
    chex.assert_rank([value, probability, atoms], [2, 2, 1])
    chex.assert_equal_shape([value, probability])
    chex.assert_type([value, probability, atoms], float)
    # In units of Δz from the first atom, where the atoms are exactly 0, 1, ... N − 1.
    last = atoms.shape[0] - 1
    place = jnp.clip((value - atoms[0]) / (atoms[-1] - atoms[0]) * last, 0.0, last)  # [B, M]
    distance = jnp.abs(place[:, None, :] - jnp.arange(last + 1, dtype=value.dtype)[None, :, None])  # [B, N, M]
    return jnp.sum(jnp.maximum(0.0, 1.0 - distance) * probability[:, None, :], axis=-1)


def categorical_loss(logits: Array, target: Array) -> Array:
    """Scores a distribution by its divergence from the target: KL(m ‖ p) = Σᵢ mᵢ (log mᵢ − log pᵢ).

    Its gradient is that of the cross-entropy of "A Distributional Perspective on Reinforcement Learning", Bellemare
    et al., arXiv 1707.06887, algorithm 1; unlike that it is 0 at its best, and so a measure of what is left to learn.

    Args:
      logits: `[B, N]` of p.
      target: `[B, N]` probabilities m, through which no gradient flows.

    Returns:
      `[B]` losses, in nats.
    """
    chex.assert_rank([logits, target], 2)
    chex.assert_equal_shape([logits, target])
    chex.assert_type([logits, target], float)
    target = jax.lax.stop_gradient(target)
    return jnp.sum(jax.scipy.special.xlogy(target, target) - target * jax.nn.log_softmax(logits), axis=-1)


def quantile_loss(quantile: Array, target: Array, threshold: float | None) -> Array:
    """Regresses quantiles to samples of the target.

    Σᵢ 1/M Σⱼ |τᵢ − 1[uᵢⱼ < 0]| ℒ(uᵢⱼ),   uᵢⱼ = tⱼ − θᵢ,   τᵢ = (i + ½) / N,   i = 0, ... N − 1

    "Distributional Reinforcement Learning with Quantile Regression", Dabney et al., arXiv 1710.10044, eq. 10.

    Args:
      quantile: `[B, N]` θ.
      target: `[B, M]` t, equally likely, through which no gradient flows.
      threshold: κ of the Huber loss ℒ; None is quantile regression proper, ℒ(u) = |u|.

    Returns:
      `[B]` losses.
    """
    chex.assert_rank([quantile, target], 2)
    chex.assert_equal_shape_prefix([quantile, target], 1)
    chex.assert_type([quantile, target], float)
    num_quantiles = quantile.shape[-1]
    tau = (jnp.arange(num_quantiles, dtype=quantile.dtype) + 0.5) / num_quantiles
    error = jax.lax.stop_gradient(target)[:, None, :] - quantile[:, :, None]  # [B, N, M]
    weight = jnp.abs(tau[None, :, None] - jax.lax.stop_gradient(error < 0.0))
    size = jnp.abs(error) if threshold is None else huber_loss(error, threshold)
    return jnp.sum(jnp.mean(weight * size, axis=-1), axis=-1)
