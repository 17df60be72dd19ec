"""The shards of a store: one a learner device, its arrays concatenated along the first axis."""

import jax
import numpy as np

from podracer.replay import sum_tree
from podracer.replay.base import Replay
from podracer.trees import Arrays, from_arrays
from podracer.types import Array, ArrayTree


def restore(arrays: Arrays, replay: Replay, example: ArrayTree, num_devices: int) -> ArrayTree:
    """Builds the state of a store that was saved, spread over the devices of this run.

    Args:
      arrays: `podracer.trees.to_arrays` of the state, of however many devices.
      replay: the store of this run.
      example: shapes of the state of all shards of this run.
      num_devices: of this run.

    Raises:
      ValueError: the state is of another store, or of one with other settings.
    """
    # Another number of devices may make a tree of another number of levels.
    state = from_arrays(arrays, example, check_shapes=False, is_optional=sum_tree.is_derived)
    if not _same_shapes(state, example):
        state = jax.tree.map(np.asarray, replay.reshard(state, num_devices))
    if not _same_shapes(state, example):
        raise ValueError("the saved store is of another size: replay.* and env.num_envs have to be what they were")
    return state


def respread(leaf: Array, num_devices: int, new_num_devices: int) -> np.ndarray:
    """Spreads rows of environments over another number of devices, environments in their order.

    Args:
      leaf: `[D · R, B, ...]`.
      num_devices: D.
      new_num_devices: D'.

    Returns:
      `[D' · R, D B / D', ...]`.
    """
    rows, num_envs, rest = leaf.shape[0] // num_devices, leaf.shape[1] * num_devices, leaf.shape[2:]
    wide = np.reshape(leaf, (num_devices, rows, -1, *rest)).swapaxes(0, 1).reshape(rows, num_envs, *rest)
    return wide.reshape(rows, new_num_devices, -1, *rest).swapaxes(0, 1).reshape(new_num_devices * rows, -1, *rest)


def split(state: ArrayTree, num_devices: int) -> list[ArrayTree]:
    """The shards of a state."""
    leaves, structure = jax.tree.flatten(state)
    return [structure.unflatten(shard) for shard in zip(*[np.split(np.asarray(leaf), num_devices) for leaf in leaves])]


def join(shards: list[ArrayTree]) -> ArrayTree:
    """The state of all shards."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *shards)


def _same_shapes(state: ArrayTree, example: ArrayTree) -> bool:
    return [x.shape for x in jax.tree.leaves(state)] == [x.shape for x in jax.tree.leaves(example)]
