import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from podracer.losses.actor_critic import (
    critics_loss,
    expected_soft_value,
    smoothed_action,
    soft_value,
    temperature_loss,
)
from podracer.networks.distributions import Categorical, TanhNormal, mask_illegal


def test_golden_soft_value():
    q_values = jnp.array([[1.0, 5.0], [2.0, 3.0]])
    # min(1, 2) − .5 · (−2);  min(5, 3) − .5 · 4
    np.testing.assert_allclose(soft_value(q_values, jnp.array([-2.0, 4.0]), 0.5), [2.0, 1.0])


def test_golden_expected_soft_value():
    q_values = jnp.array([[[1.0, 4.0]], [[2.0, 3.0]]])
    log_probs = jnp.log(jnp.array([[0.25, 0.75]]))
    # .25 (1 − .5 log .25) + .75 (3 − .5 log .75): 2.5 + .5 · .562335
    np.testing.assert_allclose(expected_soft_value(q_values, log_probs, 0.5), [2.781168], rtol=1e-6)


def test_the_expected_value_is_the_mean_of_sampled_ones(key):
    policy = Categorical(jax.random.normal(key, (3, 4)))
    q_values = jax.random.normal(jax.random.key(1), (2, 3, 4))
    actions = jax.vmap(policy.sample)(jax.random.split(key, 20_000))  # [S, 3]

    def value(action):
        chosen = jnp.take_along_axis(q_values, jnp.broadcast_to(action[None, :, None], (2, 3, 1)), -1)[..., 0]
        return soft_value(chosen, policy.log_prob(action), 0.7)

    sampled = jnp.mean(jax.vmap(value)(actions), 0)
    np.testing.assert_allclose(sampled, expected_soft_value(q_values, policy.log_probs, 0.7), atol=0.05)


def test_the_expected_value_is_greatest_for_the_boltzmann_policy(key):
    # V(π*) = α log Σ exp(Q / α), and its slope is 0 there.
    q_values, temperature = jax.random.normal(key, (1, 3, 4)), 0.3
    logits = q_values[0] / temperature

    def total(logits):
        return jnp.sum(expected_soft_value(q_values, jax.nn.log_softmax(logits), temperature))

    np.testing.assert_allclose(total(logits), jnp.sum(temperature * jax.nn.logsumexp(logits, -1)), rtol=1e-5)
    np.testing.assert_allclose(jax.grad(total)(logits), 0.0, atol=1e-6)
    assert total(logits + jax.random.normal(jax.random.key(1), (3, 4))) < total(logits)


@pytest.mark.parametrize("temperature", [0.2, 3.0])  # the lowest number times 3 is infinite
def test_A18_an_illegal_action_has_no_part_in_value_and_gradient(temperature):
    legal = jnp.array([[True, False, True]])
    q_values = mask_illegal(jnp.array([[[1.0, 9.0, 3.0]], [[2.0, 9.0, 0.5]]]), jnp.broadcast_to(legal, (2, 1, 3)))

    def value(logits, q_values, legal):
        return expected_soft_value(q_values, Categorical(mask_illegal(logits, legal)).log_probs, temperature)[0]

    logits = jnp.array([[0.3, 7.0, -0.2]])
    masked, gradients = jax.value_and_grad(value, (0, 1))(logits, q_values, legal)
    left = lambda x: x[..., jnp.array([0, 2])]  # noqa: E731
    expected, expected_gradients = jax.value_and_grad(value, (0, 1))(left(logits), left(q_values), left(legal))
    np.testing.assert_allclose(masked, expected, rtol=1e-6)
    for gradient, expected_gradient in zip(gradients, expected_gradients):
        np.testing.assert_allclose(left(gradient), expected_gradient, rtol=1e-5)
        np.testing.assert_array_equal(gradient[..., 1], 0.0)


@pytest.mark.parametrize(
    ("log_prob", "slope"),
    [(-1.0, 2.0), (2.0, -1.0)],  # entropy 1 is 2 above the target: α falls; entropy −2 is 1 below: α rises
)
def test_A28_the_temperature_falls_where_the_policy_is_too_random_and_rises_where_too_sure(log_prob, slope):
    log_probs = jnp.full((4,), log_prob)
    gradient = jax.grad(lambda x: jnp.mean(temperature_loss(x, -log_probs, -1.0)))
    for log_temperature in (-7.0, 0.0, 2.0):  # the same at every temperature
        np.testing.assert_allclose(gradient(jnp.float32(log_temperature)), slope, rtol=1e-6)
    # log α · (H − H̄) = log 2 · (−log π + 1)
    np.testing.assert_allclose(
        temperature_loss(jnp.log(2.0), -log_probs, -1.0), np.full(4, np.log(2) * (1 - log_prob)), rtol=1e-6
    )


