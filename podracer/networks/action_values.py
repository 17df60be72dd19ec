"""The head of a network that values actions, by their expected returns or by distributions of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from podracer.networks.distributions import mask_illegal
from podracer.networks.noisy import NoisyDense
from podracer.types import Array

_hidden_init = nn.initializers.orthogonal(2**0.5)
_value_init = nn.initializers.orthogonal(1.0)


class ActionValues(NamedTuple):
    q_value: (
        Array  # [..., A] expected returns; of illegal actions, where there is a legal one, the lowest finite number
    )
    outputs: Array  # [..., A, N] what they are computed from, of illegal actions too


@dataclass(frozen=True)
class ExpectedReturns:
    """Nothing but the expected return of an action."""

    num_outputs = 1

    def mean(self, outputs: Array) -> Array:
        """Computes `[...]` expected returns from `[..., 1]`."""
        return outputs[..., 0]


@dataclass(frozen=True)
class CategoricalReturns:
    """Logits of returns at fixed values.

    "A Distributional Perspective on Reinforcement Learning", Bellemare et al., arXiv 1707.06887.
    """

    num_outputs: int
    lowest: float
    highest: float

    @property
    def atoms(self) -> np.ndarray:
        """`[N]` f32 the values."""
        return np.linspace(self.lowest, self.highest, self.num_outputs, dtype=np.float32)

    def mean(self, outputs: Array) -> Array:
        """Computes `[...]` expected returns from `[..., N]` logits."""
        # Not a product of matrices: accelerators round what those multiply.
        return jnp.sum(jax.nn.softmax(outputs) * jnp.expand_dims(self.atoms, range(outputs.ndim - 1)), axis=-1)


@dataclass(frozen=True)
class QuantileReturns:
    """Returns that are equally likely, in the order of their quantiles.

    "Distributional Reinforcement Learning with Quantile Regression", Dabney et al., arXiv 1710.10044.
    """

    num_outputs: int

    def mean(self, outputs: Array) -> Array:
        """Computes `[...]` expected returns from `[..., N]` quantiles."""
        return jnp.mean(outputs, axis=-1)


Returns = ExpectedReturns | CategoricalReturns | QuantileReturns


class QHead(nn.Module):
    """The values of A actions.

    duelling: "Dueling Network Architectures for Deep Reinforcement Learning", Wang et al., arXiv 1511.06581, eq. 9,
    Q(s, a) = V(s) + A(s, a) − mean A(s, ·), the mean over the legal actions; each of the two with `sizes` of its own.
    """

    num_actions: int
    returns: Returns
    sizes: tuple[int, ...]
    activation: Callable
    duelling: bool
    noisy: bool

    @nn.compact
    def __call__(self, x: Array, action_mask: Array | None) -> ActionValues:
        """Computes the values of `[..., H]` features; the mask `[..., A]` is True where the action is legal."""
        outputs = self._stream(x, self.num_actions)  # [..., A, N]
        if action_mask is None:
            action_mask = jnp.ones(outputs.shape[:-1], bool)
        # Where an episode ends no action may be legal; its value counts all the same if it was truncated there.
        is_legal = action_mask | ~jnp.any(action_mask, axis=-1, keepdims=True)
        if self.duelling:
            mean = jnp.mean(outputs, axis=-2, keepdims=True, where=is_legal[..., None])
            outputs = self._stream(x, 1) + outputs - mean
        return ActionValues(mask_illegal(self.returns.mean(outputs), is_legal), outputs)

    def _stream(self, x: Array, num_rows: int) -> Array:
        """Layers of their own for `[..., num_rows, N]`."""
        for size in self.sizes:
            x = self.activation(self._dense(size, _hidden_init)(x))
        x = self._dense(num_rows * self.returns.num_outputs, _value_init)(x)
        return x.reshape(*x.shape[:-1], num_rows, self.returns.num_outputs)

    def _dense(self, size: int, kernel_init: nn.initializers.Initializer) -> nn.Module:
        return (NoisyDense if self.noisy else nn.Dense)(size, kernel_init=kernel_init)
