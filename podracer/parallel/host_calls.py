"""Calls of Python on the host from inside a compiled program.

As `jax.experimental.io_callback`, but that a function is handed NumPy arrays: JAX's own copies its arguments into
JAX arrays first, with the threads that run programs, and where all of those wait in a call, no copy is ever made.
It also costs several times as much.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from podracer.types import ArrayTree

_host_call = Primitive("host_call")
_host_call.multiple_results = True


def host_call(function: Callable[..., ArrayTree], results: ArrayTree, *args: ArrayTree) -> ArrayTree:
    """Calls a function on the host, once on every device that runs the program.

    A call is made if a result of it is used, and only arguments say when: of two calls, that one is first whose
    result the other one takes. No call may be batched by `vmap` or differentiated.

    Args:
      function: takes trees of NumPy arrays like `args`, valid until it returns, and returns a tree like `results`.
      results: shapes and dtypes of what it returns, as `jax.eval_shape` gives them; at least one array.
      args: trees of arrays.

    Returns:
      What the function returned, on the device.
    """
    leaves, structure = jax.tree.flatten(args)
    shapes, result_structure = jax.tree.flatten(results)

    def call(*leaves: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(jax.tree.leaves(function(*structure.unflatten(leaves))))

    avals = tuple(jax.core.ShapedArray(leaf.shape, leaf.dtype) for leaf in shapes)
    return result_structure.unflatten(_host_call.bind(*leaves, call=call, avals=avals))


def _lower(ctx: Any, *operands: Any, call: Callable, avals: tuple) -> Any:
    del avals
    values, _, _ = mlir.emit_python_callback(
        ctx, call, None, list(operands), ctx.avals_in, ctx.avals_out, has_side_effect=True, returns_token=False
    )
    return values


_host_call.def_abstract_eval(lambda *_, call, avals: list(avals))
_host_call.def_impl(lambda *leaves, call, avals: list(map(jax.numpy.asarray, call(*map(np.asarray, leaves)))))
mlir.register_lowering(_host_call, _lower, cacheable=False)
