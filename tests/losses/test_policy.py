"""Golden numbers of the losses, and advantages normalised over several devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from podracer.losses import policy


def float32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_clipped_surrogate_keeps_the_worse_of_the_two_scores():
    # ρ = [1.5, 1.5, .5, .5], Â = [2, −2, 2, −2], ε = .2
    # min(ρÂ, clip(ρ)Â) = [min(3, 2.4), min(−3, −2.4), min(1, 1.6), min(−1, −1.6)] = [2.4, −3, 1, −1.6]
    log_prob, behaviour = np.log(float32(1.5, 1.5, 0.5, 0.5)), np.zeros(4, np.float32)
    advantage = float32(2, -2, 2, -2)
    loss = policy.clipped_surrogate_loss(log_prob, behaviour, advantage, 0.2)
    np.testing.assert_allclose(loss, [-2.4, 3, -1, 1.6], rtol=1e-6)
    gradient = jax.grad(lambda a: jnp.sum(policy.clipped_surrogate_loss(log_prob, behaviour, a, 0.2)))(advantage)
    np.testing.assert_array_equal(gradient, 0)


def test_clipped_surrogate_equals_rlax_with_its_gradient():
    log_prob, behaviour, advantage = np.random.default_rng(0).normal(size=(3, 50)).astype(np.float32)

    def ours(log_prob):
        return jnp.mean(policy.clipped_surrogate_loss(log_prob, behaviour, advantage, 0.2))

    def theirs(log_prob):
        return rlax.clipped_surrogate_pg_loss(jnp.exp(log_prob - behaviour), jnp.asarray(advantage), 0.2)

    for got, expected in zip(jax.value_and_grad(ours)(log_prob), jax.value_and_grad(theirs)(log_prob)):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)


def test_policy_gradient_weighs_log_probabilities_by_advantages():
    log_prob, advantage = float32(-1, -2), float32(3, -4)
    np.testing.assert_array_equal(policy.policy_gradient_loss(log_prob, advantage), [3, -8])
    gradients = jax.grad(lambda *x: jnp.sum(policy.policy_gradient_loss(*x)), argnums=(0, 1))(log_prob, advantage)
    np.testing.assert_array_equal(gradients, [[-3, 4], [0, 0]])


def test_value_loss_is_half_the_square_and_pulls_only_the_value():
    value, target = float32(1, 4), float32(3, 3)
    np.testing.assert_array_equal(policy.value_loss(value, target), [2, 0.5])
    gradients = jax.grad(lambda *x: jnp.sum(policy.value_loss(*x)), argnums=(0, 1))(value, target)
    np.testing.assert_array_equal(gradients, [[-2, 1], [0, 0]])


def test_clipped_value_loss_stops_where_the_value_has_moved_far_towards_its_target():
    # V_μ = 0, ε = .2, V = [.5, −.5], G = [1, 1]: clipped V = [.2, −.2]
    # ½ max((.5 − 1)², (.2 − 1)²) = .32 from the clipped value, without gradient
    # ½ max((−.5 − 1)², (−.2 − 1)²) = 1.125 from the value itself, gradient −1.5
    value, behaviour, target = float32(0.5, -0.5), np.zeros(2, np.float32), np.ones(2, np.float32)
    np.testing.assert_allclose(policy.clipped_value_loss(value, behaviour, target, 0.2), [0.32, 1.125], rtol=1e-6)
    gradient = jax.grad(lambda v: jnp.sum(policy.clipped_value_loss(v, behaviour, target, 0.2)))(value)
    np.testing.assert_allclose(gradient, [0, -1.5], rtol=1e-6)


def test_approximate_kl_is_unbiased_and_zero_for_equal_policies():
    # μ = [.5, .5], π = [.25, .75]: KL = .5 log 2 + .5 log(2/3) = .1438
    behaviour, log_prob = np.log(float32(0.5, 0.5)), np.log(float32(0.25, 0.75))
    estimates = policy.approximate_kl(log_prob, behaviour)
    assert np.mean(estimates) == pytest.approx(0.1438, abs=1e-4)
    # ρ = [.5, 1.5]: −.5 − log .5 = .19315, .5 − log 1.5 = .09453
    np.testing.assert_allclose(estimates, [0.19315, 0.09453], atol=1e-5)
    np.testing.assert_array_equal(policy.approximate_kl(behaviour, behaviour), 0)


def test_A23_advantages_are_normalised_over_all_devices():
    # [0, 2, 10, 12]: mean 6, variance (36 + 16 + 16 + 36) / 4 = 26, std 5.09902
    advantage = np.array([[0, 2], [10, 12]], np.float32)
    normalise = jax.vmap(lambda a, w: policy.normalise_advantages(a, w, "learner"), axis_name="learner")
    result = normalise(advantage, np.ones_like(advantage, bool))
    np.testing.assert_allclose(result, [[-1.1767, -0.7845], [0.7845, 1.1767]], atol=1e-4)
    alone = policy.normalise_advantages(advantage, np.ones_like(advantage, bool))
    np.testing.assert_allclose(result, alone, rtol=1e-6)


def test_A23_masked_elements_do_not_count_wherever_they_are():
    # [0, 2, 10, 16]: mean 7, variance (49 + 25 + 9 + 81) / 4 = 41, std 6.40312
    advantage = np.array([[0, 2, np.nan], [10, 16, 1e9], [7, 7, 7]], np.float32)
    where = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 0]], bool)
    normalise = jax.vmap(lambda a, w: policy.normalise_advantages(a, w, "learner"), axis_name="learner")
    result = normalise(advantage, where)
    np.testing.assert_allclose(result, [[-1.0932, -0.7809, 0], [0.4685, 1.4056, 0], [0, 0, 0]], atol=1e-4)


@pytest.mark.parametrize("where", [[True, False], [False, False]])
def test_A23_one_element_or_none_gives_zero(where):
    np.testing.assert_array_equal(policy.normalise_advantages(float32(5, 3), np.array(where)), [0, 0])
