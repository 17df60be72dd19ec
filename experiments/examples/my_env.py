"""An environment of your own in one file, as pure functions, so that it runs under both runners.

    podracer train env=custom_jax env.make=my_env:make_corridor env.kwargs.length=7
    podracer train env=custom_jax env.make=my_env:make_corridor runner=sebulba

from this folder, or with it on PYTHONPATH. The protocol is `JaxEnv` in `podracer/envs/base.py`. A
Gymnasium environment needs no such file: `env=custom_host env.make=package.module:function`.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podracer.envs.base import restart, transition
from podracer.spaces import Box, Discrete, EnvSpec


class CorridorState(NamedTuple):
    position: jax.Array  # [] int32
    time: jax.Array  # [] int32


@dataclass(frozen=True)
class Corridor:
    """Walk left or right along a corridor; the reward 1 is at its right end, the start anywhere.

    One environment: batches, resets and episode statistics are made around it.
    """

    length: int = 7
    time_limit: int = 20

    @property
    def spec(self):
        observation = Box(shape=(self.length,), dtype=np.float32, low=0.0, high=1.0)
        return EnvSpec("corridor", observation, action=Discrete(2), time_limit=self.time_limit, can_truncate=True)

    def reset(self, key):
        position = jax.random.randint(key, (), 0, self.length - 1, jnp.int32)
        state = CorridorState(position, jnp.int32(0))
        return state, restart(self._observe(state))

    def step(self, key, state, action):
        position = jnp.clip(state.position + 2 * action - 1, 0, self.length - 1)
        state = CorridorState(position, state.time + 1)
        arrived = position == self.length - 1
        # `terminated` is a true end: nothing comes after it. `truncated` is out of time: agents go on
        # to value what would have come. If both are true, terminated wins.
        return state, transition(
            reward=arrived,
            observation=self._observe(state),
            terminated=arrived,
            truncated=state.time >= self.time_limit,
        )

    def _observe(self, state):
        return jax.nn.one_hot(state.position, self.length, dtype=jnp.float32)


def make_corridor(length: int = 7):
    """Called once, with `env.kwargs`."""
    return Corridor(length)
