"""A pool of EnvPool behind `HostEnv`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from podracer.envs.gymnasium_spaces import convert_observation, env_spec, known_limit
from podracer.envs.host_actions import HostActions
from podracer.envs.host_stream import NextStepStream
from podracer.spaces import StackedFrames
from podracer.types import ArrayTree, TimeStep


class EnvPoolHost:
    """Environments that EnvPool steps and resets, in step with each other."""

    def __init__(
        self,
        env_id: str,
        pool_spec: Any,
        make_pool: Callable[[np.ndarray], Any],
        num_envs: int,
        *,
        has_lives: bool,
        stacked_frames: StackedFrames | None = None,
    ):
        """Makes no pool yet.

        Args:
          env_id: EnvPool's name of the environment.
          pool_spec: EnvPool's own spec.
          make_pool: makes a pool of `num_envs` environments from `[B]` seeds.
          num_envs: B.
          has_lives: whether `info` says how the whole game goes: its raw `reward`, and `terminated`
            when it is over, where the pool itself speaks of clipped rewards and single lives.
          stacked_frames: how the pool stacks frames, if it does.
        """
        limit = known_limit(pool_spec.config.max_episode_steps)
        self._space = pool_spec.observation_space
        spec, action_space = env_spec(env_id, self._space, pool_spec.action_space, limit)
        self.spec = replace(spec, stacked_frames=stacked_frames)
        self.num_envs = num_envs
        self._who = f"EnvPool's {env_id}"
        self._actions = HostActions(action_space, pool_spec.action_array_spec["action"].dtype, num_envs, self._who)
        self._has_lives = has_lives
        self._make_pool = make_pool
        self._pool = None
        self._stream = NextStepStream(num_envs)

    def reset(self, seeds: np.ndarray) -> TimeStep:
        """Makes a new pool with these seeds and starts every environment."""
        self.close()
        self._pool = self._make_pool(seeds)
        observation, info = self._pool.reset()
        return self._stream.first(self._convert(observation, info["env_id"]))

    def step(self, action: np.ndarray) -> TimeStep:
        if self._pool is None:
            raise RuntimeError(f"{self._who} has to be reset before it is stepped")
        observation, reward, terminated, truncated, info = self._pool.step(self._actions(action))
        observation = self._convert(observation, info["env_id"])
        if not self._has_lives:
            return self._stream.step(observation, reward, terminated, truncated)
        game_over = info["terminated"].astype(bool)
        return self._stream.step(
            observation,
            reward,
            terminated | game_over,
            truncated,
            raw_reward=info["reward"],
            ended=game_over | truncated,
        )

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            # The pool's threads end with the object, not with `close`.
            self._pool = None

    def _convert(self, observation: Any, env_id: np.ndarray) -> ArrayTree:
        """Checks that the batch is whole and in order, and converts its observations."""
        if not np.array_equal(env_id, np.arange(self.num_envs)):
            raise RuntimeError(
                f"{self._who} returned {len(env_id)} rows, of the environments {env_id[:8].tolist()}...;"
                f" expected {self.num_envs} rows, in order from 0"
            )
        # EnvPool fills a new buffer for every batch, so what has the right dtype is not copied.
        return convert_observation(self._space, observation, copy=False)
