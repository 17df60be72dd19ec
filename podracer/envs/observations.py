"""Wrappers of a JAX environment that change its observation, and its spec with it.

The leaf `action_mask` of a mapping observation is a statement about actions, not something seen: it
is never stacked or flattened.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podracer.envs.base import JaxEnv
from podracer.spaces import ACTION_MASK, Box, Discrete, EnvSpec, StackedFrames
from podracer.suggest import did_you_mean
from podracer.types import Array, ArrayTree, Key, TimeStep

# Where `FlattenObservation` puts its vector if the environment has an action mask to stand beside it.
FLAT = "observation"


class FrameStackState(NamedTuple):
    env: ArrayTree
    observation: ArrayTree  # the stack, newest last


@dataclass(frozen=True)
class FrameStack:
    """Stacks the last `num_frames` observations along the last axis, newest last.

    A vector `[D]` becomes `[N·D]`, an image `[H, W, C]` becomes `[H, W, N·C]`. A leaf without a channel
    axis, a scalar `[]` or an image `[H, W]`, gets one: `[N]`, `[H, W, N]`. A FIRST observation fills
    the stack. The dtype stays.
    """

    env: JaxEnv
    num_frames: int

    def __post_init__(self):
        if self.num_frames < 1:
            raise ValueError(f"env.frame_stack={self.num_frames} must be at least 1")
        for path, space in jax.tree_util.tree_leaves_with_path(self.env.spec.observation):
            if not isinstance(space, Box):
                raise ValueError(
                    f"env.frame_stack={self.num_frames}: {self.env.spec.id} observes "
                    f"{jax.tree_util.keystr(path) or 'a state'} as one of {space.num_values} values, which do not "
                    "stack; use env.frame_stack=1 and a recurrent network"
                )

    @cached_property
    def spec(self) -> EnvSpec:
        return replace(
            self.env.spec,
            observation=_map_seen(self._stacked_space, self.env.spec.observation),
            stacked_frames=StackedFrames(self.num_frames, -1) if self.num_frames > 1 else None,
        )

    def reset(self, key: Key) -> tuple[FrameStackState, TimeStep]:
        env_state, timestep = self.env.reset(key)
        observation = _map_seen(
            lambda leaf: jnp.concatenate([_with_channels(leaf)] * self.num_frames, axis=-1), timestep.observation
        )
        return FrameStackState(env_state, observation), timestep._replace(observation=observation)

    def step(self, key: Key, state: FrameStackState, action: Array) -> tuple[FrameStackState, TimeStep]:
        env_state, timestep = self.env.step(key, state.env, action)

        def push(leaf, stack):
            newest = _with_channels(leaf)
            return jnp.concatenate([stack[..., newest.shape[-1] :], newest], axis=-1)

        observation = _map_seen(push, timestep.observation, state.observation)
        return FrameStackState(env_state, observation), timestep._replace(observation=observation)

    def _stacked_space(self, space: Box) -> Box:
        def stack(bound):
            if np.ndim(bound) == 0:
                return bound
            bound = _with_channels(np.broadcast_to(bound, space.shape))
            return np.concatenate([bound] * self.num_frames, axis=-1)

        *outer, channels = _with_channels(np.empty(space.shape)).shape
        return Box((*outer, self.num_frames * channels), space.dtype, stack(space.low), stack(space.high))


@dataclass(frozen=True)
class FlattenObservation:
    """Makes one float32 vector of all leaves of the observation, in the order of `jax.tree.leaves`.

    Mappings are ordered by key. A uint8 leaf is divided by 255, as networks do to images; a discrete
    one becomes one-hot. With an action mask the observation is {"observation": vector, "action_mask":
    mask}, else the vector.
    """

    env: JaxEnv

    @cached_property
    def spec(self) -> EnvSpec:
        spaces = jax.tree.leaves(_seen(self.env.spec.observation))
        low = np.concatenate([_flat_bound(space, "low") for space in spaces])
        high = np.concatenate([_flat_bound(space, "high") for space in spaces])
        flat = self._with_mask(Box(low.shape, np.float32, low, high))
        return replace(self.env.spec, observation=flat, stacked_frames=None)

    def reset(self, key: Key) -> tuple[ArrayTree, TimeStep]:
        return self._flatten(*self.env.reset(key))

    def step(self, key: Key, state: ArrayTree, action: Array) -> tuple[ArrayTree, TimeStep]:
        return self._flatten(*self.env.step(key, state, action))

    def _flatten(self, state: ArrayTree, timestep: TimeStep) -> tuple[ArrayTree, TimeStep]:
        spaces = _seen(self.env.spec.observation)
        leaves = jax.tree.leaves(jax.tree.map(_flat_leaf, spaces, _seen(timestep.observation)))
        observation = self._with_mask(jnp.concatenate(leaves), timestep.observation)
        return state, timestep._replace(observation=observation)

    def _with_mask(self, flat: Any, observation: ArrayTree = None) -> Any:
        original = self.env.spec.observation if observation is None else observation
        if isinstance(original, Mapping) and ACTION_MASK in original:
            return {FLAT: flat, ACTION_MASK: original[ACTION_MASK]}
        return flat


@dataclass(frozen=True)
class RenameMask:
    """Gives the leaf that says which actions are legal its name, `action_mask`, and its dtype, bool."""

    env: JaxEnv
    key: str

    def __post_init__(self):
        observation = self.env.spec.observation
        names = list(observation) if isinstance(observation, Mapping) else []
        if self.key not in names:
            raise ValueError(
                f"env.action_mask_key={self.key!r} is no leaf of {self.env.spec.id}'s observation; "
                f"{did_you_mean(self.key, names)}"
            )

    @cached_property
    def spec(self) -> EnvSpec:
        observation = dict(self.env.spec.observation)
        observation[ACTION_MASK] = Box(observation.pop(self.key).shape, np.bool_, 0, 1)
        return replace(self.env.spec, observation=observation)

    def reset(self, key: Key) -> tuple[ArrayTree, TimeStep]:
        return self._rename(*self.env.reset(key))

    def step(self, key: Key, state: ArrayTree, action: Array) -> tuple[ArrayTree, TimeStep]:
        return self._rename(*self.env.step(key, state, action))

    def _rename(self, state: ArrayTree, timestep: TimeStep) -> tuple[ArrayTree, TimeStep]:
        observation = dict(timestep.observation)
        observation[ACTION_MASK] = observation.pop(self.key).astype(bool)
        return state, timestep._replace(observation=observation)


def _seen(observation: Any) -> Any:
    """The observation, or its tree of spaces, without the action mask."""
    if isinstance(observation, Mapping):
        return {name: leaf for name, leaf in observation.items() if name != ACTION_MASK}
    return observation


def _map_seen(function: Callable, observation: Any, *rest: Any) -> Any:
    """Maps over the leaves of an observation, or its tree of spaces, but leaves the action mask as it is."""
    mapped = jax.tree.map(function, _seen(observation), *map(_seen, rest))
    if isinstance(observation, Mapping) and ACTION_MASK in observation:
        mapped[ACTION_MASK] = observation[ACTION_MASK]
    return mapped


def _with_channels(leaf: Any) -> Any:
    return leaf[..., None] if leaf.ndim in (0, 2) else leaf


def _flat_leaf(space: Box | Discrete, leaf: Array) -> Array:
    if isinstance(space, Discrete):
        return jax.nn.one_hot(leaf - space.start, space.num_values, dtype=jnp.float32)
    flat = leaf.reshape(-1).astype(jnp.float32)
    return flat / 255.0 if space.dtype == np.uint8 else flat


def _flat_bound(space: Box | Discrete, which: str) -> np.ndarray:
    if isinstance(space, Discrete):
        return np.full(space.num_values, float(which == "high"), np.float32)
    bound = np.broadcast_to(np.asarray(getattr(space, which), np.float32), space.shape).reshape(-1)
    return bound / np.float32(255.0) if space.dtype == np.uint8 else bound
