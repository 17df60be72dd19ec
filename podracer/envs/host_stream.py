"""From the flags of a batch of host environments to the stream of time steps that agents see."""

import numpy as np

from podracer.types import ArrayTree, EpisodeStatistics, StepType, TimeStep


class NextStepStream:
    """Writes `TimeStep`s for a batch that resets on the next step, and keeps its episode statistics."""

    def __init__(self, num_envs: int):
        self.restarting = np.zeros(num_envs, bool)  # [B] rows that were LAST: the next step only resets them
        self._ended = np.zeros(num_envs, bool)  # [B] rows whose whole episode is over
        self._return = np.zeros(num_envs, np.float64)
        self._length = np.zeros(num_envs, np.int32)

    def first(self, observation: ArrayTree) -> TimeStep:
        """Begins an episode in every row."""
        for state in (self.restarting, self._ended, self._return, self._length):
            state[:] = 0
        num_envs = len(self.restarting)
        return TimeStep(
            step_type=np.full(num_envs, StepType.FIRST),
            reward=np.zeros(num_envs, np.float32),
            discount=np.ones(num_envs, np.float32),
            observation=observation,
            extras=self._statistics(),
        )

    def step(
        self,
        observation: ArrayTree,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        *,
        raw_reward: np.ndarray | None = None,
        ended: np.ndarray | None = None,
    ) -> TimeStep:
        """Makes the time steps that follow an action.

        Rows in `restarting` become FIRST, whatever their reward says. Terminated and truncated
        together is a true end.

        Args:
          observation: leaves `[B, ...]`, of the new episode in rows that restart.
          reward: `[B]` what the agent learns from.
          terminated: `[B]` bool, a true end for the agent.
          truncated: `[B]` bool, a cut by a limit.
          raw_reward: `[B]` what the statistics add up, if it differs from `reward`.
          ended: `[B]` bool, the end of the episode that the statistics are about, if the agent's
            episodes are shorter (lives of a game).
        """
        is_first = self.restarting
        is_last = terminated | truncated
        raw_reward = reward if raw_reward is None else raw_reward
        ended = is_last if ended is None else ended

        self._return[self._ended] = 0.0
        self._length[self._ended] = 0
        self._return += np.where(is_first, 0.0, raw_reward)
        self._length += ~is_first
        self._ended = ended & ~is_first
        self.restarting = is_last
        return TimeStep(
            step_type=np.where(is_first, StepType.FIRST, np.where(is_last, StepType.LAST, StepType.MID)),
            reward=np.where(is_first, 0.0, reward).astype(np.float32),
            discount=(is_first | ~terminated).astype(np.float32),
            observation=observation,
            extras=self._statistics(),
        )

    def _statistics(self) -> EpisodeStatistics:
        return EpisodeStatistics(self._return.astype(np.float32), self._length.copy(), self._ended.copy())
