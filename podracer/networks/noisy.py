"""Dense layers with learned noise, which explore by themselves."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from podracer.types import Array

# σ₀ of the paper.
_INITIAL_NOISE = 0.5
# The collection of random numbers that a network is given a key for, where it is to be noisy.
NOISE = "noise"


class NoisyDense(nn.Module):
    """A dense layer whose parameters have factorised Gaussian noise of a learned size.

    y = W x + b + f(ε') ⊙ (Σ (f(ε) ⊙ x) + σ),   f(ε) = sign(ε) √|ε|

    "Noisy Networks for Exploration", Fortunato et al., arXiv 1706.10295, eq. 9 to 11. Without a key for `noise`
    the layer is W x + b. Departure: every row of a batch has noise of its own, which costs a second product instead
    of a matrix for each row.
    """

    features: int
    kernel_init: nn.initializers.Initializer

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Computes `[..., features]` from `[..., H]`."""
        size = x.shape[-1]
        mean = nn.Dense(self.features, kernel_init=self.kernel_init, name="mean")(x)
        if not (self.has_rng(NOISE) or self.is_initializing()):
            return mean
        noise = jax.random.normal(self.make_rng(NOISE), (*x.shape[:-1], size + self.features))
        noise = jnp.sign(noise) * jnp.sqrt(jnp.abs(noise))
        initial = nn.initializers.constant(_INITIAL_NOISE / size**0.5)
        deviation = nn.Dense(self.features, kernel_init=initial, bias_init=initial, name="deviation")
        return mean + noise[..., size:] * deviation(noise[..., :size] * x)
