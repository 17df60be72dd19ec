import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec

from podracer.agents.minibatches import gradients, random_permutation, scan_minibatches, to_rows, to_sequences
from podracer.parallel.spmd import REPLICATED, spmd

SIZES = [1, 2, 3, 4, 5, 7, 8, 12, 31, 32, 33, 100, 1000, 1024, 1025]


@pytest.mark.parametrize("size", SIZES)
def test_every_index_comes_once(size):
    keys = jax.random.split(jax.random.key(size), 8)
    permutations = jax.jit(jax.vmap(lambda key: random_permutation(key, size)))(keys)
    assert permutations.dtype == jnp.int32
    np.testing.assert_array_equal(np.sort(permutations, axis=1), np.tile(np.arange(size), (8, 1)))


def test_keys_give_different_permutations_and_the_same_key_the_same():
    keys = jax.random.split(jax.random.key(0), 64)
    permutations = np.asarray(jax.jit(jax.vmap(lambda key: random_permutation(key, 100)))(keys))
    assert len({tuple(permutation) for permutation in permutations}) == 64
    np.testing.assert_array_equal(permutations[0], random_permutation(keys[0], 100))


@pytest.mark.parametrize("size", [64, 100])
def test_every_index_is_about_as_often_in_every_quarter(size):
    keys = jax.random.split(jax.random.key(1), 2000)
    permutations = np.asarray(jax.jit(jax.vmap(lambda key: random_permutation(key, size)))(keys))
    quarter = size // 4
    positions = np.argsort(permutations, axis=1)  # [K, N] where each index went
    counts = np.stack([np.sum(positions // quarter == q, axis=0) for q in range(4)])
    # 2000 throws, 500 a quarter with a deviation of √(2000 · ¼ · ¾) = 19.4: six of them.
    assert np.abs(counts - 500).max() < 6 * 19.4


def test_neighbours_are_parted():
    keys = jax.random.split(jax.random.key(2), 500)
    permutations = np.asarray(jax.jit(jax.vmap(lambda key: random_permutation(key, 128)))(keys))
    # Of 128 rows in 4 minibatches, row i+1 is in the minibatch of row i with probability 31 / 127 = 0.244.
    minibatch = np.argsort(permutations, axis=1) // 32
    together = np.mean(minibatch[:, 1:] == minibatch[:, :-1])
    assert 0.2 < together < 0.29


def test_rows_are_steps_or_whole_sequences():
    x = jnp.arange(6).reshape(3, 2)  # [T, B]: 0 1, 2 3, 4 5
    assert to_rows(x, whole_sequences=False).tolist() == [0, 1, 2, 3, 4, 5]
    assert to_rows(x, whole_sequences=True).tolist() == [[0, 2, 4], [1, 3, 5]]
    for whole_sequences in (False, True):
        rows = to_rows(x, whole_sequences=whole_sequences)
        sequences = to_sequences(rows, whole_sequences=whole_sequences)
        assert sequences.shape == ((3, 2) if whole_sequences else (1, 6))
    assert to_sequences(to_rows(x, whole_sequences=True), whole_sequences=True).tolist() == x.tolist()


def visits(rows, valid, num_epochs, num_minibatches, key=0):
    """The rows of every minibatch, `[num_epochs * num_minibatches, N / num_minibatches]`, and their counts."""

    def step(carry, minibatch, count):
        return carry + 1, (minibatch, count)

    carry, outputs = scan_minibatches(
        step,
        0,
        rows,
        valid,
        jax.random.key(key),
        num_epochs=num_epochs,
        num_minibatches=num_minibatches,
        axis_name=None,
    )
    assert carry == num_epochs * num_minibatches
    return outputs


@pytest.mark.parametrize(("num_epochs", "num_minibatches"), [(1, 1), (3, 1), (1, 4), (3, 4)])
def test_every_row_comes_once_an_epoch(num_epochs, num_minibatches):
    rows, _ = visits(jnp.arange(24), jnp.ones((24,), bool), num_epochs, num_minibatches)
    assert rows.shape == (num_epochs * num_minibatches, 24 // num_minibatches)
    epochs = np.asarray(rows).reshape(num_epochs, 24)
    np.testing.assert_array_equal(np.sort(epochs, axis=1), np.tile(np.arange(24), (num_epochs, 1)))
    if num_epochs > 1 and num_minibatches > 1:
        assert not np.array_equal(epochs[0], epochs[1])


def test_leaves_stay_together():
    rows = {"x": jnp.arange(12), "y": jnp.arange(24).reshape(12, 2)}
    minibatches, _ = visits(rows, jnp.ones((12,), bool), 2, 3)
    np.testing.assert_array_equal(minibatches["y"][..., 0], 2 * minibatches["x"])


def test_counts_are_those_of_the_valid_rows_and_never_zero():
    valid = jnp.arange(12) < 5
    minibatches, counts = visits(jnp.arange(12), valid, 2, 3)
    np.testing.assert_allclose(counts, np.maximum(np.sum(np.asarray(minibatches) < 5, axis=1), 1e-6))
    _, counts = visits(jnp.arange(12), jnp.zeros((12,), bool), 1, 3)
    np.testing.assert_allclose(counts, 1e-6)


def test_counts_of_sequences_count_their_steps():
    valid = jnp.array([[True, True, False], [True, False, False]])  # [B, T]
    _, counts = visits(jnp.arange(2), valid, 1, 2)
    assert sorted(counts.tolist()) == [1.0, 2.0]


def test_rows_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="10 rows a device do not divide into 4 minibatches"):
        visits(jnp.arange(10), jnp.ones((10,), bool), 1, 4)


@pytest.mark.parametrize("num_minibatches", [1, 2])
def test_A23_sums_over_counts_are_the_mean_of_all_devices(num_minibatches):
    # Device 0 has the valid rows 1, 2, 3, 4, device 1 only 10: their mean is 20 / 5 = 4, the mean of means 6.25.
    x = jnp.array([1.0, 2.0, 3.0, 4.0, 10.0, 0.0, 0.0, 0.0])
    valid = jnp.array([True] * 5 + [False] * 3)

    def update(x, valid):
        def step(carry, minibatch, count):
            x, valid = minibatch
            return carry, (jnp.sum(jnp.where(valid, x, 0.0)) / count, count)

        _, (means, counts) = scan_minibatches(
            step, (), (x, valid), valid, jax.random.key(0), num_epochs=1, num_minibatches=num_minibatches, axis_name="d"
        )
        return jax.lax.pmean(means, "d"), counts

    mesh = Mesh(np.array(jax.devices()[:2]), ("d",), axis_types=(AxisType.Auto,))
    program = jax.jit(spmd(update, mesh, PartitionSpec("d"), (REPLICATED, REPLICATED)))
    means, counts = program(x, valid)
    np.testing.assert_allclose(np.sum(means * counts) / np.sum(counts), 4.0, rtol=1e-6)
    np.testing.assert_allclose(np.sum(counts), 2.5)  # averaged over the devices


@pytest.mark.parametrize(
    ("steps_per_row", "chunk_size", "num_chunks"),
    [(1, 0, 1), (1, None, 1), (1, 12, 1), (1, 6, 2), (1, 5, 3), (1, 1, 12), (4, 8, 6), (4, 2, 12)],
)
def test_gradients_of_chunks_add_up_to_those_of_the_minibatch(key, steps_per_row, chunk_size, num_chunks):
    x, y = jax.random.normal(key, (12, 3)), jnp.arange(12.0)
    traced = []

    def loss(w, x, y, count):
        traced.append(x.shape[0])
        error = x @ w - y
        return jnp.sum(jnp.square(error)) / count, {"error": jnp.sum(error) / count}

    w, count = jnp.ones(3), jnp.float32(12.0)
    gradient, metrics = gradients(loss, w, (x, y), count, steps_per_row=steps_per_row, chunk_size=chunk_size)
    # d/dw Σ (xw − y)² / 12 = 2 xᵀ(xw − y) / 12
    error = np.asarray(x) @ np.ones(3) - np.arange(12.0)
    np.testing.assert_allclose(gradient, 2 * np.asarray(x).T @ error / 12, rtol=1e-5)
    np.testing.assert_allclose(metrics["error"], error.mean(), rtol=1e-5)
    assert set(traced) == {12 // num_chunks}
