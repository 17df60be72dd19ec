"""Wrappers of a JAX environment as configuration: time limit, episode statistics, rewards.

Those that change the observation are in `observations.py`. Each takes and is a `JaxEnv`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import jax.numpy as jnp

from podracer.envs.base import EnvConfig, JaxEnv
from podracer.envs.observations import FlattenObservation, FrameStack, RenameMask
from podracer.spaces import ACTION_MASK, EnvSpec
from podracer.types import Array, ArrayTree, EpisodeStatistics, Key, StepType, TimeStep


class TimeLimitState(NamedTuple):
    env: ArrayTree
    episode_length: Array  # [] int32


@dataclass(frozen=True)
class TimeLimit:
    """Truncates an episode after exactly `num_steps` steps; a true end on that very step stays one.

    It cannot lift a limit that the environment has of its own, so a longer one is refused.
    """

    env: JaxEnv
    num_steps: int

    def __post_init__(self):
        own = self.env.spec.time_limit
        if self.num_steps < 1:
            raise ValueError(f"env.time_limit={self.num_steps} must be at least 1, or null for none")
        if own is not None and self.num_steps > own:
            raise ValueError(
                f"env.time_limit={self.num_steps} has no effect: {self.env.spec.id} ends after {own} steps by itself; "
                f"use at most {own}, or lift its own limit"
            )

    @cached_property
    def spec(self) -> EnvSpec:
        return replace(self.env.spec, time_limit=self.num_steps, can_truncate=True)

    def reset(self, key: Key) -> tuple[TimeLimitState, TimeStep]:
        env_state, timestep = self.env.reset(key)
        return TimeLimitState(env_state, jnp.int32(0)), timestep

    def step(self, key: Key, state: TimeLimitState, action: Array) -> tuple[TimeLimitState, TimeStep]:
        env_state, timestep = self.env.step(key, state.env, action)
        episode_length = state.episode_length + 1
        # The discount is left alone: 1 in the middle of an episode, 0 after a true end.
        step_type = jnp.where(episode_length >= self.num_steps, StepType.LAST, timestep.step_type)
        return TimeLimitState(env_state, episode_length), timestep._replace(step_type=step_type)


class RecordEpisodesState(NamedTuple):
    env: ArrayTree
    statistics: EpisodeStatistics


@dataclass(frozen=True)
class RecordEpisodes:
    """Puts `EpisodeStatistics` into the timesteps' extras.

    It records the rewards that it sees: it sits above what ends episodes, below what changes rewards.
    """

    env: JaxEnv

    @property
    def spec(self) -> EnvSpec:
        return self.env.spec

    def reset(self, key: Key) -> tuple[RecordEpisodesState, TimeStep]:
        env_state, timestep = self.env.reset(key)
        statistics = EpisodeStatistics(jnp.float32(0.0), jnp.int32(0), jnp.asarray(False))
        return RecordEpisodesState(env_state, statistics), timestep._replace(extras=statistics)

    def step(self, key: Key, state: RecordEpisodesState, action: Array) -> tuple[RecordEpisodesState, TimeStep]:
        env_state, timestep = self.env.step(key, state.env, action)
        statistics = EpisodeStatistics(
            episode_return=state.statistics.episode_return + timestep.reward,
            episode_length=state.statistics.episode_length + 1,
            ended=timestep.is_last,
        )
        return RecordEpisodesState(env_state, statistics), timestep._replace(extras=statistics)


@dataclass(frozen=True)
class RewardTransform:
    """Scales rewards, then clips them: r ← clip(scale · r, −clip, clip)."""

    env: JaxEnv
    scale: float = 1.0
    clip: float | None = None

    def __post_init__(self):
        if self.clip is not None and self.clip <= 0:
            raise ValueError(f"env.reward_clip={self.clip} must be above 0, or null for no clipping")

    @property
    def spec(self) -> EnvSpec:
        return self.env.spec

    def reset(self, key: Key) -> tuple[ArrayTree, TimeStep]:
        return self.env.reset(key)

    def step(self, key: Key, state: ArrayTree, action: Array) -> tuple[ArrayTree, TimeStep]:
        state, timestep = self.env.step(key, state, action)
        reward = timestep.reward * self.scale
        if self.clip is not None:
            reward = jnp.clip(reward, -self.clip, self.clip)
        return state, timestep._replace(reward=reward)


def wrap(env: JaxEnv, config: EnvConfig) -> JaxEnv:
    """Wraps an environment as the configuration says, in the one right order.

    From the inside out: time limit, episode statistics (raw), rewards, action mask, frame stack
    (in the environment's own dtype), flattening.

    Raises:
      ValueError: a setting that this environment cannot have.
    """
    if config.time_limit is not None and config.time_limit != env.spec.time_limit:
        env = TimeLimit(env, config.time_limit)
    env = RecordEpisodes(env)
    if config.reward_scale != 1.0 or config.reward_clip is not None:
        env = RewardTransform(env, config.reward_scale, config.reward_clip)
    has_mask = isinstance(env.spec.observation, Mapping) and config.action_mask_key in env.spec.observation
    if has_mask or config.action_mask_key != ACTION_MASK:
        env = RenameMask(env, config.action_mask_key)
    if config.frame_stack != 1:
        env = FrameStack(env, config.frame_stack)
    if config.flatten:
        env = FlattenObservation(env)
    return env
