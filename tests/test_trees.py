import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from podracer.randomness import run_key
from podracer.trees import children, from_arrays, subtree, to_arrays


def tree():
    return {
        "params": (jnp.arange(6.0).reshape(2, 3), jnp.bfloat16(1.5)),
        "key": run_key(3),
        "keys": jax.random.split(jax.random.key(1), 4),
        "count": 2**40,
        "share": 0.25,
        "nothing": (),
        "empty": jnp.zeros((0, 2)),
        "flags": np.array([True, False]),
    }


def test_a_tree_comes_back():
    original = tree()
    restored = from_arrays(to_arrays(original), original)
    assert jax.tree.structure(restored) == jax.tree.structure(original)
    for before, after in zip(jax.tree.leaves(original), jax.tree.leaves(restored), strict=True):
        if hasattr(before, "dtype") and jnp.issubdtype(before.dtype, jax.dtypes.prng_key):
            assert before.dtype == after.dtype
            before, after = jax.random.key_data(before), jax.random.key_data(after)
        np.testing.assert_array_equal(before, after)
        assert np.asarray(before).dtype == after.dtype


def test_leaves_are_named_by_their_paths():
    arrays = to_arrays(tree())
    assert {"params/0", "params/1", "key", "count"} <= set(arrays) and "empty" not in arrays
    assert children(subtree(arrays, "params")) == ["0", "1"]
    np.testing.assert_array_equal(subtree(arrays, "params")["0"], arrays["params/0"])


def test_arrays_are_copies():
    array = np.zeros(3)
    copy = to_arrays({"a": array})["a"]
    array[:] = 1
    assert not copy.any()
    # On a CPU, NumPy's view of a JAX array is the buffer itself, which is donated later.
    buffer = jnp.zeros(3)
    assert to_arrays({"a": buffer})["a"].flags.owndata


def test_another_structure_is_refused_by_name():
    arrays = to_arrays(tree())
    arrays["more"] = arrays.pop("share")
    arrays["count"] = arrays["count"].astype(np.int16)
    with pytest.raises(
        ValueError, match=r"more is not known; count is int16\[\] in place of int64\[\]; share is missing"
    ):
        from_arrays(arrays, tree())


def test_shapes_are_compared_unless_they_may_differ():
    arrays = to_arrays({"a": np.zeros((2, 3))})
    with pytest.raises(ValueError, match=r"a is float64\[2, 3\] in place of float64\[3, 2\]"):
        from_arrays(arrays, {"a": np.zeros((3, 2))})
    assert from_arrays(arrays, {"a": np.zeros((3, 2))}, check_shapes=False)["a"].shape == (2, 3)


def test_D02_an_optimiser_keeps_its_containers_and_compiles_nothing_anew():
    """Tuples and NamedTuples are what the optimiser's `update` unpacks, so the structure has to come back exactly."""
    masked = optax.masked(optax.add_decayed_weights(1e-2), {"w": True, "b": False})
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), masked, optax.inject_hyperparams(optax.adam)(1e-2))
    traces = []

    @jax.jit
    def step(params, state):
        traces.append(None)
        updates, state = optimiser.update(jax.tree.map(lambda p: p + 1, params), state, params)
        return optax.apply_updates(params, updates), state

    params = {"w": jnp.arange(3.0), "b": jnp.float32(1)}
    fresh = optimiser.init(params)
    params, state = step(*step(params, fresh))
    traced = len(traces)
    restored = from_arrays(to_arrays((params, state)), (params, fresh))
    assert jax.tree.structure(restored[1]) == jax.tree.structure(fresh)
    restored = jax.tree.map(jnp.asarray, restored)
    expected, got = step(params, state), step(*restored)
    assert len(traces) == traced
    jax.tree.map(np.testing.assert_array_equal, got, expected)
