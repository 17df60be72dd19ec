"""V-trace: value targets and advantages from the experience of a policy that lags behind."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from podracer.losses.returns import decayed_sums
from podracer.types import Array


class VTrace(NamedTuple):
    targets: Array  # [T, B] what the values are regressed to
    pg_advantages: Array  # [T, B] what the log-probabilities are weighted by


def vtrace(
    v_tm1: Array,
    reward_t: Array,
    discount_t: Array,
    v_t: Array,
    log_rho_tm1: Array,
    valid_tm1: Array,
    *,
    lambda_: float = 1.0,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
    clip_pg_rho: float = 1.0,
) -> VTrace:
    """Corrects returns for the lag between the policy that acted, μ, and the one that learns, π.

    ρₜ = π(aₜ|sₜ) / μ(aₜ|sₜ)
    δₜ = min(ρ̄, ρₜ) (rₜ₊₁ + γₜ₊₁ V(sₜ₊₁) − V(sₜ))
    vₜ = V(sₜ) + eₜ,   eₜ = δₜ + γₜ₊₁ λ min(c̄, ρₜ) eₜ₊₁
    Âₜ = min(ρ̄_pg, ρₜ) (rₜ₊₁ + γₜ₊₁ [V(sₜ₊₁) + λ eₜ₊₁] − V(sₜ))

    "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures",
    Espeholt et al., arXiv 1802.01561, eq. 1 and section 4.2; λ as in remark 2. With λ = 1 the bracket
    is vₜ₊₁.

    The target of a row that is no transition is its own value, and its advantage is 0.

    Args:
      v_tm1: `[T, B]` values of the observations acted on.
      reward_t: `[T, B]` rewards that followed.
      discount_t: `[T, B]` environment discount times the discount factor, in [0, 1]; 0 after a true end.
      v_t: `[T, B]` values of the observations that followed.
      log_rho_tm1: `[T, B]` log π(aₜ|sₜ) − log μ(aₜ|sₜ).
      valid_tm1: `[T, B]` bool, False where the row is no transition.
      lambda_: weight of later corrections, in [0, 1].
      clip_rho: ρ̄, which decides the policy whose value is learnt; at least clip_c.
      clip_c: c̄, which bounds how strongly later rows count, and so the variance.
      clip_pg_rho: ρ̄_pg, the bound on the weight of the policy's gradient.

    Returns:
      `[T, B]` targets and advantages, stopped from gradients.
    """
    sequences = [v_tm1, reward_t, discount_t, v_t, log_rho_tm1, valid_tm1]
    chex.assert_rank(sequences, {1, 2})
    chex.assert_equal_shape(sequences)
    chex.assert_type(sequences, [float] * 5 + [bool])

    rho = jnp.exp(log_rho_tm1)
    delta = jnp.minimum(clip_rho, rho) * (reward_t + discount_t * v_t - v_tm1)
    decay = discount_t * lambda_ * jnp.minimum(clip_c, rho)
    error = decayed_sums(jnp.where(valid_tm1, delta, 0.0), jnp.where(valid_tm1, decay, 0.0))

    error_t = jnp.concatenate([error[1:], jnp.zeros_like(error[:1])])
    q_tm1 = reward_t + discount_t * (v_t + lambda_ * error_t)
    pg_advantages = jnp.where(valid_tm1, jnp.minimum(clip_pg_rho, rho) * (q_tm1 - v_tm1), 0.0)
    return jax.lax.stop_gradient(VTrace(v_tm1 + error, pg_advantages))
