"""The generator behind every key of a run: JAX's threefry2x32, bit for bit, as straight-line code.

On a CPU, JAX compiles each draw into a loop of five iterations with some twenty tiny kernels each.
In a program that draws at every step of small environments those kernels take longer than the
networks. Written out, a draw is one or two kernels: four to five times faster, and quicker to compile.

"Parallel Random Numbers: As Easy as 1, 2, 3", Salmon et al., SC 2011.
"""

import math

import jax
import jax.numpy as jnp
from jax.extend.random import define_prng_impl, threefry_prng_impl

from podracer.types import Array

_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
_PARITY = 0x1BD11BDA
_DTYPES = {8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32, 64: jnp.uint64}


@jax.jit  # traced and lowered once a shape
def _hash(key: Array, high: Array, low: Array) -> tuple[Array, Array]:
    """Encrypts 64-bit counters, given as two words of `[...]` uint32 each, with a `[2]` uint32 key."""
    keys = key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(_PARITY)
    x, y = high + keys[0], low + keys[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x = x + y
            y = x ^ ((y << jnp.uint32(rotation)) | (y >> jnp.uint32(32 - rotation)))
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return x, y


def _hash_indices(key: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    size = math.prod(shape)
    if size >= 2**32:
        raise ValueError(f"{shape} are {size} random numbers with one key, but at most {2**32 - 1} can be drawn")
    low = jax.lax.iota(jnp.uint32, size).reshape(shape)
    return _hash(key, jnp.zeros_like(low), low)


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    return jnp.stack(_hash_indices(key, shape), axis=-1)


def _fold_in(key: Array, data: Array) -> Array:
    words = threefry_prng_impl.seed(jnp.asarray(data, jnp.uint32))
    return jnp.stack(_hash(key, words[0], words[1]))


def _random_bits(key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    dtype = _DTYPES[bit_width]
    x, y = _hash_indices(key, shape)
    if bit_width == 64:
        return (x.astype(dtype) << jnp.asarray(32, dtype)) | y.astype(dtype)
    return (x ^ y).astype(dtype)


THREEFRY = define_prng_impl(
    key_shape=(2,),
    seed=threefry_prng_impl.seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="podracer_threefry2x32",
    tag="pod",
)
"""For `jax.random.key(seed, impl=THREEFRY)`. `jax.random.key_data` is that of JAX's own key."""
