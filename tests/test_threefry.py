"""The straight-line generator draws what JAX's own draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.randomness import run_key
from podracer.threefry import THREEFRY

SEEDS = [0, 7, 2**31 - 1, -1]


def both(seed):
    return jax.random.key(seed), run_key(seed)


def data(keys):
    return np.asarray(jax.random.key_data(keys))


def test_known_answer_of_the_random123_library():
    key = jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32), impl=THREEFRY)
    # `kat_vectors` of Random123: threefry2x32 20 rounds, counter 0, key 0.
    assert [hex(word) for word in data(jax.random.split(key, 1))[0]] == ["0x6b200159", "0x99ba4efe"]


@pytest.mark.parametrize("seed", SEEDS)
def test_keys_are_those_of_jax(seed):
    theirs, ours = both(seed)
    np.testing.assert_array_equal(data(theirs), data(ours))
    for shape in (1, 3, (2, 5), (0,)):
        np.testing.assert_array_equal(data(jax.random.split(theirs, shape)), data(jax.random.split(ours, shape)))
    for time in (0, 77, 2**31 - 1, np.uint32(2**32 - 1)):
        np.testing.assert_array_equal(
            data(jax.random.fold_in(theirs, time)), data(jax.random.fold_in(ours, jnp.asarray(time, jnp.uint32)))
        )


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.uint16, jnp.uint32])
@pytest.mark.parametrize("shape", [(), (5,), (3, 2, 4)])
def test_bits_are_those_of_jax(dtype, shape):
    theirs, ours = both(3)
    np.testing.assert_array_equal(jax.random.bits(theirs, shape, dtype), jax.random.bits(ours, shape, dtype))


def test_64_bits_are_those_of_jax():
    with jax.enable_x64(True):
        theirs, ours = both(3)
        np.testing.assert_array_equal(
            jax.random.bits(theirs, (5,), jnp.uint64), jax.random.bits(ours, (5,), jnp.uint64)
        )


def test_draws_of_mapped_keys_are_those_of_jax():
    def draw(key):
        first, second = jax.random.split(key)
        return jax.random.normal(first, (3,)), jax.random.permutation(second, 9)

    for theirs, ours in zip(*(jax.vmap(draw)(jax.random.split(key, 4)) for key in both(1))):
        np.testing.assert_array_equal(theirs, ours)


def test_too_many_numbers_of_one_key_are_refused():
    with pytest.raises(ValueError, match="4294967295"):
        jax.jit(lambda: jax.random.bits(run_key(0), (2**16, 2**16))).lower()