def test_A28_no_gradient_flows_from_the_temperature_into_the_policy():
    gradient = jax.grad(lambda entropy: jnp.sum(temperature_loss(jnp.float32(2.0), entropy, 0.0)))(jnp.ones((3,)))
    np.testing.assert_array_equal(gradient, 0.0)


def test_critics_are_regressed_each_by_itself():
    q_values, target = jnp.array([[1.0, 2.0], [4.0, 0.0]]), jnp.array([3.0, 1.0])
    # ½ (1 − 3)² + ½ (4 − 3)²;  ½ (2 − 1)² + ½ (0 − 1)²
    np.testing.assert_allclose(critics_loss(q_values, target), [2.5, 1.0])
    expected = jax.vmap(lambda q: rlax.l2_loss(q, target))(q_values)
    np.testing.assert_allclose(critics_loss(q_values, target), jnp.sum(expected, 0))
    slopes, target_slopes = jax.grad(lambda q, y: jnp.sum(critics_loss(q, y)), (0, 1))(q_values, target)
    np.testing.assert_allclose(slopes, q_values - target[None])
    np.testing.assert_array_equal(target_slopes, 0.0)


def test_noise_is_clipped_before_it_is_added_and_the_action_after():
    action = jnp.array([[0.0, 0.0, 0.9, -0.9]])
    noise = jnp.array([[0.3, 2.0, 0.4, -9.0]])
    np.testing.assert_allclose(smoothed_action(action, noise, 0.5), [[0.3, 0.5, 1.0, -1.0]], rtol=1e-6)
    np.testing.assert_allclose(smoothed_action(action, noise, 0.0), action)


def test_A14_A16_the_loss_of_a_saturated_policy_is_finite_and_its_entropy_that_of_the_squashed_action(key):
    def loss(mean, std, noise):
        policy = TanhNormal(mean, std)
        pre_tanh = mean + std * noise
        log_prob = policy.log_prob_pre_tanh(pre_tanh)
        return jnp.mean(-soft_value(jnp.tanh(pre_tanh)[None, :, 0], log_prob, 0.2)), log_prob

    # log N(10; 0, 1) + 2 · (10 − log 2) = −50.9189 + 18.6137
    _, log_prob = loss(jnp.zeros((1, 1)), jnp.ones((1, 1)), jnp.full((1, 1), 10.0))
    np.testing.assert_allclose(log_prob, [-32.3052], rtol=1e-5)
    gradients, _ = jax.grad(loss, (0, 1), has_aux=True)(jnp.full((1, 1), 30.0), jnp.ones((1, 1)), jnp.full((1, 1), 2.0))
    assert all(np.all(np.isfinite(gradient)) for gradient in gradients)
    # E[−log π] of tanh(N(0, 1)) is .6698, not 1.4189.
    noise = jax.random.normal(key, (100_000, 1))
    _, log_prob = loss(jnp.zeros((100_000, 1)), jnp.ones((100_000, 1)), noise)
    np.testing.assert_allclose(-jnp.mean(log_prob), 0.66980, atol=0.01)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (soft_value, (jnp.ones((2, 3)), jnp.ones((4,)), 1.0)),
        (soft_value, (jnp.ones((3,)), jnp.ones((3,)), 1.0)),
        (expected_soft_value, (jnp.ones((2, 3, 4)), jnp.ones((3, 5)), 1.0)),
        (temperature_loss, (jnp.ones((1,)), jnp.ones((3,)), 1.0)),
        (critics_loss, (jnp.ones((2, 3)), jnp.ones((1,)))),
        (critics_loss, (jnp.ones((2, 3), int), jnp.ones((3,)))),
        (smoothed_action, (jnp.ones((3, 2)), jnp.ones((3, 1)), 1.0)),
    ],
)
def test_wrong_shapes_and_types_are_refused(function, arguments):
    with pytest.raises(AssertionError):
        function(*arguments)
