"""The one trace of execution in an agent: averages over the devices that learn together."""

from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

Tree = TypeVar("Tree")


def pmean(tree: Tree, axis_name: str | None) -> Tree:
    """Averages a tree over the devices of a mesh axis in one collective.

    Args:
      tree: floating-point arrays.
      axis_name: the mesh axis; None where there is one device, then the tree is returned as it is.
    """
    if axis_name is None:
        return tree
    # One collective a call: a collective a leaf costs a rendezvous a leaf.
    flat, unravel = ravel_pytree(tree)
    return unravel(jax.lax.pmean(flat, axis_name))


def psum(tree: Tree, axis_name: str | None) -> Tree:
    """Adds a tree up over the devices of a mesh axis in one collective; like `pmean` otherwise."""
    if axis_name is None:
        return tree
    flat, unravel = ravel_pytree(tree)
    return unravel(jax.lax.psum(flat, axis_name))


def pmin(x: jax.Array, axis_name: str | None) -> jax.Array:
    """Takes the least over the devices of a mesh axis, element by element."""
    return x if axis_name is None else jax.lax.pmin(x, axis_name)


def masked_mean(x: jax.Array, where: jax.Array, axis_name: str | None = None) -> jax.Array:
    """Averages the elements of `x` where `where` holds, over all devices; 0 if there are none.

    The quotient of the global sum and the global count: devices with fewer valid elements weigh less.
    """
    total, count = jnp.sum(jnp.where(where, x, 0.0)), jnp.sum(where.astype(x.dtype))
    total, count = pmean((total, count), axis_name)
    return total / jnp.maximum(count, jnp.finfo(x.dtype).tiny)


def axis_index(axis_name: str | None) -> jax.Array:
    """`[]` int32 position of this device on a mesh axis; 0 where there is one device."""
    return jnp.zeros((), jnp.int32) if axis_name is None else jax.lax.axis_index(axis_name)
