import jax.numpy as jnp
import numpy as np
import optax
import pytest

from podracer.agents.optimiser import Trained, clipped, gradient_step, scheduled


@pytest.mark.parametrize(("progress", "rate"), [(0.0, 0.4), (0.5, 0.2), (0.75, 0.1), (1.0, 0.0)])
def test_A31_the_learning_rate_falls_linearly_over_the_budget(progress, rate):
    np.testing.assert_allclose(scheduled(0.4, jnp.float32(progress), anneal=True), rate, atol=1e-7)
    np.testing.assert_allclose(scheduled(0.4, jnp.float32(progress), anneal=False), 0.4)


def test_a_gradient_step_descends_by_the_clipped_gradient():
    params, gradients = {"w": jnp.array([1.0, 1.0])}, {"w": jnp.array([3.0, 4.0])}
    optimiser = clipped(1.0, optax.identity())
    trained = Trained(params, optimiser.init(params))
    trained, norm = gradient_step(optimiser, trained, gradients, jnp.float32(0.5), None)
    # The norm is 5, so the gradient is clipped to [.6, .8]: 1 - .5 · .6 = .7, 1 - .5 · .8 = .6.
    np.testing.assert_allclose(norm, 5.0)
    np.testing.assert_allclose(trained.params["w"], [0.7, 0.6], rtol=1e-6)


def test_a_step_with_adam_is_the_step_of_optax():
    params, gradients = {"w": jnp.array([1.0, -2.0])}, {"w": jnp.array([0.3, -0.1])}
    ours, theirs = clipped(10.0, optax.scale_by_adam(eps=1e-5)), optax.adam(0.1, eps=1e-5)
    trained, state, expected = Trained(params, ours.init(params)), theirs.init(params), params
    for _ in range(3):
        trained, _ = gradient_step(ours, trained, gradients, jnp.float32(0.1), None)
        updates, state = theirs.update(gradients, state)
        expected = optax.apply_updates(expected, updates)
    np.testing.assert_allclose(trained.params["w"], expected["w"], rtol=1e-6)
