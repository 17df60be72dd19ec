import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from podracer.losses.returns import n_step_returns
from podracer.losses.transforms import rescale, unscale

VALUES = np.concatenate([-np.geomspace(1e3, 1e-3, 20), [0.0], np.geomspace(1e-3, 1e3, 20)]).astype(np.float32)


def test_golden():
    # h(3) = √4 − 1 + .001 · 3,  h(−8) = −(√9 − 1) − .001 · 8
    np.testing.assert_allclose(rescale(jnp.array([3.0, -8.0, 0.0]), 1e-3), [1.003, -2.008, 0.0], rtol=1e-6)
    np.testing.assert_allclose(unscale(jnp.array([1.003, -2.008, 0.0]), 1e-3), [3.0, -8.0, 0.0], rtol=1e-5)


def test_rescaling_equals_rlax():
    np.testing.assert_allclose(rescale(VALUES, 1e-3), rlax.signed_hyperbolic(jnp.asarray(VALUES)), rtol=1e-4, atol=1e-6)
    with jax.enable_x64(True):
        exact = rlax.signed_parabolic(jnp.asarray(VALUES, jnp.float64))
    np.testing.assert_allclose(unscale(VALUES, 1e-3), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 1e-2])
def test_one_is_the_inverse_of_the_other(epsilon):
    np.testing.assert_allclose(unscale(rescale(VALUES, epsilon), epsilon), VALUES, rtol=1e-4, atol=1e-6)


def test_the_targets_of_r2d2_equal_rlax():
    rng = np.random.default_rng(0)
    q_tm1, q_t, selector = (jnp.asarray(x, jnp.float32) for x in rng.normal(size=(3, 9, 4)))
    reward, discount = (jnp.asarray(x, jnp.float32) for x in rng.uniform(size=(2, 9)))
    action = jnp.arange(9) % 4
    best = jnp.argmax(selector, -1)
    value = unscale(q_t[jnp.arange(9), best], 1e-3)
    target = rescale(n_step_returns(reward, discount, value, np.ones(9, bool), 3), 1e-3)
    expected = rlax.transformed_n_step_q_learning(
        q_tm1, action, q_t, best, reward, discount, 3, tx_pair=rlax.SIGNED_HYPERBOLIC_PAIR
    )
    # rlax computes the inverse in the formula's own form, which is good to three or four digits.
    np.testing.assert_allclose(target - q_tm1[jnp.arange(9), action], expected, atol=1e-3)
