"""A sum tree of 16 children a node: draws in proportion to values, and changes them, in time that grows by its depth.

A node is always the sum of its children as they are, never one that differences were added to: nothing drifts,
and no node is negative. Wide nodes make few levels, and few kernels.
"""

from typing import NamedTuple

import jax.numpy as jnp

from podracer.types import Array

_WIDTH = 16


class SumTree(NamedTuple):
    """Levels from the leaves to the children of the root, each `[16 n]`, padded with zeros."""

    sums: tuple[Array, ...]  # the first are the leaves
    maxima: tuple[Array, ...]  # of the levels above the leaves


def init(size: int) -> SumTree:
    """Makes a tree of `size` leaves, all 0."""
    levels, nodes = [], size
    while not levels or nodes > 1:
        nodes = -(-nodes // _WIDTH)
        levels.append(jnp.zeros((nodes * _WIDTH,), jnp.float32))
    return SumTree(tuple(levels), tuple(levels[1:]))


def total(tree: SumTree) -> Array:
    """`[]` f32 sum of all leaves."""
    return jnp.sum(tree.sums[-1])


def maximum(tree: SumTree) -> Array:
    """`[]` f32 largest leaf."""
    return jnp.max(tree.maxima[-1] if tree.maxima else tree.sums[-1])


def assign(tree: SumTree, positions: Array, values: Array) -> SumTree:
    """Changes leaves.

    Args:
      tree: to change.
      positions: `[N]` int32; where one occurs several times, the largest of its values counts.
      values: `[N]` f32, finite and not negative.
    """
    leaves = tree.sums[0].at[positions].set(0.0, mode="promise_in_bounds")
    # A maximum does not depend on the order in which a device writes.
    sums, maxima = [leaves.at[positions].max(values, mode="promise_in_bounds")], []
    below = sums[0]
    for level in range(1, len(tree.sums)):
        positions = positions // _WIDTH
        children = sums[-1].reshape(-1, _WIDTH)[positions]  # [N, 16]
        sums.append(tree.sums[level].at[positions].set(jnp.sum(children, -1), mode="promise_in_bounds"))
        children = below.reshape(-1, _WIDTH)[positions]
        below = tree.maxima[level - 1].at[positions].set(jnp.max(children, -1), mode="promise_in_bounds")
        maxima.append(below)
    return SumTree(tuple(sums), tuple(maxima))


def find(tree: SumTree, uniform: Array) -> Array:
    """Draws leaves in proportion to their values.

    Args:
      tree: whose total is positive; of one without, any leaf is found.
      uniform: `[N]` f32 in [0, 1).

    Returns:
      `[N]` int32 positions, none of a leaf that is 0.
    """
    target = uniform * total(tree)
    position = jnp.zeros(uniform.shape, jnp.int32)
    for sums in reversed(tree.sums):
        children = sums.reshape(-1, _WIDTH)[position]  # [N, 16]
        # One child after the other, so that the running sum of a child that is 0 is exactly that of the one before it.
        before, child, left = jnp.zeros_like(target), jnp.zeros_like(position), target
        for k in range(_WIDTH):
            value = children[:, k]
            # Rounding may leave a target beyond the last child: then the last that is not 0 keeps it.
            is_found = (value > 0) & (before <= target)
            child, left = jnp.where(is_found, k, child), jnp.where(is_found, target - before, left)
            before = before + value
        position, target = position * _WIDTH + child, left
    return position
