"""Catch, the environment of the Podracer paper's Anakin: pure arithmetic, a few nanoseconds a step."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podracer.envs.base import EnvConfig, restart, transition
from podracer.importing import call
from podracer.spaces import Box, Discrete, EnvSpec
from podracer.types import Array, Key, TimeStep


class CatchState(NamedTuple):
    ball_row: Array  # [] int32
    ball_column: Array  # [] int32
    paddle_column: Array  # [] int32


@dataclass(frozen=True)
class Catch:
    """A ball falls one row a step; a paddle on the bottom row moves left, stays or moves right.

    The reward is 0 until the ball reaches the bottom row, after `rows - 1` steps: then 1 if the paddle
    is there, −1 if not, and the episode truly ends. The observation is the board, bool, True where
    the ball and the paddle are. Only the ball's column is random.

    "Behaviour Suite for Reinforcement Learning", Osband et al., arXiv 1908.03568.
    """

    rows: int = 10
    columns: int = 5

    def __post_init__(self):
        if self.rows < 2 or self.columns < 1:
            raise ValueError(
                f"env.kwargs of catch: rows={self.rows} must be at least 2, columns={self.columns} at least 1"
            )

    @cached_property
    def spec(self) -> EnvSpec:
        return EnvSpec("catch", Box((self.rows, self.columns), np.bool_, 0, 1), Discrete(3), can_truncate=False)

    def reset(self, key: Key) -> tuple[CatchState, TimeStep]:
        state = CatchState(
            ball_row=jnp.int32(0),
            # `randint` splits the key first, which would cost more than the rest of a step.
            ball_column=(jax.random.bits(key) % self.columns).astype(jnp.int32),
            paddle_column=jnp.int32(self.columns // 2),
        )
        return state, restart(self._observe(state))

    def step(self, key: Key, state: CatchState, action: Array) -> tuple[CatchState, TimeStep]:
        state = CatchState(
            ball_row=state.ball_row + 1,
            ball_column=state.ball_column,
            paddle_column=jnp.clip(state.paddle_column + action - 1, 0, self.columns - 1),
        )
        landed = state.ball_row == self.rows - 1
        caught = state.ball_column == state.paddle_column
        reward = jnp.where(landed, jnp.where(caught, 1.0, -1.0), 0.0)
        return state, transition(reward, self._observe(state), terminated=landed)

    def _observe(self, state: CatchState) -> Array:
        row, column = np.indices((self.rows, self.columns))
        ball = (row == state.ball_row) & (column == state.ball_column)
        paddle = (row == self.rows - 1) & (column == state.paddle_column)
        return ball | paddle


def make(config: EnvConfig) -> Catch:
    """Makes Catch; `env.kwargs` are `rows` and `columns`."""
    return call(Catch, config.kwargs, "env.kwargs")
