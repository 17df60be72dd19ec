"""Wrappers of a batch of host environments as configuration, as `wrappers.py` has them for JAX environments.

What they do to the spec is said there, once; here is what they do to NumPy arrays.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from podracer.envs.base import EnvConfig, HostEnv
from podracer.envs.observations import FLAT, FlattenObservation, FrameStack, RenameMask
from podracer.envs.wrappers import RewardTransform
from podracer.spaces import ACTION_MASK, Discrete, EnvSpec, check_action_mask
from podracer.types import ArrayTree, TimeStep

Convert = Callable[[TimeStep], TimeStep]


class Converted:
    """An environment whose time steps are converted, in order, and whose spec follows."""

    def __init__(self, env: HostEnv, spec: EnvSpec, convert: Convert):
        self.spec = spec
        self.num_envs = env.num_envs
        self._env = env
        self._convert = convert

    def reset(self, seeds: np.ndarray) -> TimeStep:
        return self._convert(self._env.reset(seeds))

    def step(self, action: np.ndarray) -> TimeStep:
        return self._convert(self._env.step(action))

    def close(self) -> None:
        self._env.close()


def wrap_host(env: HostEnv, config: EnvConfig) -> HostEnv:
    """Wraps host environments as the configuration says, in the one right order.

    From the inside out: rewards, action mask, frame stack, flattening. Time limits and episode
    statistics, which stay raw, are the adaptor's.

    Raises:
      ValueError: a setting that these environments cannot have.
    """
    _refuse_device_settings(config)
    if config.reward_scale != 1.0 or config.reward_clip is not None:
        transform = RewardTransform(env, config.reward_scale, config.reward_clip)
        env = Converted(env, transform.spec, _convert_reward(transform.scale, transform.clip))
    observation = env.spec.observation
    has_mask = isinstance(observation, Mapping) and config.action_mask_key in observation
    if has_mask or config.action_mask_key != ACTION_MASK:
        spec = RenameMask(env, config.action_mask_key).spec
        env = Converted(env, spec, _convert_mask(config.action_mask_key, spec))
    if config.frame_stack != 1:
        spec = FrameStack(env, config.frame_stack).spec
        env = Converted(env, spec, _Stack(config.frame_stack))
    if config.flatten:
        env = Converted(env, FlattenObservation(env).spec, _convert_to_vector(env.spec.observation))
    return env


def _refuse_device_settings(config: EnvConfig) -> None:
    """Refuses settings that mean nothing to this suite, as they would be ignored."""
    if config.preset is not None and config.suite != "envpool":
        raise ValueError(f"env.preset={config.preset} is for env.suite=envpool; env.suite={config.suite} has none")
    for key, value, neutral in (
        ("params", dict(config.params), {}),
        ("autoreset", config.autoreset, "next_step"),
        ("resets_per_step", config.resets_per_step, None),
    ):
        if value != neutral:
            raise ValueError(f"env.{key}={value} is for JAX environments; env.suite={config.suite} runs on the host")


def _convert_reward(scale: float, clip: float | None) -> Convert:
    bound = np.float32(np.inf if clip is None else clip)

    def convert(timestep: TimeStep) -> TimeStep:
        return timestep._replace(reward=np.clip(timestep.reward * np.float32(scale), -bound, bound))

    return convert


def _convert_mask(key: str, spec: EnvSpec) -> Convert:
    def convert(timestep: TimeStep) -> TimeStep:
        observation = dict(timestep.observation)
        action_mask = observation.pop(key).astype(bool)
        check_action_mask(action_mask, timestep.is_last, spec.id)
        return timestep._replace(observation={**observation, ACTION_MASK: action_mask})

    return convert


class _Stack:
    """Stacks the last observations along the last axis, newest last; FIRST fills the stack."""

    def __init__(self, num_frames: int):
        self._num_frames = num_frames
        self._stack: list[np.ndarray] = []  # [B, ..., N·C] a leaf

    def __call__(self, timestep: TimeStep) -> TimeStep:
        seen, action_mask = _split_mask(timestep.observation)
        leaves, structure = jax.tree.flatten(seen)
        self._stack = [self._push(i, leaf, timestep.is_first) for i, leaf in enumerate(leaves)]
        # Copied, as the next stack is made from this one and an observation belongs to whoever gets it.
        observation = structure.unflatten([stack.copy() for stack in self._stack])
        return timestep._replace(observation={**observation, **action_mask} if action_mask else observation)

    def _push(self, index: int, leaf: np.ndarray, is_first: np.ndarray) -> np.ndarray:
        newest = leaf[..., None] if leaf.ndim in (1, 3) else leaf  # [B, ..., C]
        if is_first.all():
            return np.concatenate([newest] * self._num_frames, axis=-1)
        stack = np.concatenate([self._stack[index][..., newest.shape[-1] :], newest], axis=-1)
        stack[is_first] = np.concatenate([newest[is_first]] * self._num_frames, axis=-1)
        return stack


def _convert_to_vector(space: Any) -> Convert:
    spaces = jax.tree.leaves(_split_mask(space)[0])

    def flatten(leaf_space: Any, leaf: np.ndarray) -> np.ndarray:
        if isinstance(leaf_space, Discrete):
            return (leaf[:, None] == leaf_space.start + np.arange(leaf_space.num_values)).astype(np.float32)
        flat = leaf.reshape(len(leaf), -1).astype(np.float32)
        return flat / np.float32(255.0) if leaf_space.dtype == np.uint8 else flat

    def convert(timestep: TimeStep) -> TimeStep:
        seen, action_mask = _split_mask(timestep.observation)
        vector = np.concatenate([flatten(*pair) for pair in zip(spaces, jax.tree.leaves(seen), strict=True)], axis=-1)
        return timestep._replace(observation={FLAT: vector, **action_mask} if action_mask else vector)

    return convert


def _split_mask(observation: Any) -> tuple[ArrayTree, dict[str, Any]]:
    """Takes the action mask, which is neither stacked nor flattened, out of an observation or its spaces."""
    if not (isinstance(observation, Mapping) and ACTION_MASK in observation):
        return observation, {}
    seen = {name: leaf for name, leaf in observation.items() if name != ACTION_MASK}
    return seen, {ACTION_MASK: observation[ACTION_MASK]}
