"""A trained policy outside of training: NumPy observations in, the environment's own actions out."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from podracer.agent import Agent
from podracer.randomness import run_key
from podracer.runners.learn import snapshot
from podracer.spaces import to_env_action
from podracer.types import Array, ArrayTree, Key, PolicySnapshot, StepType, TimeStep


class Policy:
    """Acts as the final evaluation of its run did. Keeps the memory of a recurrent agent between calls."""

    def __init__(self, agent: Agent, snapshot: PolicySnapshot):
        self._agent = agent
        self._snapshot = snapshot
        self._state: ArrayTree | None = None
        self._calls = 0

        def act(snapshot, state, timestep, key, greedy):
            state, output = agent.act(snapshot, state, timestep, key, evaluation=greedy)
            return state, output.action

        self._act = jax.jit(act, static_argnames="greedy")

    def __call__(
        self, observation: ArrayTree, is_first: Array | None = None, *, greedy: bool = True, seed: int = 0
    ) -> np.ndarray:
        """Chooses an action for each of a batch of observations.

        Args:
          observation: `[B, ...]`, of the shapes and dtypes that the agent was trained on.
          is_first: `[B]` bool, where an episode begins; None says everywhere at the first call and
            nowhere after it. Only agents with a memory look at it.
          greedy: take the most likely action, or sample.
          seed: of the samples.

        Returns:
          `[B, ...]` actions in the environment's own range and dtype.
        """
        observation = jax.tree.map(np.array, observation)  # a copy: jit would alias the caller's memory
        batch_size = len(jax.tree.leaves(observation)[0])
        starts = self._state is None
        if starts:
            indices = jnp.arange(batch_size, dtype=jnp.int32)
            self._state = self._agent.init_actor(run_key(seed), indices, batch_size)
        if is_first is None:
            is_first = np.full(batch_size, starts)
        timestep = TimeStep(
            step_type=np.where(is_first, StepType.FIRST, StepType.MID),
            reward=np.zeros(batch_size, np.float32),
            discount=np.ones(batch_size, np.float32),
            observation=observation,
        )
        key = jax.random.fold_in(run_key(seed), self._calls)
        self._calls += 1
        self._state, action = self._act(self._snapshot, self._state, timestep, key, greedy=greedy)
        return to_env_action(self._agent.spec.action, np.asarray(action), np)


def example_snapshot(agent: Agent) -> PolicySnapshot:
    """The shapes of what an agent acts with."""
    agent = dataclasses.replace(agent, axis_name=None)

    def example(key: Key) -> PolicySnapshot:
        return snapshot(agent, agent.init_learner(key), jnp.int32(0), 1)

    return jax.eval_shape(example, run_key(0))
