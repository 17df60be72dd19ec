"""A Gymnasium `VectorEnv` as a batch that resets on the next step, whichever way it resets itself."""

from typing import Any

import jax
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from podracer.envs.gymnasium_spaces import convert_observation, env_spec, known_limit
from podracer.envs.host_actions import HostActions
from podracer.envs.host_stream import NextStepStream
from podracer.types import ArrayTree, TimeStep


class VectorLoop:
    """Steps a `VectorEnv`, whose `metadata["autoreset_mode"]` says how it resets.

    NEXT_STEP is our own convention. In the two other modes an environment cannot stand still for
    the step after its last while the others move, as `step` moves all of them. So it is moved along,
    what comes of that is dropped, and it is reset a second time, alone (`options={"reset_mask": ...}`):
    a step and a reset more an episode than NEXT_STEP needs.

      DISABLED:  reset(mask), step, reset(mask)   the first because an environment that has ended must not be stepped
      SAME_STEP: step, reset(mask)                its true last observation is `info["final_obs"]`

    Gymnasium promises `reset_mask` for DISABLED only; under SAME_STEP its own two vector environments know it
    and others are refused.
    """

    def __init__(self, env: VectorEnv, env_id: str):
        """Takes the environment over.

        Raises:
          ValueError: for a mode that is unknown or cannot be converted, and for spaces that are not supported.
        """
        self._mode = _autoreset_mode(env, env_id)
        self._env = env
        self._space = env.single_observation_space
        limit = known_limit(env.spec.max_episode_steps if env.spec else None)
        self.spec, action_space = env_spec(env_id, self._space, env.single_action_space, limit)
        self.num_envs = env.num_envs
        self._actions = HostActions(action_space, env.single_action_space.dtype, self.num_envs, env_id)
        self._stream = NextStepStream(self.num_envs)

    def reset(self, seeds: np.ndarray) -> TimeStep:
        """Starts every environment; a `VectorEnv` of another kind than Gymnasium's own is seeded by the first seed."""
        is_own_kind = isinstance(self._env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        observation, _ = self._env.reset(seed=[int(seed) for seed in seeds] if is_own_kind else int(seeds[0]))
        return self._stream.first(self._convert(observation))

    def step(self, action: np.ndarray) -> TimeStep:
        action, restarting = self._actions(action), self._stream.restarting
        if self._mode is AutoresetMode.DISABLED and restarting.any():
            self._reset(restarting)
        observation, reward, terminated, truncated, info = self._env.step(action)
        observation = self._convert(observation)
        if self._mode is not AutoresetMode.NEXT_STEP:
            terminated, truncated = terminated & ~restarting, truncated & ~restarting
            if self._mode is AutoresetMode.SAME_STEP:
                for i in np.flatnonzero(terminated | truncated):
                    last = convert_observation(self._space, info["final_obs"][i], copy=False)
                    _write(observation, i, last)
            if restarting.any():
                _write(observation, restarting, self._reset(restarting))
        return self._stream.step(observation, reward, terminated, truncated)

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None

    def _reset(self, rows: np.ndarray) -> ArrayTree:
        """Resets the environments in `rows`, `[B]` bool, and returns their first observations."""
        observation, _ = self._env.reset(options={"reset_mask": rows.copy()})
        return jax.tree.map(lambda leaf: leaf[rows], self._convert(observation))

    def _convert(self, observation: Any) -> ArrayTree:
        # Copied: a vector environment may write into the same arrays again.
        return convert_observation(self._space, observation, copy=True)


def _autoreset_mode(env: VectorEnv, env_id: str) -> AutoresetMode:
    declared = env.metadata.get("autoreset_mode")
    try:
        mode = AutoresetMode(declared)
    except ValueError:
        raise ValueError(
            f'{env_id}: metadata["autoreset_mode"] is {declared!r}, so how it resets is not known;'
            f" it has to be one of {', '.join(map(str, AutoresetMode))}"
        ) from None
    if mode is AutoresetMode.SAME_STEP and not isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv):
        raise ValueError(
            f"{env_id}: a {type(env.unwrapped).__name__} that resets on the same step cannot be converted;"
            " construct it with autoreset_mode=AutoresetMode.NEXT_STEP"
        )
    return mode


def _write(observation: ArrayTree, rows: Any, values: ArrayTree) -> None:
    def write(leaf: np.ndarray, value: np.ndarray) -> None:
        leaf[rows] = value

    jax.tree.map(write, observation, values)
