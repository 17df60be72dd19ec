"""What an environment accepts and emits, and the one place where actions are converted.

An agent sees canonical actions: indices from 0 for `Discrete` and `MultiDiscrete`, and [-1, 1] per
dimension for a bounded `Box`. `to_env_action` converts once, in the environment's adaptor; what is
recorded is what the policy sampled.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from podracer.types import Array, ArrayTree

# The bool leaf of a mapping observation that says which actions are legal.
ACTION_MASK = "action_mask"


@dataclass(frozen=True)
class Discrete:
    """One of `num_values` values; the environment counts from `start`, agents count from 0."""

    num_values: int
    start: int = 0

    shape = ()
    dtype = np.dtype(np.int32)


@dataclass(frozen=True)
class MultiDiscrete:
    """A vector of discrete values, the i-th out of `num_values[i]`, counted from `start[i]`."""

    num_values: tuple[int, ...]
    start: tuple[int, ...] | None = None

    dtype = np.dtype(np.int32)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.num_values),)


@dataclass(frozen=True, eq=False)
class Box:
    """An array with bounds per element. As an observation its bounds may be infinite."""

    shape: tuple[int, ...]
    dtype: np.dtype
    low: np.ndarray | float = -np.inf
    high: np.ndarray | float = np.inf

    def __post_init__(self):
        object.__setattr__(self, "dtype", np.dtype(self.dtype))

    @property
    def is_bounded(self) -> bool:
        # Box spaces that mean "unbounded" are often declared with the largest float.
        largest = np.finfo(np.float32).max
        return bool(np.all(np.abs(np.asarray(self.low, np.float64)) < largest)
                    and np.all(np.abs(np.asarray(self.high, np.float64)) < largest))  # fmt: skip


ActionSpace = Discrete | MultiDiscrete | Box


class StackedFrames(NamedTuple):
    """Says that observations repeat earlier ones: every leaf but the action mask is `count` frames, newest last."""

    count: int
    axis: int  # along which they are concatenated, counted from the last: -1, or -3 of channels-first images


@dataclass(frozen=True, eq=False)
class EnvSpec:
    """What is known of an environment before it is stepped."""

    id: str
    observation: Any  # a tree (dict, tuple) of Box | Discrete, one leaf an observation leaf, without B
    action: ActionSpace
    time_limit: int | None = None  # in steps; None where no limit is known
    can_truncate: bool = True  # False: no episode ever ends but by a true end
    stacked_frames: StackedFrames | None = None  # where observations are stacks


def to_env_action(space: ActionSpace, action: Array, xp) -> Array:
    """Converts canonical actions to those that the environment expects.

    Args:
      space: the environment's own action space.
      action: `[..., *space.shape]` canonical actions.
      xp: `numpy` or `jax.numpy`, whichever the environment lives in.

    Returns:
      `Discrete`, `MultiDiscrete`: index + start. `Box`: the action clipped to [-1, 1], then mapped
      linearly onto [low, high], in the space's dtype.
    """
    if isinstance(space, Box):
        low, high = xp.asarray(space.low, space.dtype), xp.asarray(space.high, space.dtype)
        unit = (xp.clip(action, -1.0, 1.0).astype(space.dtype) + 1) / 2
        return low + unit * (high - low)
    start = 0 if space.start is None else xp.asarray(space.start, space.dtype)
    return action.astype(space.dtype) + start


def zeros(space: Any, batch_shape: tuple[int, ...] = ()) -> ArrayTree:
    """Makes a NumPy tree of zeros in the shapes and dtypes of a (tree of) space(s)."""
    return jax.tree.map(lambda leaf: np.zeros(batch_shape + leaf.shape, leaf.dtype), space)


def check_observation(space: Any, observation: ArrayTree, batch_shape: tuple[int, ...], who: str) -> None:
    """Checks that an observation is in its declared space; used once at start-up.

    Raises:
      ValueError: naming the leaf, and what was declared and what came: structure, shape or dtype.
    """
    declared, structure = jax.tree_util.tree_flatten_with_path(space)
    emitted, emitted_structure = jax.tree.flatten(observation)
    if structure != emitted_structure:
        raise ValueError(f"{who} declares observations {structure} but emits {emitted_structure}")
    for (path, leaf), value in zip(declared, emitted):
        name = jax.tree_util.keystr(path) or "observation"
        shape = batch_shape + tuple(leaf.shape)
        if tuple(value.shape) != shape or value.dtype != leaf.dtype:
            raise ValueError(
                f"{who} declares {name} as {leaf.dtype}{shape} but emits {value.dtype}{tuple(value.shape)}"
            )


def check_action_mask(action_mask: np.ndarray, is_last: np.ndarray, who: str) -> None:
    """Checks that every environment that acts has a legal action; host adaptors call it on what they emit.

    Args:
      action_mask: `[B, A]` bool, True where the action is legal.
      is_last: `[B]` bool, where the action will be ignored and the mask may be empty.
      who: the environment's id, for the message.

    Raises:
      ValueError: naming the environments that leave nothing to choose from.
    """
    stuck = np.flatnonzero(~np.any(action_mask, axis=-1) & ~is_last)
    if stuck.size:
        raise ValueError(
            f"{who}: {ACTION_MASK!r} allows none of the {action_mask.shape[-1]} actions in environments "
            f"{stuck.tolist()} although their episodes go on; mark at least one action as legal there"
        )
