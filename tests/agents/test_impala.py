import jax.numpy as jnp
import numpy as np
import pytest

from podracer.agents.impala import IMPALA
from tests.agents.linear import NETWORK, NOT_NORMALISED, SPEC, F, L, M, actor_critic_params, make_batch

AGENT = IMPALA(spec=SPEC, network=NETWORK, unroll_length=3, discount_factor=0.5, value_cost=0.5, entropy_cost=0.01)


def make_unroll(discount_at_end):
    # π = (1/4, 3/4), μ = 1/2 each: ρ = 1.5, .5. V = 1, 2, 3, and 9 on the next episode's first observation.
    return make_batch(
        step_type=[F, M, L, F],
        reward=[0, 1, 2, 0],
        discount=[1, 1, discount_at_end, 1],
        observation=[1, 2, 3, 9],
        action=[1, 0, 0, 0],
        extras={"log_prob": np.log([0.5, 0.5, 0.001, 0.5])},
    )


def loss(discount_at_end):
    params = actor_critic_params([0.25, 0.75])
    return AGENT.loss(params, NOT_NORMALISED, make_unroll(discount_at_end), jnp.float32(2.0))


def test_A01_A03_golden_loss_of_a_truncated_episode():
    total, metrics = loss(1.0)
    # δ₁ = .5 (2 + .5 · 3 - 2) = .75 = e₁;  δ₀ = 1 + .5 · 2 - 1 = 1, e₀ = 1 + .5 · .75 = 1.375
    # Â₁ = .5 (2 + .5 · 3 - 2) = .75;  Â₀ = 1 + .5 (2 + .75) - 1 = 1.375
    np.testing.assert_allclose(metrics["value_loss"], (0.5 * 1.375**2 + 0.5 * 0.75**2) / 2, rtol=1e-5)
    # -(1.375 ln ¾ + .75 ln ¼) / 2 = (.395563 + 1.039721) / 2
    np.testing.assert_allclose(metrics["policy_loss"], 0.717642, rtol=1e-5)
    np.testing.assert_allclose(metrics["entropy"], 0.562335, rtol=1e-5)
    np.testing.assert_allclose(metrics["rho"], (1.5 + 0.5) / 2, rtol=1e-5)
    # .717642 + .5 · .613281 - .01 · .562335
    np.testing.assert_allclose(total, 1.018659, rtol=1e-5)


def test_A01_golden_loss_of_a_true_end():
    _, metrics = loss(0.0)
    # δ₁ = .5 (2 - 2) = 0 = e₁;  e₀ = δ₀ = 1;  Â₁ = 0;  Â₀ = 1
    np.testing.assert_allclose(metrics["value_loss"], (0.5 * 1.0) / 2, rtol=1e-5)
    # -(1 · ln ¾) / 2
    np.testing.assert_allclose(metrics["policy_loss"], 0.143841, rtol=1e-5)


@pytest.mark.parametrize("name", ["rmsprop", "adam"])
def test_both_optimisers_follow_the_gradient(name):
    agent = IMPALA(spec=SPEC, network=NETWORK, optimiser_name=name)
    updates, _ = agent.optimiser.update({"w": jnp.array([0.3])}, agent.optimiser.init({"w": jnp.array([0.0])}))
    # Adam's first step is g / (|g| + ε); RMSProp's g / √(.01 g²) = 10.
    np.testing.assert_allclose(updates["w"], {"adam": [1.0], "rmsprop": [10.0]}[name], rtol=1e-2)
