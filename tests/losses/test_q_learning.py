import jax
import jax.numpy as jnp
import numpy as np
import rlax

from podracer.losses.q_learning import greedy_policy, huber_loss, munchausen_bonus, soft_policy
from podracer.networks.distributions import mask_illegal

LOWEST = np.finfo(np.float32).min


def random(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def test_huber_golden():
    # κ = 1: ½ · .5², 1 · (3 − ½).   κ = 2: ½ · .5², 2 · (3 − 1).
    error = jnp.array([0.5, -3.0])
    np.testing.assert_allclose(huber_loss(error, 1.0), [0.125, 2.5])
    np.testing.assert_allclose(huber_loss(error, 2.0), [0.125, 4.0])
    np.testing.assert_allclose(jax.vmap(jax.grad(huber_loss), (0, None))(error, 1.0), [0.5, -1.0])


def test_huber_equals_rlax():
    error = 3 * random(100)
    np.testing.assert_allclose(huber_loss(error, 0.7), rlax.huber_loss(error, 0.7), rtol=1e-6, atol=1e-6)


def test_the_greedy_policy_takes_the_first_of_the_best():
    q_value = jnp.array([[1.0, 3.0, 3.0], [LOWEST, LOWEST, -5.0]])
    np.testing.assert_array_equal(greedy_policy(q_value), [[0, 1, 0], [0, 0, 1]])


def test_double_q_learning_equals_rlax():
    q_tm1, q_t, selector = random(3, 8, 4)
    action, reward, discount = jnp.arange(8) % 4, random(8, seed=1), jnp.linspace(0, 1, 8)
    value = jnp.sum(greedy_policy(selector) * q_t, -1)
    error = reward + discount * value - q_tm1[jnp.arange(8), action]
    expected = jax.vmap(rlax.double_q_learning)(q_tm1, action, reward, discount, q_t, selector)
    np.testing.assert_allclose(error, expected, rtol=1e-5, atol=1e-6)


def test_the_soft_policy_golden():
    # τ = ½, Q = (0, ½ log 3): π ∝ (1, 3), entropy = ¼ log 4 + ¾ log 4/3
    policy = soft_policy(jnp.array([0.0, 0.5 * np.log(3.0)]), 0.5)
    np.testing.assert_allclose(policy.probabilities, [0.25, 0.75], rtol=1e-6)
    np.testing.assert_allclose(policy.log_probs, np.log([0.25, 0.75]), rtol=1e-6)
    np.testing.assert_allclose(policy.entropy, 0.25 * np.log(4) + 0.75 * np.log(4 / 3), rtol=1e-6)


def test_A18_the_soft_policy_takes_no_illegal_action_and_stays_finite():
    q_value = random(6, 4)
    mask = jnp.array([[True, False, True, True]] * 6)
    masked = soft_policy(mask_illegal(q_value, mask), 0.03)
    legal = soft_policy(jnp.delete(q_value, 1, axis=1), 0.03)
    assert all(jnp.all(jnp.isfinite(leaf)) for leaf in masked)
    np.testing.assert_array_equal(masked.probabilities[:, 1], 0)
    np.testing.assert_allclose(jnp.delete(masked.probabilities, 1, axis=1), legal.probabilities, rtol=1e-6)
    np.testing.assert_allclose(masked.entropy, legal.entropy, rtol=1e-5, atol=1e-7)


def test_munchausen_golden():
    # α = .9, τ = .03: .9 · .03 · log ½ = -.0187; .9 · max(.03 · -100, -1) = -.9
    bonus = munchausen_bonus(jnp.array([np.log(0.5), -100.0, 0.0]), 0.9, 0.03, -1.0)
    np.testing.assert_allclose(bonus, [0.9 * 0.03 * np.log(0.5), -0.9, 0.0], rtol=1e-6)


def test_the_soft_value_is_the_log_partition_of_the_values():
    # Σ π Q + τ H = τ log Σ exp(Q / τ): the identity behind Munchausen's target.
    q_value, temperature = random(5, 3), 0.3
    policy = soft_policy(q_value, temperature)
    value = jnp.sum(policy.probabilities * q_value, -1) + temperature * policy.entropy
    expected = temperature * jax.nn.logsumexp(q_value / temperature, axis=-1)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
