"""Patches compute what XLA's convolution and pooling compute, with the same parameters."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.networks.convolution import Convolution, max_pool


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(("size", "stride"), [(3, 1), (4, 2), (3, 2), (8, 4), (2, 4)])
def test_patches_equal_flax_convolution_in_output_and_gradients(key, size, stride, padding):
    x = jax.random.normal(key, (2, 11, 14, 3))
    reference = nn.Conv(5, (size, size), stride, padding)
    params = reference.init(key, x)
    params["params"]["bias"] = jnp.arange(5.0)

    def outputs_and_gradients(module):
        def loss(params, x):
            y = module.apply(params, x)
            return jnp.sum(jnp.sin(y)), y

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(params, x)

    expected = outputs_and_gradients(reference)
    for method in ("native", "patches"):
        actual = outputs_and_gradients(Convolution(5, size, stride, padding, method))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5), actual, expected)


@pytest.mark.parametrize("shape", [(2, 10, 7, 3), (1, 5, 12, 2)])
def test_max_pool_equals_reduce_window_in_output_and_gradient(key, shape):
    x = jax.random.normal(key, shape)  # no ties

    def reference(x):
        return nn.max_pool(x, (3, 3), (2, 2), "SAME")

    def pool(x):
        return max_pool(x, size=3, stride=2)

    np.testing.assert_array_equal(pool(x), reference(x))
    gradients = [jax.grad(lambda x, f=f: jnp.sum(jnp.square(f(x))))(x) for f in (pool, reference)]
    np.testing.assert_allclose(*gradients, rtol=1e-6)


def test_max_pool_shares_the_gradient_among_equals():
    # One 3x3 window of equal numbers, stride 3: rows share first, then columns; together they get 1.
    gradient = jax.grad(lambda x: jnp.sum(max_pool(x, size=3, stride=3)))(jnp.ones((1, 3, 3, 1)))
    np.testing.assert_allclose(jnp.sum(gradient), 1.0, rtol=1e-6)
    assert np.all(gradient > 0)
