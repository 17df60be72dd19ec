"""Value rescaling: learning a root of the returns, so that rewards need no clipping.

h(x) = sign(x) (√(|x| + 1) − 1) + ε x

"Observe and Look Further: Achieving Consistent Performance on Atari", Pohlen et al., arXiv 1805.11593, proposition A.2.
"""

import chex
import jax.numpy as jnp

from podracer.types import Array


def rescale(value: Array, epsilon: Array | float) -> Array:
    """Computes `[...]` h(x) of `[...]` values; ε, at least 0, keeps h from getting flat."""
    chex.assert_type(value, float)
    # √(|x| + 1) − 1, without the difference of two numbers near 1.
    root = jnp.abs(value) / (jnp.sqrt(jnp.abs(value) + 1.0) + 1.0)
    return jnp.sign(value) * root + epsilon * value


def unscale(rescaled: Array, epsilon: Array | float) -> Array:
    """Computes `[...]` the values x of `[...]` h(x).

    h⁻¹(y) = sign(y) (z² − 1),   z = (√(1 + 4 ε (|y| + 1 + ε)) − 1) / (2 ε)
    """
    chex.assert_type(rescaled, float)
    size = jnp.abs(rescaled)
    # z as 2 (|y| + 1 + ε) / (√… + 1): the difference in the formula would lose four of seven digits for ε = 0.001.
    z = 2.0 * (size + 1.0 + epsilon) / (jnp.sqrt(1.0 + 4.0 * epsilon * (size + 1.0 + epsilon)) + 1.0)
    return jnp.sign(rescaled) * (jnp.square(z) - 1.0)
