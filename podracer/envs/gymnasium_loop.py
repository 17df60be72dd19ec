"""Single Gymnasium environments as one batch."""

from collections.abc import Sequence

import gymnasium
import jax
import numpy as np

from podracer.envs.gymnasium_spaces import convert_observation, env_spec, known_limit
from podracer.envs.host_actions import HostActions
from podracer.envs.host_stream import NextStepStream
from podracer.faults import EnvFault
from podracer.spaces import zeros
from podracer.types import ArrayTree, TimeStep


class EnvLoop:
    """Steps `[B]` environments one after the other and resets each on the step after its last."""

    def __init__(self, envs: Sequence[gymnasium.Env], env_id: str, time_limit: int | None = None):
        """Takes the environments over.

        Args:
          envs: B environments with equal spaces.
          env_id: their name in messages.
          time_limit: what truncates them, if it is not the limit that they are registered with.

        Raises:
          ValueError: if their spaces differ or are not supported.
        """
        first = envs[0]
        for index, env in enumerate(envs):
            theirs, expected = (env.observation_space, env.action_space), (first.observation_space, first.action_space)
            if theirs != expected:
                raise ValueError(f"{env_id}: environment {index} has the spaces {theirs}, environment 0 {expected}")
        if time_limit is None and first.spec is not None:
            time_limit = known_limit(first.spec.max_episode_steps)
        self._space = first.observation_space
        self.spec, action_space = env_spec(env_id, self._space, first.action_space, time_limit)
        self.num_envs = len(envs)
        self._actions = HostActions(action_space, first.action_space.dtype, self.num_envs, env_id)
        self._envs = tuple(envs)
        self._stream = NextStepStream(self.num_envs)

    def reset(self, seeds: np.ndarray) -> TimeStep:
        rows = [self._row(env.reset(seed=int(seed))[0]) for env, seed in zip(self._envs, seeds, strict=True)]
        return self._stream.first(self._stack(rows))

    def step(self, action: np.ndarray) -> TimeStep:
        action = self._actions(action)
        reward = np.zeros(self.num_envs, np.float32)
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        rows = []
        for i, env in enumerate(self._envs):
            if self._stream.restarting[i]:
                observation, _ = env.reset()
            else:
                observation, reward[i], terminated[i], truncated[i], _ = env.step(action[i])
            rows.append(self._row(observation))
        return self._stream.step(self._stack(rows), reward, terminated, truncated)

    def close(self) -> None:
        for env in self._envs:
            env.close()
        self._envs = ()

    def _row(self, observation: ArrayTree) -> ArrayTree:
        # Copied at once: an environment may write into the same array again, or share it with another.
        return convert_observation(self._space, observation, copy=True)

    def _stack(self, rows: Sequence[ArrayTree]) -> ArrayTree:
        try:
            return jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
        except ValueError as error:
            declared = jax.tree.map(np.shape, zeros(self.spec.observation))
            for index, row in enumerate(rows):
                shape = jax.tree.map(np.shape, row)
                if shape != declared:
                    raise EnvFault(f"environment {index} gave an observation {shape} that is {declared}") from error
            raise
