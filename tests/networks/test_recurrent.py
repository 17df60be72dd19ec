"""Memory is reset on the first step of an episode, in steps and in unrolls alike."""

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.networks.recurrent import Core, GRUCell, LSTMCell


@dataclass(frozen=True)
class CountingCell:
    """Its memory is the number of steps since the episode began."""

    def initial_memory(self, batch_size):
        return jnp.zeros((batch_size,), jnp.int32)

    def project(self, x):
        return x

    def advance(self, memory, projected):
        return memory + 1, memory + 1


def test_A24_counting_cell_restarts_with_the_first_step_of_an_episode():
    core, x = Core(CountingCell()), jnp.zeros((5, 2, 1))
    # The first environment as in the case; the second goes on from a memory of 10 without a reset.
    is_first = jnp.array([[1, 0], [0, 0], [0, 0], [1, 0], [0, 0]], bool)
    memory = jnp.array([7, 10], jnp.int32)
    expected = np.array([[1, 11], [2, 12], [3, 13], [1, 14], [2, 15]])
    last, counts = core.apply({}, memory, x, is_first, method="unroll")
    np.testing.assert_array_equal(counts, expected)
    np.testing.assert_array_equal(last, expected[-1])
    for t in range(5):
        memory, count = core.apply({}, memory, x[t], is_first[t])
        np.testing.assert_array_equal(memory, expected[t])
        np.testing.assert_array_equal(count, expected[t])


def _randomised(params, key):
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(structure, [0.5 * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves)])


def _flax_gru_params(params):
    inputs = np.split(params["inputs"]["kernel"], 3, -1)
    biases = np.split(params["inputs"]["bias"], 3, -1)
    recurrent = np.split(params["recurrent"]["kernel"], 3, -1)
    flax_params = {f"i{gate}": {"kernel": inputs[i], "bias": biases[i]} for i, gate in enumerate("rzn")}
    flax_params |= {f"h{gate}": {"kernel": recurrent[i]} for i, gate in enumerate("rzn")}
    flax_params["hn"]["bias"] = params["candidate_bias"]
    return flax_params


def _flax_lstm_params(params):
    inputs = np.split(params["inputs"]["kernel"], 4, -1)
    recurrent = np.split(params["recurrent"]["kernel"], 4, -1)
    # Flax has its biases beside the recurrent matrix, and a forget gate that begins half open.
    biases = np.split(np.asarray(params["inputs"]["bias"]), 4, -1)
    biases[1] = biases[1] + 1.0
    flax_params = {f"i{gate}": {"kernel": inputs[i]} for i, gate in enumerate("ifog")}
    return flax_params | {f"h{gate}": {"kernel": recurrent[i], "bias": biases[i]} for i, gate in enumerate("ifog")}


@pytest.mark.parametrize(
    ("cell", "reference", "convert"),
    [(GRUCell(6), nn.GRUCell(6), _flax_gru_params), (LSTMCell(6), nn.OptimizedLSTMCell(6), _flax_lstm_params)],
    ids=["gru", "lstm"],
)
def test_cells_equal_those_of_flax(key, cell, reference, convert):
    core, x, is_first = Core(cell), jax.random.normal(key, (4, 3, 5)), jnp.zeros((4, 3), bool)
    memory = core.initial_memory(3)
    params = _randomised(core.init(key, memory, x[0], is_first[0]), key)
    flax_params = {"params": convert(params["params"]["cell"])}
    _, outputs = jax.jit(lambda *arguments: core.apply(*arguments, method="unroll"))(params, memory, x, is_first)
    step = jax.jit(reference.apply)
    for t in range(4):
        memory, expected = step(flax_params, memory, x[t])
        np.testing.assert_allclose(outputs[t], expected, atol=1e-5)


@pytest.mark.parametrize(("cell", "gates"), [(GRUCell(6), 3), (LSTMCell(6), 4)], ids=["gru", "lstm"])
def test_the_recurrent_matrix_of_each_gate_begins_orthogonal(key, cell, gates):
    core = Core(cell)
    params = core.init(key, core.initial_memory(1), jnp.zeros((1, 2)), jnp.zeros((1,), bool))
    for matrix in np.split(params["params"]["cell"]["recurrent"]["kernel"], gates, -1):
        np.testing.assert_allclose(matrix @ matrix.T, np.eye(6), atol=1e-5)
