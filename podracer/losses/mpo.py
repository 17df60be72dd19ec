"""Policy improvement by weighted maximum likelihood within bounds of the divergence: MPO.

"Maximum a Posteriori Policy Optimisation", Abdolmaleki et al., arXiv 1806.06920, and "Relative Entropy
Regularized Policy Iteration", Abdolmaleki et al., arXiv 1812.02256.

Every bound has a dual variable, which grows while its divergence is above the bound and falls while it is
below. Losses are one for each state, so that their means over batches and devices are those of the paper.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from podracer.types import Array

# Added to a dual variable, which the softplus of a low number would make 0.
_SMALLEST_DUAL = 1e-8


class EStep(NamedTuple):
    """An improved policy, as weights of some actions."""

    weights: Array  # [N, B], of sum 1 over N; stopped from gradients
    temperature_loss: Array  # [B], of the temperature alone
    kl: Array  # [B] KL(q ‖ π), in nats; stopped from gradients


def positive_dual(x: Array) -> Array:
    """The dual variable of an unbounded parameter: softplus(x) + 10⁻⁸."""
    return jax.nn.softplus(x) + _SMALLEST_DUAL


def inverse_positive_dual(dual: Array | float) -> Array:
    """The parameter of a dual variable: x with softplus(x) = dual, which is above 0."""
    return dual + jnp.log(-jnp.expm1(-jnp.asarray(dual, jnp.float32)))


def e_step(q_values: Array, log_prior: Array, temperature: Array, epsilon: Array | float) -> EStep:
    """Improves a policy without parameters, within a bound of its divergence.

    q(a|s) ∝ π(a|s) exp(Q(s, a) / η),   g(η) = η (ε + log Σₐ π(a|s) exp(Q(s, a) / η))

    arXiv 1806.06920, eq. 7 and 8. The slope of g is ε − KL(q ‖ π): descending it raises the temperature
    where the policy would move too far.

    Args:
      q_values: `[N, B]` values of actions; ignored where π is 0.
      log_prior: `[N, B]` log π of each action: −log N for N samples of π, their own where the N actions are all.
      temperature: `[]` η, positive.
      epsilon: ε, in nats, positive.

    Returns:
      Weights `[N, B]`, loss and divergence `[B]`. No gradient flows into the values and π.
    """
    chex.assert_rank([q_values, log_prior, temperature], [2, 2, 0])
    chex.assert_equal_shape([q_values, log_prior])
    chex.assert_type([q_values, log_prior, temperature], float)
    log_prior = jax.lax.stop_gradient(log_prior)
    # An illegal action has the lowest finite value, and that over a low temperature is infinite.
    q_values = jax.lax.stop_gradient(jnp.where(jnp.exp(log_prior) > 0, q_values, 0.0))
    unnormalised = log_prior + q_values / temperature
    log_normaliser = jax.nn.logsumexp(unnormalised, axis=0)
    log_weights = jax.lax.stop_gradient(unnormalised - log_normaliser[None])
    weights = jnp.exp(log_weights)
    return EStep(
        weights,
        temperature * (epsilon + log_normaliser),
        jnp.sum(weights * (log_weights - log_prior), axis=0),
    )


def weighted_likelihood_loss(weights: Array, log_probs: Array) -> Array:
    """Fits a policy to weighted actions: −Σₐ q(a|s) log π(a|s).

    arXiv 1806.06920, eq. 9.

    Args:
      weights: `[N, B]` of the E-step, through which no gradient flows.
      log_probs: `[N, B]` log π(a|s) of the same actions, finite.

    Returns:
      `[B]` losses.
    """
    chex.assert_rank([weights, log_probs], 2)
    chex.assert_equal_shape([weights, log_probs])
    return -jnp.sum(jax.lax.stop_gradient(weights) * log_probs, axis=0)


def kl_losses(kl: Array, multiplier: Array, epsilon: Array | float) -> tuple[Array, Array]:
    """Holds a divergence below a bound by a Lagrange multiplier.

    α KL for the policy, and α (ε − KL) for the multiplier, which rises while KL > ε

    arXiv 1812.02256, section 4.2.

    Args:
      kl: `[B, ...]` divergences of the policy from the target policy, in nats; several have a bound each.
      multiplier: `[...]` α, positive.
      epsilon: ε, in nats, positive.

    Returns:
      `[B]` penalty, through which gradients flow into the policy alone, and `[B]` loss of the multiplier,
      through which they flow into it alone; summed over the bounds.
    """
    chex.assert_shape(multiplier, kl.shape[1:])
    multiplier = multiplier[None]
    penalty = jax.lax.stop_gradient(multiplier) * kl
    multiplier_loss = multiplier * (epsilon - jax.lax.stop_gradient(kl))
    bounds = tuple(range(1, kl.ndim))
    return jnp.sum(penalty, bounds), jnp.sum(multiplier_loss, bounds)


def categorical_kl(target_log_probs: Array, log_probs: Array) -> Array:
    """KL(π' ‖ π) = Σₐ π'(a) (log π'(a) − log π(a)).

    Args:
      target_log_probs: `[..., A]` log π', finite; normalised.
      log_probs: `[..., A]` log π, finite; normalised.

    Returns:
      `[...]` divergences, in nats.
    """
    chex.assert_equal_shape([target_log_probs, log_probs])
    return jnp.sum(jnp.exp(target_log_probs) * (target_log_probs - log_probs), axis=-1)


def decoupled_normal_kl(target_mean: Array, target_std: Array, mean: Array, std: Array) -> tuple[Array, Array]:
    """Splits the divergence from a normal policy into that of its mean and that of its standard deviation.

    KL(N(μ', σ') ‖ N(μ, σ')) = ½ ((μ − μ') / σ')²
    KL(N(μ', σ') ‖ N(μ', σ)) = ½ (eˣ − 1 − x),   x = 2 log(σ' / σ)

    arXiv 1812.02256, section 4.2.1, for a diagonal covariance.

    Args:
      target_mean: `[..., K]` μ'.
      target_std: `[..., K]` σ', positive.
      mean: `[..., K]` μ.
      std: `[..., K]` σ, positive.

    Returns:
      `[..., K]` divergence of each component by its mean, and by its standard deviation, in nats.
    """
    chex.assert_equal_shape([target_mean, target_std, mean, std])
    # As log(σ / σ') + σ'² / 2σ² − ½ the second would be rounded off at bounds such as 10⁻⁶.
    x = 2.0 * (jnp.log(target_std) - jnp.log(std))
    return 0.5 * jnp.square((mean - target_mean) / target_std), 0.5 * (jnp.expm1(x) - x)


def out_of_bounds_cost(action: Array) -> Array:
    """How far actions are outside of the bounds of canonical actions: ‖a − clip(a, −1, 1)‖.

    Its negative is the second objective of "A Distributional View on Multi-Objective Policy Optimization",
    Abdolmaleki, Huang et al., arXiv 2005.07513, that Acme's MPO has beside the value.

    Args:
      action: `[..., K]`.

    Returns:
      `[...]` costs, 0 inside of the bounds.
    """
    return jnp.linalg.norm(action - jnp.clip(action, -1.0, 1.0), axis=-1)
