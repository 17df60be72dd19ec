"""Returns and advantages over a sequence that may hold the ends of several episodes.

All arrays are `[T]` or `[T, B]`. Row t is the pair of steps (t, t+1): `_tm1` belongs to the step acted
on, `_t` to the one that followed. Rows that `podracer.types.valid_transitions` calls no transition
(`valid_tm1` False: the observation acted on was LAST, or a restart follows) join two episodes. Nothing
flows through them, so a truncated episode bootstraps from the value of its true last observation.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from podracer.types import Array


class LongTransition(NamedTuple):
    """Several transitions as one: G = reward + discount · v bootstraps from the value v of the last observation."""

    reward: Array  # [B] f32
    discount: Array  # [B] f32


def generalized_advantages(
    v_tm1: Array, reward_t: Array, discount_t: Array, v_t: Array, valid_tm1: Array, lambda_: float
) -> Array:
    """Estimates advantages by exponentially weighted temporal differences.

    δₜ = rₜ₊₁ + γₜ₊₁ V(sₜ₊₁) − V(sₜ),   Âₜ = δₜ + γₜ₊₁ λ Âₜ₊₁

    "High-Dimensional Continuous Control Using Generalized Advantage Estimation", Schulman et al.,
    arXiv 1506.02438, eq. 16.

    Args:
      v_tm1: `[T, B]` values of the observations acted on.
      reward_t: `[T, B]` rewards that followed.
      discount_t: `[T, B]` environment discount times the discount factor, in [0, 1]; 0 after a true end.
      v_t: `[T, B]` values of the observations that followed.
      valid_tm1: `[T, B]` bool, False where the row is no transition.
      lambda_: weight of later differences, in [0, 1].

    Returns:
      `[T, B]` advantages, 0 where the row is no transition; stopped from gradients.
    """
    _check_sequences(v_tm1, reward_t, discount_t, v_t, valid_tm1)
    delta = jnp.where(valid_tm1, reward_t + discount_t * v_t - v_tm1, 0.0)
    decay = jnp.where(valid_tm1, discount_t * lambda_, 0.0)
    return jax.lax.stop_gradient(decayed_sums(delta, decay))


def lambda_returns(reward_t: Array, discount_t: Array, v_t: Array, valid_tm1: Array, lambda_: float) -> Array:
    """Estimates returns that mix all horizons, bootstrapping from the values that followed.

    Gₜ = rₜ₊₁ + γₜ₊₁ [(1 − λₜ₊₁) vₜ₊₁ + λₜ₊₁ Gₜ₊₁],   λₜ₊₁ = λ, and 0 where row t+1 is no transition

    "Reinforcement Learning: An Introduction", Sutton and Barto, 2nd edition, section 12.3. With
    v = maxₐ Q(s, a) these are the targets of Peng's Q(λ).

    Args:
      reward_t: `[T, B]` rewards that followed.
      discount_t: `[T, B]` environment discount times the discount factor, in [0, 1]; 0 after a true end.
      v_t: `[T, B]` values of the observations that followed.
      valid_tm1: `[T, B]` bool, False where the row is no transition.
      lambda_: weight of later returns, in [0, 1].

    Returns:
      `[T, B]` returns, 0 where the row is no transition and has nothing to learn from; stopped from
      gradients.
    """
    _check_sequences(reward_t, discount_t, v_t, valid_tm1)
    # The last row has no later return in the sequence: it bootstraps wholly.
    lambda_t = lambda_ * jnp.concatenate([valid_tm1[1:], jnp.zeros_like(valid_tm1[:1])])
    one_step = reward_t + discount_t * (1 - lambda_t) * v_t
    returns = decayed_sums(one_step, discount_t * lambda_t)
    return jax.lax.stop_gradient(jnp.where(valid_tm1, returns, 0.0))


def join_transitions(reward_t: Array, discount_t: Array, valid_tm1: Array) -> LongTransition:
    """Joins n transitions, or as many as come before the end of the episode, into one.

    R = Σₖ (γ₁ γ₂ ... γₖ) rₖ₊₁,   D = γ₁ γ₂ ... γₘ   over k = 0, 1, ... m−1, the valid rows; m ≤ n

    "Learning to Predict by the Methods of Temporal Differences", Sutton, 1988. A true end makes D 0; a truncation
    after m transitions leaves γᵐ for the value of the true last observation.

    Args:
      reward_t: `[n, B]` rewards that followed.
      discount_t: `[n, B]` environment discount times the discount factor, in [0, 1]; 0 after a true end.
      valid_tm1: `[n, B]` bool, False where the row is no transition. The rows after the first of those do not count.

    Returns:
      `[B]` rewards and discounts.
    """
    _check_sequences(reward_t, discount_t, valid_tm1)
    valid = jnp.cumprod(valid_tm1, axis=0).astype(bool)
    discounts = jnp.cumprod(jnp.where(valid, discount_t, 1.0), axis=0)  # γ₁, γ₁γ₂, ...
    before = jnp.concatenate([jnp.ones_like(discounts[:1]), discounts[:-1]])
    return LongTransition(jnp.sum(jnp.where(valid, before * reward_t, 0.0), axis=0), discounts[-1])


def n_step_returns(reward_t: Array, discount_t: Array, v_t: Array, valid_tm1: Array, n: int) -> Array:
    """Estimates returns over n transitions, or as many as come before the end of the episode or the sequence.

    Gₜ⁽ᵏ⁾ = rₜ₊₁ + γₜ₊₁ Gₜ₊₁⁽ᵏ⁻¹⁾,   Gₜ⁽⁰⁾ = vₜ, and Gₜ₊₁ = vₜ₊₁ where row t+1 is no transition or past the end

    "Reinforcement Learning: An Introduction", Sutton and Barto, 2nd edition, section 7.1.

    Args:
      reward_t: `[T, B]` rewards that followed.
      discount_t: `[T, B]` environment discount times the discount factor, in [0, 1]; 0 after a true end.
      v_t: `[T, B]` values of the observations that followed.
      valid_tm1: `[T, B]` bool, False where the row is no transition.
      n: at least 1.

    Returns:
      `[T, B]` returns, 0 where the row is no transition; stopped from gradients.
    """
    _check_sequences(reward_t, discount_t, v_t, valid_tm1)
    goes_on = jnp.concatenate([valid_tm1[1:], jnp.zeros_like(valid_tm1[:1])])
    returns = v_t  # of the observation that followed each row
    for _ in range(n - 1):
        later = reward_t + discount_t * returns
        returns = jnp.where(goes_on, jnp.concatenate([later[1:], later[:1]]), v_t)
    return jax.lax.stop_gradient(jnp.where(valid_tm1, reward_t + discount_t * returns, 0.0))


def decayed_sums(x: Array, decay: Array) -> Array:
    """Sums each sequence from its end: yₜ = xₜ + dₜ yₜ₊₁, with y = 0 after the last row.

    Args:
      x: `[T, B]` what each row adds.
      decay: `[T, B]` weight of what comes after the row.

    Returns:
      `[T, B]` sums.
    """

    def accumulate(later, row):
        x, decay = row
        total = x + decay * later
        return total, total

    _, totals = jax.lax.scan(accumulate, jnp.zeros_like(x[0]), (x, decay), reverse=True)
    return totals


def _check_sequences(*sequences: Array) -> None:
    """Asserts that all are `[T]` or all are `[T, B]`, the last one bool and the others float."""
    chex.assert_rank(sequences, {1, 2})
    chex.assert_equal_shape(sequences)
    chex.assert_type(sequences, [float] * (len(sequences) - 1) + [bool])
