"""Recurrent cores, and the one place where memory is reset.

A core sees `is_first` of the very timestep that it reads: memory from before an episode's first
observation never reaches its first output, in acting and in learning alike.
"""

from typing import Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp

from podracer.types import Array, ArrayTree


class Cell(Protocol):
    """A recurrent cell in two parts, so that the part without memory runs once for a whole sequence."""

    def initial_memory(self, batch_size: int) -> ArrayTree:
        """Memory at the start of an episode, `[B, ...]`; needs no parameters."""
        ...

    def project(self, x: Array) -> Array:
        """What the inputs `[..., F]` contribute to the gates, `[..., G]`."""
        ...

    def advance(self, memory: ArrayTree, projected: Array) -> tuple[ArrayTree, Array]:
        """One step, `[B, ...]` memory and `[B, G]` to memory and output `[B, H]`."""
        ...


class Core(nn.Module):
    """Runs a cell over steps and sequences, with resets."""

    cell: Cell

    @nn.nowrap
    def initial_memory(self, batch_size: int) -> ArrayTree:
        return self.cell.initial_memory(batch_size)

    def __call__(self, memory: ArrayTree, x: Array, is_first: Array) -> tuple[ArrayTree, Array]:
        """Runs one step.

        Args:
          memory: `[B, ...]`.
          x: `[B, F]` features.
          is_first: `[B]` bool, where an episode begins with these features.

        Returns:
          memory after the step, and outputs `[B, H]`.
        """
        return self._step(memory, (self.cell.project(x), is_first))

    def unroll(self, memory: ArrayTree, x: Array, is_first: Array) -> tuple[ArrayTree, Array]:
        """Runs T steps, the same as T calls: `[B, ...]`, `[T, B, F]`, `[T, B]` to `[B, ...]`, `[T, B, H]`."""
        scan = nn.scan(Core._step, variable_broadcast="params", split_rngs={"params": False})
        return scan(self, memory, (self.cell.project(x), is_first))

    def _step(self, memory: ArrayTree, inputs: tuple[Array, Array]) -> tuple[ArrayTree, Array]:
        projected, is_first = inputs
        return self.cell.advance(_reset(memory, self.initial_memory(is_first.shape[0]), is_first), projected)


def _reset(memory: ArrayTree, initial: ArrayTree, is_first: Array) -> ArrayTree:
    def select(new, old):
        return jnp.where(jnp.expand_dims(is_first, range(1, old.ndim)), new, old)

    return jax.tree.map(select, initial, memory)


class GRUCell(nn.Module):
    """A gated recurrent unit.

    r = σ(Wᵣx + Uᵣh),   z = σ(W_z x + U_z h),   n = tanh(Wₙx + r ⊙ (Uₙh + bₙ)),   h' = (1 − z) ⊙ n + z ⊙ h

    "Learning Phrase Representations using RNN Encoder-Decoder", Cho et al., arXiv 1406.1078, with the
    reset gate after the matrix product, as in cuDNN. W carries the other biases.
    """

    size: int

    def setup(self):
        self.inputs = nn.Dense(3 * self.size)
        self.recurrent = nn.Dense(3 * self.size, use_bias=False, kernel_init=_orthogonal_gates(3))
        self.candidate_bias = self.param("candidate_bias", nn.initializers.zeros, (self.size,))

    @nn.nowrap
    def initial_memory(self, batch_size: int) -> Array:
        return jnp.zeros((batch_size, self.size))

    def project(self, x: Array) -> Array:
        return self.inputs(x)

    def advance(self, memory: Array, projected: Array) -> tuple[Array, Array]:
        input_r, input_z, input_n = jnp.split(projected, 3, axis=-1)
        memory_r, memory_z, memory_n = jnp.split(self.recurrent(memory), 3, axis=-1)
        reset, update = nn.sigmoid(input_r + memory_r), nn.sigmoid(input_z + memory_z)
        candidate = jnp.tanh(input_n + reset * (memory_n + self.candidate_bias[None]))
        memory = (1.0 - update) * candidate + update * memory
        return memory, memory


class LSTMCell(nn.Module):
    """Long short-term memory.

    i, f, o = σ(Wx + Uh + (0, 1, 0)),   g = tanh(Wx + Uh),   c' = f ⊙ c + i ⊙ g,   h' = o ⊙ tanh(c')

    "Long Short-Term Memory", Hochreiter & Schmidhuber, 1997; with a forget gate that begins open, "An
    Empirical Exploration of Recurrent Network Architectures", Jozefowicz et al., 2015.
    """

    size: int

    def setup(self):
        self.inputs = nn.Dense(4 * self.size)
        self.recurrent = nn.Dense(4 * self.size, use_bias=False, kernel_init=_orthogonal_gates(4))

    @nn.nowrap
    def initial_memory(self, batch_size: int) -> tuple[Array, Array]:
        return jnp.zeros((batch_size, self.size)), jnp.zeros((batch_size, self.size))

    def project(self, x: Array) -> Array:
        return self.inputs(x)

    def advance(self, memory: tuple[Array, Array], projected: Array) -> tuple[tuple[Array, Array], Array]:
        cell, hidden = memory
        i, f, o, g = jnp.split(projected + self.recurrent(hidden), 4, axis=-1)
        cell = nn.sigmoid(f + 1.0) * cell + nn.sigmoid(i) * jnp.tanh(g)
        hidden = nn.sigmoid(o) * jnp.tanh(cell)
        return (cell, hidden), hidden


def _orthogonal_gates(gates: int) -> nn.initializers.Initializer:
    """Makes the recurrent matrix of each gate orthogonal by itself."""
    initialise = nn.initializers.orthogonal()

    def initialise_gates(key, shape, dtype=jnp.float32):
        rows, columns = shape
        blocks = [initialise(k, (rows, columns // gates), dtype) for k in jax.random.split(key, gates)]
        return jnp.concatenate(blocks, axis=-1)

    return initialise_gates
