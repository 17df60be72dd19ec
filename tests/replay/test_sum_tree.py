import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podracer.replay import sum_tree

assign, find = jax.jit(sum_tree.assign), jax.jit(sum_tree.find)


def check_nodes(tree: sum_tree.SumTree, leaves: np.ndarray) -> None:
    """Every node is the sum, and the maximum, of what is below it."""
    np.testing.assert_array_equal(np.asarray(tree.sums[0])[: leaves.size], leaves)
    assert not np.any(np.asarray(tree.sums[0])[leaves.size :])
    assert all(np.all(np.asarray(level) >= 0) for level in tree.sums)
    np.testing.assert_allclose(sum_tree.total(tree), leaves.sum(), rtol=1e-5)
    assert sum_tree.maximum(tree) == leaves.max()


@pytest.mark.parametrize("size", [1, 8, 9, 300, 5000])
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**20))
def test_A27_nodes_are_the_sums_of_their_children(size, seed):
    rng = np.random.default_rng(seed)
    tree, leaves = sum_tree.init(size), np.zeros(size, np.float32)
    for _ in range(20):
        positions = rng.integers(0, size, 12).astype(np.int32)
        values = np.where(rng.random(12) < 0.3, 0.0, rng.exponential(size=12) * 10.0 ** rng.integers(-6, 6)).astype(
            np.float32
        )
        tree = assign(tree, positions, values)
        largest: dict[int, np.float32] = {}
        for position, value in zip(positions.tolist(), values):
            largest[position] = max(largest.get(position, np.float32(0)), value)  # of duplicates the largest counts
        leaves[list(largest)] = list(largest.values())
    check_nodes(tree, leaves)


@pytest.mark.parametrize("size", [9, 5000])
def test_A27_nodes_are_the_same_on_every_platform(size, monkeypatch):
    keys = jax.random.split(jax.random.key(0), 2)
    positions = jax.random.randint(keys[0], (200,), 0, size)
    on_cpu = assign(sum_tree.init(size), positions, jax.random.uniform(keys[1], (200,)))
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *args, cpu, default: default(*args))
    elsewhere = jax.jit(lambda *args: sum_tree.assign(*args))(
        sum_tree.init(size), positions, jax.random.uniform(keys[1], (200,))
    )
    for one, other in zip(jax.tree.leaves(on_cpu), jax.tree.leaves(elsewhere), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_A27_nothing_drifts_in_a_million_changes():
    """Large leaves come and go beside small ones: differences that are added up would lose the small ones."""
    size, batch, rounds = 1000, 250, 4000

    @jax.jit
    def change(tree, key):
        def step(tree, key):
            position_key, value_key, exponent_key = jax.random.split(key, 3)
            positions = jax.random.randint(position_key, (batch,), 0, size)
            exponents = jax.random.randint(exponent_key, (batch,), -3, 6).astype(jnp.float32)
            return sum_tree.assign(tree, positions, jax.random.uniform(value_key, (batch,)) * 10.0**exponents), None

        return jax.lax.scan(step, tree, jax.random.split(key, rounds))[0]

    tree = change(sum_tree.init(size), jax.random.key(0))
    tree = assign(tree, jnp.arange(size), jnp.zeros(size))
    assert sum_tree.total(tree) == 0
    tree = assign(tree, jnp.arange(3), jnp.array([1e-3, 2e-3, 1e-3]))
    check_nodes(tree, np.concatenate([np.float32([1e-3, 2e-3, 1e-3]), np.zeros(size - 3, np.float32)]))


@pytest.mark.parametrize("size", [1, 40, 5000])
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**20))
def test_A27_no_leaf_that_is_0_is_found(size, seed):
    rng = np.random.default_rng(seed)
    leaves = np.where(rng.random(size) < 0.8, 0.0, 10.0 ** rng.uniform(-8, 8, size)).astype(np.float32)
    leaves[rng.integers(size)] = 1e-8
    tree = assign(sum_tree.init(size), jnp.arange(size), leaves)
    edges = np.float32([0.0, np.nextafter(np.float32(1), np.float32(0))])
    found = np.asarray(find(tree, np.concatenate([edges, rng.random(998, np.float32)])))
    assert np.all(found < size) and np.all(leaves[found] > 0)


@functools.cache
def uniform_tree() -> sum_tree.SumTree:
    return assign(sum_tree.init(1000), jnp.arange(1000), jnp.ones(1000))


def test_shares_are_found_in_order():
    shares = (np.arange(1000, dtype=np.float32) + 0.5) / 1000
    np.testing.assert_array_equal(find(uniform_tree(), shares), np.arange(1000))
