"""Golden numbers and identities of the returns; rlax is the oracle where it can express the case."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from podracer.losses import returns
from podracer.types import StepType, valid_transitions

FIRST, MID, LAST = StepType.FIRST, StepType.MID, StepType.LAST


def sequences(seed: int, length: int, *batch: int) -> list[np.ndarray]:
    """Random v_tm1, reward_t, discount_t, v_t."""
    rng = np.random.default_rng(seed)
    v, reward = rng.normal(size=(2, length + 1, *batch)).astype(np.float32)
    discount = rng.uniform(0.5, 1.0, (length, *batch)).astype(np.float32)
    return [v[:-1], reward[1:], discount, v[1:]]


# A01: r = 1 everywhere, γ = 0.9, λ = 0.8, and an episode that ends with the second step. With next-step
# resets its true last observation (value 2.0) is a row of its own.
A01_V = np.array([0.5, 0.6, 2.0, 0.7, 0.8, 0.9], np.float32)
A01_REWARD = np.array([1, 1, 0, 1, 1], np.float32)
A01_STEP_TYPE = np.array([FIRST, MID, LAST, FIRST, MID, MID])


def a01_advantages(end_discount: float, v=A01_V, v_t=A01_V[1:], shift=0):
    discount = np.array([1, 1, end_discount, 1, 1, 1], np.float32)
    valid = valid_transitions(A01_STEP_TYPE, discount)
    discount_t = 0.9 * np.roll(discount[1:], shift)
    return returns.generalized_advantages(v[:-1], A01_REWARD, discount_t, v_t, valid, 0.8)


def test_A01_truncation_bootstraps_and_termination_does_not():
    # δ = [1 + .9·.6 − .5, 1 + .9·2 − .6, -, 1 + .9·.8 − .7, 1 + .9·.9 − .8] = [1.04, 2.2, -, 1.02, 1.01]
    # A₀ = 1.04 + .72·2.2 = 2.624,   A₃ = 1.02 + .72·1.01 = 1.7472
    np.testing.assert_allclose(a01_advantages(1.0), [2.624, 2.2, 0, 1.7472, 1.01], rtol=1e-6)
    # A true end: δ₁ = 1 − .6 = .4, A₀ = 1.04 + .72·.4 = 1.328
    np.testing.assert_allclose(a01_advantages(0.0), [1.328, 0.4, 0, 1.7472, 1.01], rtol=1e-6)


@pytest.mark.parametrize("end_discount", [0.0, 1.0])
def test_A01_nothing_flows_back_over_the_end(end_discount):
    other = A01_V.copy()
    other[3:] += 100
    np.testing.assert_array_equal(a01_advantages(end_discount)[:2], a01_advantages(end_discount, other, other[1:])[:2])


def test_A02_the_discount_belongs_to_the_reward_beside_it():
    # One index late, the boundary would give A₀ = 1 − .5 = .5: such a shift must be visible.
    assert a01_advantages(0.0)[0] == pytest.approx(1.328)
    assert a01_advantages(0.0, shift=-1)[0] == pytest.approx(0.5)


@pytest.mark.parametrize("end_discount", [0.0, 1.0])
def test_A02_two_episodes_in_a_row_equal_each_alone(end_discount):
    v_tm1, reward, discount, v_t = sequences(0, 9)
    discount[3] *= end_discount
    valid = np.arange(9) != 4  # row 4 acts on the last observation of the first episode
    whole = returns.generalized_advantages(v_tm1, reward, discount, v_t, valid, 0.7)
    for rows in (slice(0, 4), slice(5, 9)):
        alone = returns.generalized_advantages(
            v_tm1[rows], reward[rows], discount[rows], v_t[rows], np.ones(4, bool), 0.7
        )
        np.testing.assert_allclose(whole[rows], alone, rtol=1e-5)
    assert whole[4] == 0


def test_A03_truncation_bootstraps_from_the_true_last_observation():
    # V(o) = o, observations 0, 1, 2, 3 (truncated), 0: δ = V(3) − V(2) = 1 at the last step.
    observation = np.array([0, 1, 2, 3, 0], np.float32)
    step_type = np.array([FIRST, MID, MID, LAST, FIRST])
    ones, zeros = np.ones(5, np.float32), np.zeros(4, np.float32)
    advantages = returns.generalized_advantages(
        observation[:-1], zeros, ones[1:], observation[1:], valid_transitions(step_type, ones), 0.0
    )
    np.testing.assert_array_equal(advantages, [1, 1, 1, 0])


def counter_stream(end_discount: float):
    """Eight steps of an environment that counts 0, 1, 2, 3, with reward 1 a step and next-step resets."""
    step_type = np.array([FIRST, MID, MID, LAST] * 2 + [FIRST])
    reward = np.array([0, 1, 1, 1] * 2 + [0], np.float32)
    discount = np.where(step_type == LAST, end_discount, 1.0).astype(np.float32)
    return step_type, reward, discount


@pytest.mark.parametrize(
    "end_discount, v_last, expected",
    [(0.0, 0.0, [3, 2, 1, 0, 3, 2, 1, 0]), (1.0, 10.0, [13, 12, 11, 0, 13, 12, 11, 0])],
)
def test_A05_the_reset_step_is_no_transition(end_discount, v_last, expected):
    step_type, reward, discount = counter_stream(end_discount)
    valid = valid_transitions(step_type, discount)
    np.testing.assert_array_equal(valid, [1, 1, 1, 0, 1, 1, 1, 0])
    v = np.where(step_type == LAST, v_last, 0.0).astype(np.float32)
    advantages = returns.generalized_advantages(v[:-1], reward[1:], discount[1:], v[1:], valid, 1.0)
    np.testing.assert_array_equal(advantages, expected)
    returns_ = returns.lambda_returns(reward[1:], discount[1:], v[1:], valid, 1.0)
    np.testing.assert_array_equal(returns_, expected)


def test_A05_a_restart_is_cut_and_a_same_step_end_is_a_transition():
    # MID → FIRST with discount 1 is a restart; with discount 0 a true end that carries the reward.
    step_type = np.array([FIRST, MID, FIRST, MID, FIRST])
    reward = np.array([0, 1, 0, 1, 1], np.float32)
    discount = np.array([1, 1, 1, 1, 0], np.float32)
    v = np.array([0, 5, 7, 7, 7], np.float32)
    valid = valid_transitions(step_type, discount)
    targets = returns.lambda_returns(reward[1:], discount[1:], v[1:], valid, 1.0)
    np.testing.assert_array_equal(valid, [1, 0, 1, 1])
    np.testing.assert_array_equal(targets, [1 + 5, 0, 1 + 1, 1])


def test_gae_with_lambda_1_is_monte_carlo_minus_value():
    v_tm1, reward, discount, v_t = sequences(1, 6, 3)
    monte_carlo, later = np.zeros_like(reward), v_t[-1]
    for t in reversed(range(6)):
        later = monte_carlo[t] = reward[t] + discount[t] * later
    advantages = returns.generalized_advantages(v_tm1, reward, discount, v_t, np.ones((6, 3), bool), 1.0)
    np.testing.assert_allclose(advantages, monte_carlo - v_tm1, rtol=1e-4, atol=1e-5)


def test_gae_equals_rlax_within_an_episode():
    v_tm1, reward, discount, v_t = sequences(2, 8)
    expected = rlax.truncated_generalized_advantage_estimation(
        jnp.asarray(reward), jnp.asarray(discount), 0.95, jnp.append(v_tm1, v_t[-1])
    )
    advantages = returns.generalized_advantages(v_tm1, reward, discount, v_t, np.ones(8, bool), 0.95)
    np.testing.assert_allclose(advantages, expected, rtol=1e-5)


def test_A12_lambda_return_pairs_each_reward_with_its_own_discount():
    # G₁ = 2 + .9·4 = 5.6,   G₀ = 1 + .9 (.5·3 + .5·5.6) = 4.87
    reward, v_t = np.array([1, 2], np.float32), np.array([3, 4], np.float32)
    discount = np.array([0.9, 0.9], np.float32)
    returns_ = returns.lambda_returns(reward, discount, v_t, np.ones(2, bool), 0.5)
    np.testing.assert_allclose(returns_, [4.87, 5.6], rtol=1e-6)


def test_A12_the_reward_of_a_true_end_reaches_the_steps_before_it():
    # TD(λ = 1) over two steps, reward 1 at the end, α = .1, V = 0: updates α·G = [.1·.9, .1]
    reward, discount = np.array([0, 1], np.float32), np.array([0.9, 0], np.float32)
    returns_ = returns.lambda_returns(reward, discount, np.zeros(2, np.float32), np.ones(2, bool), 1.0)
    np.testing.assert_allclose(0.1 * returns_, [0.09, 0.1], rtol=1e-6)


def test_lambda_returns_equal_rlax_within_an_episode():
    _, reward, discount, v_t = sequences(3, 8)
    expected = rlax.lambda_returns(*map(jnp.asarray, (reward, discount, v_t)), 0.8)
    np.testing.assert_allclose(
        returns.lambda_returns(reward, discount, v_t, np.ones(8, bool), 0.8), expected, rtol=1e-5
    )


def test_lambda_returns_are_values_plus_advantages():
    v_tm1, reward, discount, v_t = sequences(4, 10, 2)
    valid = np.ones((10, 2), bool)
    valid[3, 0] = valid[7, 1] = False
    advantages = returns.generalized_advantages(v_tm1, reward, discount, v_t, valid, 0.6)
    expected = np.where(valid, v_tm1 + advantages, 0)
    np.testing.assert_allclose(
        returns.lambda_returns(reward, discount, v_t, valid, 0.6), expected, rtol=1e-4, atol=1e-5
    )


def test_columns_of_a_batch_equal_each_alone():
    v_tm1, reward, discount, v_t = sequences(5, 7, 4)
    valid = np.random.default_rng(6).random((7, 4)) < 0.7
    advantages = returns.generalized_advantages(v_tm1, reward, discount, v_t, valid, 0.9)
    alone = jax.vmap(returns.generalized_advantages, in_axes=(1, 1, 1, 1, 1, None), out_axes=1)(
        v_tm1, reward, discount, v_t, valid, 0.9
    )
    np.testing.assert_array_equal(advantages, alone)


def test_no_gradient_flows_through_targets():
    v_tm1, reward, discount, v_t = sequences(7, 5)
    valid = np.ones(5, bool)

    def total(v_tm1, v_t):
        advantages = returns.generalized_advantages(v_tm1, reward, discount, v_t, valid, 0.9)
        return jnp.sum(advantages) + jnp.sum(returns.lambda_returns(reward, discount, v_t, valid, 0.9))

    for gradient in jax.grad(total, argnums=(0, 1))(jnp.asarray(v_tm1), jnp.asarray(v_t)):
        np.testing.assert_array_equal(gradient, 0)


def test_a_mask_that_is_not_bool_is_refused():
    v_tm1, reward, discount, v_t = sequences(8, 3)
    with pytest.raises(AssertionError):
        returns.generalized_advantages(v_tm1, reward, discount, v_t, np.ones(3, np.float32), 0.9)
    with pytest.raises(AssertionError):
        returns.generalized_advantages(v_tm1, reward[:2], discount, v_t, np.ones(3, bool), 0.9)


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        # γ = .9, r = (1, 2, 4), Q = 10: 1 + .9 · 2 + .81 · 4 + .729 · 10
        (None, 13.33),
        # a true end after the second: 1 + .9 · 2
        (0.0, 2.8),
        # a truncation after the second, Q of its true last observation 10: 1 + .9 · 2 + .81 · 10
        (1.0, 10.9),
    ],
)
def test_A08_the_discount_has_the_power_of_the_transitions_that_count(end, expected):
    step_type, discount, reward = [FIRST, MID, MID, MID], [1.0] * 4, [1.0, 2.0, 4.0]
    if end is not None:
        step_type[2:], discount[2] = [LAST, FIRST], end
    discount = np.array(discount, np.float32)
    valid = valid_transitions(np.array(step_type), discount)
    sequence = [np.array(reward, np.float32), 0.9 * discount[1:]]
    joined = returns.join_transitions(*sequence, valid)
    np.testing.assert_allclose(joined.reward + joined.discount * 10.0, expected, rtol=1e-6)
    # The value beside the last transition that counts: of observation 3, or 2 where the episode ends there.
    v_t = np.array([99.0, 99.0, 10.0] if end is None else [99.0, 10.0, 99.0], np.float32)
    np.testing.assert_allclose(returns.n_step_returns(*sequence, v_t, valid, 3)[0], expected, rtol=1e-6)


def test_A08_nothing_after_the_end_is_read():
    _, reward, discount, _ = sequences(9, 4, 3)
    valid = np.array([[1, 1, 1], [1, 0, 1], [0, 0, 1], [1, 1, 0]], bool)
    noise = np.where(np.cumprod(valid, 0), 0, 1e6).astype(np.float32)
    clean = returns.join_transitions(reward, discount, valid)
    for one, other in zip(clean, returns.join_transitions(reward + noise, discount + noise, valid)):
        np.testing.assert_array_equal(one, other)
    count = [2, 1, 3]
    for column, n in enumerate(count):
        np.testing.assert_allclose(clean.discount[column], np.prod(discount[:n, column]), rtol=1e-6)


@pytest.mark.parametrize("n", [1, 3, 5, 20])
def test_n_step_returns_equal_rlax_within_an_episode(n):
    _, reward, discount, v_t = sequences(10, 9)
    expected = rlax.n_step_bootstrapped_returns(*map(jnp.asarray, (reward, discount, v_t)), min(n, 9))
    np.testing.assert_allclose(
        returns.n_step_returns(reward, discount, v_t, np.ones(9, bool), n), expected, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("n", [1, 2, 4])
def test_n_step_returns_of_two_episodes_in_a_row_equal_each_alone(n):
    _, reward, discount, v_t = sequences(11, 9, 2)
    valid = np.ones((9, 2), bool)
    valid[4] = False
    joined = returns.n_step_returns(reward, discount, v_t, valid, n)
    np.testing.assert_array_equal(joined[4], 0.0)
    for rows in (slice(0, 4), slice(5, 9)):
        alone = returns.n_step_returns(reward[rows], discount[rows], v_t[rows], valid[rows], n)
        np.testing.assert_allclose(joined[rows], alone, rtol=1e-6)


def test_joined_transitions_are_the_n_step_returns_of_the_first_row():
    _, reward, discount, v_t = sequences(12, 5, 6)
    valid = np.random.default_rng(13).random((5, 6)) < 0.7
    valid[0] = True
    last = np.cumprod(valid, 0).sum(0) - 1  # the last transition that counts
    joined = returns.join_transitions(reward, discount, valid)
    expected = joined.reward + joined.discount * v_t[last, np.arange(6)]
    np.testing.assert_allclose(returns.n_step_returns(reward, discount, v_t, valid, 5)[0], expected, rtol=1e-5)
