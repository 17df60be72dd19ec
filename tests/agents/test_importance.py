import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec

from podracer.agents.importance import importance_weights
from podracer.parallel.spmd import spmd

# Priorities 1, 2, 3, 4, α = 1.
P = jnp.array([0.1, 0.2, 0.3, 0.4])
START, END = jnp.float32(0.0), jnp.float32(1.0)


def test_A26_weights_golden():
    # β = .5: (.1 / P)^½; among the last two alone (.3 / .3)^½ and (.3 / .4)^½
    np.testing.assert_allclose(importance_weights(P, 0.5, START, None), [1, 0.70711, 0.57735, 0.5], rtol=1e-5)
    np.testing.assert_allclose(importance_weights(P[2:], 0.5, START, None), [1, 0.86603], rtol=1e-5)


@pytest.mark.parametrize("exponent", [0.0, 0.5])
def test_A26_the_correction_is_whole_at_the_end(exponent):
    np.testing.assert_allclose(importance_weights(P, exponent, END, None), 0.1 / P, rtol=1e-5)
    # Halfway β is halfway to 1.
    halfway = importance_weights(P, exponent, jnp.float32(0.5), None)
    np.testing.assert_allclose(halfway, (0.1 / P) ** (0.5 + exponent / 2), rtol=1e-5)


def test_A26_weights_are_those_of_the_batch_of_all_devices():
    mesh = Mesh(np.array(jax.devices()[:2]), ("d",), axis_types=(AxisType.Auto,))
    sharded = PartitionSpec("d")
    program = spmd(lambda p: importance_weights(p, 0.5, START, "d"), mesh, (sharded,), sharded)
    np.testing.assert_allclose(jax.jit(program)(P), importance_weights(P, 0.5, START, None), rtol=1e-6)


def test_uniform_sampling_needs_no_correction():
    np.testing.assert_array_equal(importance_weights(jnp.full((5,), 1 / 37), 0.4, START, None), 1.0)
