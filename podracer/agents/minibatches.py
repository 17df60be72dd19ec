"""Minibatches of an unroll: every row once an epoch, shuffled on the device without a sort."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from podracer.parallel import collectives
from podracer.types import Array, ArrayTree, Key

_ROUNDS = 3

Carry = TypeVar("Carry")


def random_permutation(key: Key, size: int) -> Array:
    """Draws a permutation of 0 … size-1 by rounds of a keyed bijection.

    x ← a·x + c,  x ← x ⊕ (x ≫ k/2)   (mod 2ᵏ, a odd), repeated until x < size

    `jax.random.permutation` sorts, which takes 80 ms for 131,072 indices on a CPU, a third of a PPO
    update; this takes the time of a map. It reaches a small part of all permutations, which is
    enough to decorrelate minibatches and not enough for statistics on permutations.

    Args:
      key: consumed.
      size: number of indices.

    Returns:
      `[size]` int32.
    """
    bits = max(1, (size - 1).bit_length())
    constants = jax.random.bits(key, (_ROUNDS, 2), jnp.uint32)
    last = jnp.uint32((1 << bits) - 1)
    shift = jnp.uint32((bits + 1) // 2)

    def shuffle(x: Array) -> Array:
        for round in range(_ROUNDS):
            x = (x * (constants[round, 0] | jnp.uint32(1)) + constants[round, 1]) & last
            x = x ^ (x >> shift)
        return x

    def walk(x: Array) -> Array:
        return jnp.where(x < size, x, shuffle(x))

    x = shuffle(jnp.arange(size, dtype=jnp.uint32))
    if size < 1 << bits:
        # Following the cycle of a bijection until it returns to the range is a bijection of the range.
        x = jax.lax.while_loop(lambda x: jnp.any(x >= size), walk, x)
    return x.astype(jnp.int32)


def to_rows(tree: ArrayTree, *, whole_sequences: bool) -> ArrayTree:
    """Lays `[T, B, ...]` out as rows to shuffle.

    Returns:
      `[T·B, ...]` single steps, or `[B, T, ...]` where a network's memory needs whole sequences.
    """
    if whole_sequences:
        return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), tree)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), tree)


def to_sequences(rows: ArrayTree, *, whole_sequences: bool) -> ArrayTree:
    """Lays a minibatch of rows out as `[T, N, ...]` again; T is 1 for single steps."""
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1) if whole_sequences else leaf[None], rows)


def gradients(
    loss: Callable[..., tuple[Array, dict[str, Array]]],
    params: ArrayTree,
    minibatch: tuple[ArrayTree, ...],
    count: Array,
    *,
    steps_per_row: int,
    chunk_size: int | None,
) -> tuple[ArrayTree, dict[str, Array]]:
    """Differentiates a loss that is a sum over rows, a chunk of rows at a time.

    Args:
      loss: `(params, *minibatch, count) -> (loss, metrics)`, both sums over the rows divided by `count`.
      params: that the gradients are for.
      minibatch: trees of `[N, ...]` rows.
      count: `[]` f32, as `scan_minibatches` gives it.
      steps_per_row: time steps that a row is made of.
      chunk_size: time steps at a time, at most, as the chunks are equal; 0 or None is all.

    Returns:
      Gradients and metrics, as of all rows at once but for the order of the sums.
    """
    differentiate = jax.grad(loss, has_aux=True)
    num_rows = jax.tree.leaves(minibatch)[0].shape[0]
    rows_per_chunk = max(1, chunk_size // steps_per_row) if chunk_size else num_rows
    num_chunks = next(n for n in range(1, num_rows + 1) if num_rows % n == 0 and num_rows // n <= rows_per_chunk)
    if num_chunks == 1:
        return differentiate(params, *minibatch, count)
    chunks = jax.tree.map(lambda leaf: leaf.reshape(num_chunks, -1, *leaf.shape[1:]), minibatch)

    def accumulate(total, chunk):
        return jax.tree.map(jnp.add, total, differentiate(params, *chunk, count)), None

    shapes = jax.eval_shape(differentiate, params, *jax.tree.map(lambda leaf: leaf[0], chunks), count)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    total, _ = jax.lax.scan(accumulate, zeros, chunks)
    return total


def scan_minibatches(
    step: Callable[[Carry, ArrayTree, Array], tuple[Carry, Any]],
    carry: Carry,
    rows: ArrayTree,
    valid: Array,
    key: Key,
    *,
    num_epochs: int,
    num_minibatches: int,
    axis_name: str | None,
) -> tuple[Carry, Any]:
    """Calls `step` for every minibatch of every epoch.

    Args:
      step: `(carry, minibatch, count) -> (carry, output)`. `count` is the number of valid rows in a
        minibatch, averaged over devices: a sum over the valid rows divided by it, averaged over the
        devices, is the mean over the valid rows of all devices.
      carry: of the first step.
      rows: `[N, ...]` what is shuffled.
      valid: `[N, ...]` bool.
      key: consumed.
      num_epochs: passes over all rows.
      num_minibatches: divides N.
      axis_name: of the devices that learn together; each shuffles its own rows.

    Returns:
      The last carry and the outputs, stacked `[num_epochs * num_minibatches, ...]`.
    """
    size = valid.shape[0]
    if size % num_minibatches:
        raise ValueError(f"{size} rows a device do not divide into {num_minibatches} minibatches")
    if num_minibatches == 1:
        # The order of a sum does not matter, and a shuffle would copy every row.
        count = jnp.maximum(collectives.pmean(jnp.sum(valid, dtype=jnp.float32), axis_name), 1e-6)
        if num_epochs == 1:
            # Not a scan of length one: its body would be compiled apart, and run slower for convolutions.
            carry, output = step(carry, rows, count)
            return carry, jax.tree.map(lambda leaf: leaf[None], output)
        return jax.lax.scan(lambda carry, _: step(carry, rows, count), carry, length=num_epochs)
    permutations = jax.vmap(lambda key: random_permutation(key, size))(jax.random.split(key, num_epochs))
    indices = permutations.reshape(num_epochs * num_minibatches, size // num_minibatches)
    counts = jnp.sum(valid[indices], axis=tuple(range(1, valid.ndim + 1)), dtype=jnp.float32)
    counts = jnp.maximum(collectives.pmean(counts, axis_name), 1e-6)

    def one(carry, inputs):
        indices, count = inputs
        minibatch = jax.tree.map(lambda leaf: jnp.take(leaf, indices, axis=0), rows)
        return step(carry, minibatch, count)

    return jax.lax.scan(one, carry, (indices, counts))
