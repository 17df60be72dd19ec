"""From an environment's observation to float features: the one place where dtypes and layouts are dealt with.

| leaf                 | becomes                               |
| -------------------- | ------------------------------------- |
| uint8                | float32, divided by 255               |
| bool, integer, float | float32                               |
| `Discrete`           | one-hot                               |
| `action_mask`        | no feature: the mask of legal actions |

Leaves of three dimensions are images, if the torso has convolutions. Their channels are the smaller of the
first and the last dimension (the last, if equal); all leave here as `[N, H, W, C]`. All other leaves are
flattened and concatenated in the order of `jax.tree.leaves`, in which dictionaries are sorted by key.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podracer.spaces import ACTION_MASK, Box, Discrete
from podracer.types import Array, ArrayTree

# A 3x3 convolution needs this much of an image.
_SMALLEST_SIDE = 3


class Features(NamedTuple):
    """What a torso reads, all leading dimensions merged into N."""

    images: tuple[Array, ...]  # each [N, H, W, C] f32
    vector: Array | None  # [N, F] f32
    action_mask: Array | None  # [N, A] bool, True where the action is legal


def preprocess(space: Any, observation: ArrayTree, *, batch_ndim: int, with_images: bool) -> Features:
    """Converts an observation into features.

    Args:
      space: of the observation, a tree of `Box | Discrete`.
      observation: leaves `[..., *shape]` in the environment's own dtype.
      batch_ndim: number of leading dimensions, which are merged.
      with_images: keeps images apart; otherwise they are flattened like all other leaves.
    """
    merged = jax.tree.map(lambda x: jnp.reshape(x, (-1, *x.shape[batch_ndim:])), observation)
    space, merged, action_mask = _split_action_mask(space, merged)
    images, vectors = [], []
    for leaf, x in zip(jax.tree.leaves(space), jax.tree.leaves(merged), strict=True):
        if with_images and _is_image(leaf):
            images.append(_to_float(leaf, x if _channels_last(leaf) else x.transpose(0, 2, 3, 1)))
        else:
            x = _to_float(leaf, x)
            vectors.append(x.reshape(x.shape[0], -1))
    return Features(tuple(images), jnp.concatenate(vectors, axis=-1) if vectors else None, action_mask)


def batch_shape(space: Any, observation: ArrayTree) -> tuple[int, ...]:
    """The leading dimensions of an observation, those that its space does not have."""
    leaf, x = jax.tree.leaves(space)[0], jax.tree.leaves(observation)[0]
    return x.shape[: x.ndim - len(leaf.shape)]


def image_sides(space: Any) -> list[tuple[int, int]]:
    """Heights and widths of the images among the leaves of an observation's space."""
    space, _, _ = _split_action_mask(space, space)
    images = [leaf for leaf in jax.tree.leaves(space) if _is_image(leaf)]
    return [_sides(leaf) for leaf in images]


def _split_action_mask(space: Any, observation: ArrayTree) -> tuple[Any, ArrayTree, Array | None]:
    """Takes the mask of legal actions, if there is one, out of a mapping and its space."""
    if not (isinstance(space, Mapping) and ACTION_MASK in space):
        return space, observation, None
    space = {name: leaf for name, leaf in space.items() if name != ACTION_MASK}
    return space, {name: observation[name] for name in space}, observation[ACTION_MASK]


def _is_image(leaf: Box | Discrete) -> bool:
    return len(leaf.shape) == 3 and min(_sides(leaf)) >= _SMALLEST_SIDE


def _sides(leaf: Box) -> tuple[int, int]:
    return leaf.shape[:2] if _channels_last(leaf) else leaf.shape[1:]


def _channels_last(leaf: Box) -> bool:
    return leaf.shape[-1] <= leaf.shape[0]


def _to_float(leaf: Box | Discrete, x: Array) -> Array:
    if isinstance(leaf, Discrete):
        return jax.nn.one_hot(x - leaf.start, leaf.num_values)
    if leaf.dtype == np.uint8:
        return x.astype(jnp.float32) / 255.0
    return x.astype(jnp.float32)
