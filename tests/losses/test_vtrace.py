"""Golden numbers and identities of V-trace; rlax is the oracle where it can express the case."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from podracer.losses.returns import generalized_advantages
from podracer.losses.vtrace import vtrace


def sequences(seed: int, length: int, *batch: int) -> list[np.ndarray]:
    """Random v_tm1, reward_t, discount_t, v_t, log_rho_tm1."""
    rng = np.random.default_rng(seed)
    v, reward, log_rho = rng.normal(size=(3, length + 1, *batch)).astype(np.float32)
    discount = rng.uniform(0.5, 1.0, (length, *batch)).astype(np.float32)
    return [v[:-1], reward[1:], discount, v[1:], log_rho[1:]]


def float32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_A06_the_last_reward_of_a_sequence_counts():
    # On-policy with V = 0 the targets are the returns: 0 + 0 + 10.
    zeros = np.zeros(3, np.float32)
    result = vtrace(zeros, float32(0, 0, 10), float32(1, 1, 0), zeros, zeros, np.ones(3, bool))
    np.testing.assert_array_equal(result.targets, [10, 10, 10])
    np.testing.assert_array_equal(result.pg_advantages, [10, 10, 10])


def test_A06_clipping():
    # ρ = [2, .5] → min(1, ρ) = [1, .5]
    # e₁ = .5 (0 + .9·.3 − .4) = −.065             v₁ = .4 − .065 = .335
    # e₀ = (1 + .9·.4 − .5) + .9·1·(−.065) = .8015  v₀ = .5 + .8015 = 1.3015
    # Â₀ = 1 + .9·.335 − .5 = .8015                 Â₁ = .5 (0 + .9·.3 − .4) = −.065
    result = vtrace(
        float32(0.5, 0.4),
        float32(1, 0),
        float32(0.9, 0.9),
        float32(0.4, 0.3),
        np.log(float32(2, 0.5)),
        np.ones(2, bool),
    )
    np.testing.assert_allclose(result.targets, [1.3015, 0.335], rtol=1e-5)
    np.testing.assert_allclose(result.pg_advantages, [0.8015, -0.065], rtol=1e-5)


def test_each_clip_bounds_its_own_weight():
    # ρ = 4 on both rows, V = 0, γ = 1: e₁ = clip_rho·1, e₀ = clip_rho·1 + clip_c·e₁, Â₀ = clip_pg_rho·(1 + e₁)
    zeros, ones = np.zeros(2, np.float32), np.ones(2, np.float32)
    result = vtrace(
        zeros, ones, ones, zeros, np.log(4 * ones), np.ones(2, bool), clip_rho=2.0, clip_c=1.5, clip_pg_rho=3.0
    )
    np.testing.assert_allclose(result.targets, [2 + 1.5 * 2, 2], rtol=1e-6)
    np.testing.assert_allclose(result.pg_advantages, [3 * (1 + 2), 3 * 1], rtol=1e-6)


@pytest.mark.parametrize("lambda_, clip_rho, clip_pg_rho", [(1.0, 1.0, 1.0), (0.9, 1.3, 0.8)])
def test_equals_rlax_within_an_episode(lambda_, clip_rho, clip_pg_rho):
    arrays = sequences(0, 8)
    result = vtrace(*arrays, np.ones(8, bool), lambda_=lambda_, clip_rho=clip_rho, clip_pg_rho=clip_pg_rho)
    v_tm1, reward, discount, v_t, log_rho = map(jnp.asarray, arrays)
    expected = rlax.vtrace_td_error_and_advantage(
        v_tm1, v_t, reward, discount, jnp.exp(log_rho), lambda_, clip_rho, clip_pg_rho
    )
    np.testing.assert_allclose(result.targets, expected.errors + v_tm1, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(result.pg_advantages, expected.pg_advantage, rtol=1e-5, atol=1e-6)


def test_on_policy_with_lambda_1_is_the_n_step_return():
    v_tm1, reward, discount, v_t, _ = sequences(1, 6, 3)
    expected, later = np.zeros_like(reward), v_t[-1]
    for t in reversed(range(6)):
        later = expected[t] = reward[t] + discount[t] * later
    result = vtrace(v_tm1, reward, discount, v_t, np.zeros_like(reward), np.ones((6, 3), bool))
    np.testing.assert_allclose(result.targets, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(result.pg_advantages, expected - v_tm1, rtol=1e-4, atol=1e-5)


def test_on_policy_is_generalised_advantages_with_the_same_lambda():
    v_tm1, reward, discount, v_t, _ = sequences(2, 6, 3)
    valid = np.ones((6, 3), bool)
    valid[2, 1] = False
    v_t[1, 1] = v_tm1[2, 1]
    result = vtrace(v_tm1, reward, discount, v_t, np.zeros_like(reward), valid, lambda_=0.9)
    expected = generalized_advantages(v_tm1, reward, discount, v_t, valid, 0.9)
    np.testing.assert_allclose(result.targets - v_tm1, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(result.pg_advantages, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("end_discount", [0.0, 1.0])
def test_two_episodes_in_a_row_equal_each_alone(end_discount):
    arrays = sequences(3, 9)
    arrays[2][3] *= end_discount
    valid = np.arange(9) != 4  # row 4 acts on the last observation of the first episode
    whole = vtrace(*arrays, valid, lambda_=0.95)
    for rows in (slice(0, 4), slice(5, 9)):
        alone = vtrace(*(x[rows] for x in arrays), np.ones(4, bool), lambda_=0.95)
        np.testing.assert_allclose(whole.targets[rows], alone.targets, rtol=1e-5)
        np.testing.assert_allclose(whole.pg_advantages[rows], alone.pg_advantages, rtol=1e-5)
    assert whole.targets[4] == arrays[0][4] and whole.pg_advantages[4] == 0


def test_no_gradient_flows_through_targets_and_a_huge_ratio_is_clipped():
    arrays = list(map(jnp.asarray, sequences(4, 5)))

    def total(v_tm1, log_rho):
        result = vtrace(v_tm1, *arrays[1:4], log_rho, np.ones(5, bool))
        return jnp.sum(result.targets) + jnp.sum(result.pg_advantages)

    value, gradients = jax.value_and_grad(total, argnums=(0, 1))(arrays[0], jnp.full(5, 200.0))
    assert np.isfinite(value)
    np.testing.assert_array_equal(gradients, np.zeros((2, 5)))
