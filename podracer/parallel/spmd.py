"""The only `shard_map` of the project: runs a per-device function on every device of a mesh."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from podracer.types import ArrayTree

# Agents are written in the per-device view: arrays are a device's own share, and whatever has to
# agree between devices goes through `collectives`.
REPLICATED = PartitionSpec()


def spmd(function: Callable, mesh: Mesh, in_specs: Any, out_specs: Any) -> Callable:
    """Maps a function over the devices of a mesh.

    Args:
      function: takes and returns per-device arrays.
      mesh: with a single axis. On one device the function is returned as it is, so that nothing is
        paid for an axis of length one; its `axis_name` is None then (see `axis_name`).
      in_specs: a prefix tree of `PartitionSpec` for the arguments.
      out_specs: the same for the results.
    """
    if mesh.size == 1:
        return function
    # With check_vma=True the gradient of a local loss with respect to replicated parameters is
    # summed over the devices already, and `pmean` of it returns the sum: 280 where 70 is right.
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def axis_name(mesh: Mesh) -> str | None:
    """The name that `collectives` average over, None on one device."""
    return None if mesh.size == 1 else mesh.axis_names[0]


def shardings(mesh: Mesh, specs: Any) -> Any:
    """The shardings on a mesh that a tree of `PartitionSpec` stands for."""
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda x: isinstance(x, PartitionSpec))


def put(tree: ArrayTree, mesh: Mesh, specs: Any) -> ArrayTree:
    """Copies arrays onto a mesh.

    Args:
      tree: of NumPy or JAX arrays, of their global shapes.
      mesh: whatever mesh they were on before.
      specs: a prefix tree of `PartitionSpec`.
    """
    # In a program, as `device_put` alone may share memory with a NumPy array, and the result may be donated.
    copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree), out_shardings=shardings(mesh, specs))
    return copy(tree)
