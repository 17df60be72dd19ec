"""A sum tree of 8 children a node: draws in proportion to values, and changes them, in time that grows by its depth.

A node is always the sum of its children as they are, never one that differences were added to: nothing drifts,
and no node is negative. Wide nodes make few levels, and few kernels.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from podracer.types import Array

_WIDTH = 8
_COMBINE = (jnp.sum, jnp.max)
# Of so few maxima the largest is looked for, which is less work than to keep further levels.
_FEW_MAXIMA = 4096


class SumTree(NamedTuple):
    """Levels from the leaves to the children of the root, each `[8 n]`, padded with zeros."""

    sums: tuple[Array, ...]  # the first are the leaves
    maxima: tuple[Array, ...]  # of the levels above the leaves, up to one that has few nodes


def init(size: int) -> SumTree:
    """Makes a tree of `size` leaves, all 0."""
    sizes, nodes = [], size
    while not sizes or nodes > 1:
        nodes = -(-nodes // _WIDTH)
        sizes.append(nodes * _WIDTH)
    num_maxima = sum(below > _FEW_MAXIMA for below in sizes[:-1])
    sums, maxima = sizes, sizes[1 : num_maxima + 1]
    return SumTree(*(tuple(jnp.zeros((nodes,), jnp.float32) for nodes in levels) for levels in (sums, maxima)))


def is_derived(name: str) -> bool:
    """Whether an array of this name, `.../sums/1`, follows from the leaves of a tree."""
    *_, field, level = ("", "", *name.split("/"))
    return field == "maxima" or (field == "sums" and level != "0")


def total(tree: SumTree) -> Array:
    """`[]` f32 sum of all leaves."""
    return jnp.sum(tree.sums[-1])


def maximum(tree: SumTree) -> Array:
    """`[]` f32 largest leaf."""
    return jnp.max(tree.maxima[-1] if tree.maxima else tree.sums[0])


def assign(tree: SumTree, positions: Array, values: Array) -> SumTree:
    """Changes leaves.

    Args:
      tree: to change.
      positions: `[N]` int32; where one occurs several times, the largest of its values counts.
      values: `[N]` f32, finite and not negative; 0 at positions beyond the leaves, which changes nothing.
    """
    leaves = tree.sums[0].at[positions].set(values, mode="drop")
    # A maximum does not depend on the order in which a device writes.
    sums, maxima = [leaves.at[positions].max(values, mode="drop")], []
    below = (sums[0],)
    for level in range(1, len(tree.sums)):
        positions = positions // _WIDTH
        # The sums, and the maxima where there are any.
        below = _refresh((tree.sums[level], *tree.maxima[level - 1 : level]), below, positions)
        sums.append(below[0])
        maxima.extend(below[1:])
    return SumTree(tuple(sums), tuple(maxima))


def find(tree: SumTree, uniform: Array) -> Array:
    """Draws leaves in proportion to their values.

    Args:
      tree: whose total is positive; of one without, any leaf is found.
      uniform: `[N]` f32 in [0, 1).

    Returns:
      `[N]` int32 positions, none of a leaf that is 0.
    """
    target = uniform * total(tree)  # [N]
    position = jnp.zeros(uniform.shape, jnp.int32)
    is_before = jnp.triu(jnp.ones((_WIDTH, _WIDTH)), 1)
    for sums in reversed(tree.sums):
        children = sums.reshape(-1, _WIDTH).at[position].get(mode="promise_in_bounds")  # [N, 8]
        before = jnp.dot(children, is_before, precision="highest")  # sums of the children to the left
        # Rounding may leave a target beyond the last child: then the last that is not 0 keeps it.
        is_reached = (children > 0) & (before <= target[:, None])
        child = jnp.max(jnp.where(is_reached, jnp.arange(_WIDTH), 0), axis=-1)
        target -= jnp.max(jnp.where(is_reached, before, 0.0), axis=-1)
        position = position * _WIDTH + child
    return position


def _refresh(nodes: tuple[Array, ...], below: tuple[Array, ...], positions: Array) -> tuple[Array, ...]:
    """Makes nodes at `[N]` positions the sums, and the maxima, of their children as they are; leaves are both.

    A position beyond the nodes stands for the last of them.
    """

    def one_by_one(nodes: tuple[Array, ...], below: tuple[Array, ...], positions: Array) -> tuple[Array, ...]:
        def refresh(i: Array, nodes: tuple[Array, ...]) -> tuple[Array, ...]:
            at = positions[i]
            children = [jax.lax.dynamic_slice(leaf, (at * _WIDTH,), (_WIDTH,)) for leaf in below]
            values = [combine(leaf)[None] for combine, leaf in zip(_COMBINE, children * 2)]
            return tuple(jax.lax.dynamic_update_slice(old, new, (at,)) for old, new in zip(nodes, values))

        return jax.lax.fori_loop(0, positions.size, refresh, nodes)

    def at_once(nodes: tuple[Array, ...], below: tuple[Array, ...], positions: Array) -> tuple[Array, ...]:
        children = [leaf.reshape(-1, _WIDTH).at[positions].get(mode="clip") for leaf in below]  # [N, 8]
        values = [combine(leaf, axis=-1) for combine, leaf in zip(_COMBINE, children * 2)]
        return tuple(old.at[positions].set(new, mode="clip") for old, new in zip(nodes, values))

    # For a CPU so short a loop is compiled to one piece of code, several times as fast as gathers and scatters.
    return jax.lax.platform_dependent(nodes, below[: len(nodes)], positions, cpu=one_by_one, default=at_once)
