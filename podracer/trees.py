"""Trees of arrays as flat dictionaries of named NumPy arrays, and back: what is written to disk."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from podracer.types import ArrayTree

Arrays = Mapping[str, np.ndarray]

_SEPARATOR = "/"


def to_arrays(tree: ArrayTree) -> dict[str, np.ndarray]:
    """Copies a tree to the host, its leaves named by their paths.

    Random keys become their data. Leaves may be arrays of JAX or NumPy, or Python numbers. Arrays of no
    elements are left out, as not every format can hold one.
    """
    arrays = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if _is_key(leaf):
            leaf = jax.random.key_data(leaf)
        # A copy, as on a CPU the array may share the memory of a buffer that is donated later.
        array = np.array(leaf)
        if array.size:
            arrays[_name(path)] = array
    return arrays


def leaf_names(tree: ArrayTree) -> list[str]:
    """The names of all leaves, in the order of `jax.tree.leaves`."""
    return [_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]


def from_arrays(
    arrays: Arrays,
    example: ArrayTree,
    *,
    check_shapes: bool = True,
    is_optional: Callable[[str], bool] = lambda name: False,
) -> ArrayTree:
    """Builds a tree with the structure of `example`; its leaves are NumPy arrays, and JAX's for random keys.

    Args:
      arrays: from `to_arrays`.
      example: the structure; leaves with shapes and dtypes, as `jax.eval_shape` gives them, or numbers.
      check_shapes: whether shapes have to be those of the example.
      is_optional: of a name, whether that may be missing, to become zeros, or be too many.

    Raises:
      ValueError: naming the leaves that are missing, too many, or of another shape or dtype.
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(example)
    names = [_name(path) for path, _ in paths]
    unknown = sorted(name for name in set(arrays) - set(names) if not is_optional(name))
    faults = [f"{name} is not known" for name in unknown]
    leaves = []
    for name, (_, leaf) in zip(names, paths):
        shape, dtype = _data_shape(leaf)
        array = arrays.get(name)
        if array is None and (0 in shape or is_optional(name)):
            array = np.zeros(shape, dtype)
        if array is None:
            faults.append(f"{name} is missing")
        elif array.dtype != dtype or (check_shapes and array.shape != shape):
            faults.append(f"{name} is {array.dtype}{list(array.shape)} in place of {dtype}{list(shape)}")
        else:
            leaves.append(jax.random.wrap_key_data(array, impl=_implementation(leaf)) if _is_key(leaf) else array)
    if faults:
        more = f", and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise ValueError(f"the saved state is of another structure: {'; '.join(faults[:5])}{more}")
    return jax.tree.unflatten(structure, leaves)


def subtree(arrays: Arrays, *path: str | int) -> dict[str, np.ndarray]:
    """The arrays below a path, named from there on."""
    prefix = "".join(f"{step}{_SEPARATOR}" for step in path)
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def children(arrays: Arrays) -> list[str]:
    """The first steps of the paths, each once, in order."""
    return list(dict.fromkeys(name.split(_SEPARATOR)[0] for name in arrays))


def _name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=_SEPARATOR)


def _is_key(leaf: object) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)


def _implementation(key: jax.Array | jax.ShapeDtypeStruct) -> object:
    # The dtype of a key knows its generator, also where there is no array yet.
    return jax.random.key_impl(jnp.empty((), key.dtype))


def _data_shape(leaf: object) -> tuple[tuple[int, ...], np.dtype]:
    if _is_key(leaf):
        data = jax.eval_shape(jax.random.key_data, leaf)
        return data.shape, data.dtype
    if hasattr(leaf, "dtype"):
        return tuple(leaf.shape), np.dtype(leaf.dtype)
    return (), np.asarray(leaf).dtype
