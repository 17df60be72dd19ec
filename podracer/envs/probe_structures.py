"""Probe environments whose difficulty is in what is seen: memory, legal actions, trees of observations."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podracer.envs.base import restart, transition
from podracer.spaces import ACTION_MASK, Box, Discrete, EnvSpec
from podracer.types import Array, ArrayTree, Key, TimeStep


class MemoryState(NamedTuple):
    cue: Array  # [] f32, −1 or 1
    time: Array  # [] int32


@dataclass(frozen=True)
class Memory:
    """Shows a cue, −1 or 1, and asks for it `length` steps later.

    Observations `[cue, ask]`: the cue is shown on the first alone, 0 after; `ask` is 1 where the next
    action, 0 or 1, is the answer. Reward 1 or −1 for it, 0 before. With memory V → γᴸ⁻¹ on
    the first observation, without it the expected return is 0. `length=1` needs no memory.
    """

    length: int = 4

    @cached_property
    def spec(self) -> EnvSpec:
        return EnvSpec("probe/memory", Box((2,), np.float32, -1.0, 1.0), Discrete(2), can_truncate=False)

    def reset(self, key: Key) -> tuple[MemoryState, TimeStep]:
        state = MemoryState(jax.random.rademacher(key, (), jnp.float32), jnp.int32(0))
        return state, restart(self._observe(state))

    def step(self, key: Key, state: MemoryState, action: Array) -> tuple[MemoryState, TimeStep]:
        state = MemoryState(state.cue, state.time + 1)
        ended = state.time >= self.length
        reward = jnp.where(ended, state.cue * (2 * action - 1), 0.0)
        return state, transition(reward, self._observe(state), terminated=ended)

    def _observe(self, state: MemoryState) -> Array:
        return jnp.stack([jnp.where(state.time == 0, state.cue, 0.0), jnp.float32(state.time == self.length - 1)])


@dataclass(frozen=True)
class ActionMask:
    """Endless choices among legal actions, which change at each step: reward 1 for a legal one, −1 else.

    At least one action is legal. The observation says nothing else, so that only an agent that obeys
    the mask gets the return `num_steps`; a true end follows.
    """

    num_actions: int = 4
    num_steps: int = 5

    @cached_property
    def spec(self) -> EnvSpec:
        observation = {
            "observation": Box((1,), np.float32, 0.0, 0.0),
            ACTION_MASK: Box((self.num_actions,), np.bool_, 0, 1),
        }
        return EnvSpec("probe/action_mask", observation, Discrete(self.num_actions), can_truncate=False)

    def reset(self, key: Key) -> tuple[ArrayTree, TimeStep]:
        mask = self._draw(key)
        return (mask, jnp.int32(0)), restart(self._observe(mask))

    def step(self, key: Key, state: ArrayTree, action: Array) -> tuple[ArrayTree, TimeStep]:
        mask, time = state
        reward = jnp.where(mask[action], 1.0, -1.0)
        mask, time = self._draw(key), time + 1
        return (mask, time), transition(reward, self._observe(mask), terminated=time >= self.num_steps)

    def _draw(self, key: Key) -> Array:
        legal_key, sure_key = jax.random.split(key)
        legal = jax.random.bernoulli(legal_key, 0.3, (self.num_actions,))
        return legal | (jnp.arange(self.num_actions) == jax.random.randint(sure_key, (), 0, self.num_actions))

    def _observe(self, mask: Array) -> ArrayTree:
        return {"observation": jnp.zeros((1,), jnp.float32), ACTION_MASK: mask}


class TreeState(NamedTuple):
    goal: Array  # [] int32
    time: Array  # [] int32


@dataclass(frozen=True)
class Tree:
    """A mapping of an image, a vector and a tuple; reward 1 for the action that the goal names, else 0.

    {"img": uint8 [4, 4, 1], all 255 on FIRST, darker by 85 a step; "vec": float32 [3], the time;
    "goal": (f32 [] goal, int32 [1] goal)}. The true end comes after 3 steps: V → 1 + γ + γ².
    """

    @cached_property
    def spec(self) -> EnvSpec:
        observation = {
            "img": Box((4, 4, 1), np.uint8, 0, 255),
            "vec": Box((3,), np.float32, 0.0, 3.0),
            "goal": (Box((), np.float32, 0.0, 1.0), Box((1,), np.int32, 0, 1)),
        }
        return EnvSpec("probe/tree", observation, Discrete(2), can_truncate=False)

    def reset(self, key: Key) -> tuple[TreeState, TimeStep]:
        state = TreeState(jax.random.randint(key, (), 0, 2), jnp.int32(0))
        return state, restart(self._observe(state))

    def step(self, key: Key, state: TreeState, action: Array) -> tuple[TreeState, TimeStep]:
        state = TreeState(state.goal, state.time + 1)
        return state, transition(action == state.goal, self._observe(state), terminated=state.time >= 3)

    def _observe(self, state: TreeState) -> ArrayTree:
        return {
            "img": jnp.full((4, 4, 1), 255 - 85 * state.time, jnp.uint8),
            "vec": jnp.full((3,), state.time, jnp.float32),
            "goal": (jnp.float32(state.goal), state.goal[None]),
        }
