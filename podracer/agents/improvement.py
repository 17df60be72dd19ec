"""How MPO improves a policy: towards the better ones of some actions, within bounds.

Each bound has a dual variable of the same name: `temperature` of the improved policy and `penalty_temperature` of
the one that keeps to the range of the actions, and the multipliers `mean`, `std` and `policy` of the divergence
from the target policy.
"""

from typing import NamedTuple

import jax.numpy as jnp

from podracer.losses import mpo
from podracer.networks.distributions import Categorical, DiagonalNormal
from podracer.types import Array


class Candidates(NamedTuple):
    """The actions that a policy is improved over: N samples of it, or the N that there are."""

    policy: DiagonalNormal | Categorical  # the target policy in [B] states
    action: Array | tuple[()]  # [N, B, K] samples; () where the actions are discrete, and N is A
    log_prior: Array  # [N, B] log-probability of each among the N
    q_value: Array  # [N, B]

    @property
    def value(self) -> Array:
        """`[B]` expected value of the policy."""
        prior = jnp.exp(self.log_prior)
        return jnp.sum(jnp.where(prior > 0, prior * self.q_value, 0.0), axis=0)


class Improvement(NamedTuple):
    """All `[B]`."""

    policy_loss: Array  # likelihood, and penalties for the divergence
    dual_loss: Array  # of the dual variables alone
    divergences: dict[str, Array]  # in nats, to be shown


def improve_normal(
    policy: DiagonalNormal, candidates: Candidates, duals: dict[str, Array], bounds: dict[str, Array | float]
) -> Improvement:
    """Fits a normal policy to weighted samples of the target policy, its mean and its deviation apart.

    −Σₐ q(a) [log N(a; μ, σ') + log N(a; μ', σ)], with KL(N(μ', σ') ‖ N(μ, σ')) and KL(N(μ', σ') ‖ N(μ', σ)) bounded

    arXiv 1812.02256, section 4.2.1.

    Args:
      policy: N(μ, σ), of `[B]` states.
      candidates: samples of the target policy N(μ', σ').
      duals: `temperature` `[]`, `mean` and `std` `[K]`; `penalty_temperature` `[]` where leaving [-1, 1] weighs less.
      bounds: `[]` each, in nats.
    """
    target, action = candidates.policy, candidates.action
    step = mpo.e_step(candidates.q_value, candidates.log_prior, duals["temperature"], bounds["temperature"])
    weights, dual_loss = step.weights, step.temperature_loss
    if "penalty_temperature" in duals:
        penalty = mpo.e_step(
            -mpo.out_of_bounds_cost(action),
            candidates.log_prior,
            duals["penalty_temperature"],
            bounds["penalty_temperature"],
        )
        weights, dual_loss = weights + penalty.weights, dual_loss + penalty.temperature_loss
    log_probs = DiagonalNormal(policy.mean[None], target.std[None]).log_prob(action)
    log_probs += DiagonalNormal(target.mean[None], policy.std[None]).log_prob(action)
    kl_mean, kl_std = mpo.decoupled_normal_kl(target.mean, target.std, policy.mean, policy.std)
    mean_penalty, mean_loss = mpo.kl_losses(kl_mean, duals["mean"], bounds["mean"])
    std_penalty, std_loss = mpo.kl_losses(kl_std, duals["std"], bounds["std"])
    return Improvement(
        mpo.weighted_likelihood_loss(weights, log_probs) + mean_penalty + std_penalty,
        dual_loss + mean_loss + std_loss,
        {"kl_improved": step.kl, "kl_mean": jnp.mean(kl_mean, -1), "kl_std": jnp.mean(kl_std, -1)},
    )


def improve_categorical(
    policy: Categorical, candidates: Candidates, duals: dict[str, Array], bounds: dict[str, Array | float]
) -> Improvement:
    """Fits a discrete policy to the weights of all actions.

    −Σₐ q(a) log π(a), with KL(π' ‖ π) bounded

    Args:
      policy: π, of `[B]` states.
      candidates: all actions, and the target policy π'.
      duals: `temperature` and `policy`, `[]`.
      bounds: `[]` each, in nats.
    """
    step = mpo.e_step(candidates.q_value, candidates.log_prior, duals["temperature"], bounds["temperature"])
    kl = mpo.categorical_kl(candidates.policy.log_probs, policy.log_probs)
    penalty, multiplier_loss = mpo.kl_losses(kl, duals["policy"], bounds["policy"])
    return Improvement(
        mpo.weighted_likelihood_loss(step.weights, policy.log_probs.T) + penalty,
        step.temperature_loss + multiplier_loss,
        {"kl_improved": step.kl, "kl_policy": kl},
    )
