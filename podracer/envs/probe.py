"""Probe environments: each isolates one thing that can be wrong, and its right values are known.

`env=probe env.id=NAME`; `env.kwargs` are the fields of the class. γ is the discount factor.
Those that need memory, masks or tree observations are in `probe_structures.py`.
"""

from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

from podracer.envs.base import EnvConfig, JaxEnv, restart, transition
from podracer.envs.probe_structures import ActionMask, Memory, Tree
from podracer.importing import call
from podracer.spaces import Box, Discrete, EnvSpec, to_env_action
from podracer.suggest import did_you_mean
from podracer.types import Array, Key, TimeStep

_TWO_ACTIONS = Discrete(2)


@dataclass(frozen=True)
class ConstantReward:
    """One step, reward 1, nothing to see: V = 1. Tests that a value is learnt at all."""

    @cached_property
    def spec(self) -> EnvSpec:
        return _spec("constant_reward")

    def reset(self, key: Key) -> tuple[Array, TimeStep]:
        return _nothing(), restart(_nothing())

    def step(self, key: Key, state: Array, action: Array) -> tuple[Array, TimeStep]:
        return state, transition(1.0, _nothing(), terminated=True)


@dataclass(frozen=True)
class ObservedReward:
    """One step, the observation −1 or 1 is the reward: V(o) = o. Tests that the network sees."""

    @cached_property
    def spec(self) -> EnvSpec:
        return _spec("observed_reward", low=-1.0, high=1.0)

    def reset(self, key: Key) -> tuple[Array, TimeStep]:
        sign = jax.random.rademacher(key, (1,), jnp.float32)
        return sign, restart(sign)

    def step(self, key: Key, state: Array, action: Array) -> tuple[Array, TimeStep]:
        return state, transition(state[0], state, terminated=True)


@dataclass(frozen=True)
class ChosenReward:
    """One step, reward 1 for action 1 and −1 for action 0: V → 1. Tests that the policy learns."""

    @cached_property
    def spec(self) -> EnvSpec:
        return _spec("chosen_reward")

    def reset(self, key: Key) -> tuple[Array, TimeStep]:
        return _nothing(), restart(_nothing())

    def step(self, key: Key, state: Array, action: Array) -> tuple[Array, TimeStep]:
        return state, transition(2 * action - 1, _nothing(), terminated=True)


@dataclass(frozen=True)
class MatchedReward:
    """One step, the observation is −1 or 1, reward 1 for action 0 or 1 accordingly, else −1: V → 1.

    Tests that the policy depends on the observation.
    """

    @cached_property
    def spec(self) -> EnvSpec:
        return _spec("matched_reward", low=-1.0, high=1.0)

    def reset(self, key: Key) -> tuple[Array, TimeStep]:
        sign = jax.random.rademacher(key, (1,), jnp.float32)
        return sign, restart(sign)

    def step(self, key: Key, state: Array, action: Array) -> tuple[Array, TimeStep]:
        return state, transition(state[0] * (2 * action - 1), state, terminated=True)


@dataclass(frozen=True)
class Discounting:
    """Two steps, the observations 0 and 1, reward 1 after the second: V(0) = γ, V(1) = 1."""

    @cached_property
    def spec(self) -> EnvSpec:
        return _spec("discounting", high=2.0)

    def reset(self, key: Key) -> tuple[Array, TimeStep]:
        return _nothing(), restart(_nothing())

    def step(self, key: Key, state: Array, action: Array) -> tuple[Array, TimeStep]:
        state = state + 1.0
        ended = state[0] >= 2.0
        return state, transition(ended, state, terminated=ended)


@dataclass(frozen=True)
class Truncated:
    """Reward 1 at each step of an endless task that is cut every `num_steps`: V = 1 / (1 − γ).

    Right only if a truncation bootstraps: as true ends, the cuts would give
    V = (1 − γᴺ) / (1 − γ) at most. There is nothing to see, time included.
    """

    num_steps: int = 5

    @cached_property
    def spec(self) -> EnvSpec:
        return _spec("truncated", time_limit=self.num_steps, can_truncate=True)

    def reset(self, key: Key) -> tuple[Array, TimeStep]:
        return jnp.int32(0), restart(_nothing())

    def step(self, key: Key, state: Array, action: Array) -> tuple[Array, TimeStep]:
        state = state + 1
        return state, transition(1.0, _nothing(), truncated=state >= self.num_steps)


@dataclass(frozen=True)
class ContinuousAction:
    """One step, reward −(a − target)²: the best action is `target`, V → 0.

    The action is the environment's own, in [low, high]; an agent's is 2 (a − low) / (high − low) − 1.
    """

    target: float = 1.0
    low: float = -2.0
    high: float = 2.0

    @cached_property
    def spec(self) -> EnvSpec:
        return _spec("continuous_action", action=Box((1,), np.float32, self.low, self.high))

    def reset(self, key: Key) -> tuple[Array, TimeStep]:
        return _nothing(), restart(_nothing())

    def step(self, key: Key, state: Array, action: Array) -> tuple[Array, TimeStep]:
        action = to_env_action(self.spec.action, action, jnp)
        return state, transition(-((action[0] - self.target) ** 2), _nothing(), terminated=True)


@dataclass(frozen=True)
class Counter:
    """Counts its steps: observations 0, 1, 2, ... `num_steps`, the same reward at each step.

    It ends on reaching `num_steps`, truly or by truncation.
    """

    num_steps: int = 3
    reward: float = 1.0
    truncates: bool = False

    @cached_property
    def spec(self) -> EnvSpec:
        time_limit = self.num_steps if self.truncates else None
        return _spec("counter", high=float(self.num_steps), time_limit=time_limit, can_truncate=self.truncates)

    def reset(self, key: Key) -> tuple[Array, TimeStep]:
        return jnp.int32(0), restart(_nothing())

    def step(self, key: Key, state: Array, action: Array) -> tuple[Array, TimeStep]:
        state = state + 1
        ended = state >= self.num_steps
        observation = state.astype(jnp.float32)[None]
        return state, transition(
            self.reward, observation, terminated=ended & (not self.truncates), truncated=ended & self.truncates
        )


PROBES = {
    "constant_reward": ConstantReward,
    "observed_reward": ObservedReward,
    "chosen_reward": ChosenReward,
    "matched_reward": MatchedReward,
    "discounting": Discounting,
    "truncated": Truncated,
    "continuous_action": ContinuousAction,
    "counter": Counter,
    "memory": Memory,
    "action_mask": ActionMask,
    "tree": Tree,
}


def make(config: EnvConfig) -> JaxEnv:
    """Makes the probe `env.id` with `env.kwargs` as its fields."""
    if config.id not in PROBES:
        raise ValueError(f"env.id={config.id!r} is no probe; {did_you_mean(config.id, PROBES)}")
    return call(PROBES[config.id], config.kwargs, "env.kwargs")


def _nothing() -> Array:
    return jnp.zeros((1,), jnp.float32)


def _spec(
    id: str,
    low: float = 0.0,
    high: float = 0.0,
    action: Discrete | Box = _TWO_ACTIONS,
    time_limit: int | None = None,
    can_truncate: bool = False,
) -> EnvSpec:
    return EnvSpec(f"probe/{id}", Box((1,), np.float32, low, high), action, time_limit, can_truncate)
