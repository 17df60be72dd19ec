"""CartPole whose steps take a while, as those of a simulator on other cores do."""

import time
from typing import Any

import gymnasium


class Slow(gymnasium.vector.VectorWrapper):
    """Waits at every step of the whole batch; the wait takes no core."""

    def __init__(self, env: gymnasium.vector.VectorEnv, seconds: float):
        super().__init__(env)
        self._seconds = seconds

    def step(self, actions: Any) -> tuple:
        time.sleep(self._seconds)
        return super().step(actions)


def make(num_envs: int, milliseconds: float = 2.0) -> gymnasium.vector.VectorEnv:
    """Makes a batch whose steps wait for some milliseconds; 0 only gives way to other threads."""
    batch = gymnasium.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="vector_entry_point")
    return Slow(batch, milliseconds / 1000)
