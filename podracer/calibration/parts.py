"""Times the parts of a run alone, each in a compiled program of its own."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from podracer.build import Run
from podracer.runners.learn import snapshot
from podracer.runners.unroll import example_trajectory
from podracer.spaces import ActionSpace, Box
from podracer.types import Array, ArrayTree, Batch, Key, PolicySnapshot, StepType, Trajectory


def acting_seconds(run: Run, seconds: float) -> float:
    """Times `act` for the steps of one actor's unroll, inside a scan, for about `seconds`."""
    agent = dataclasses.replace(run.agent, axis_name=None)
    policy = snapshot(agent, learner_state(run), jnp.int32(0), run.plan.updates)
    example = blank_batch(run, run.plan.envs_per_actor).trajectory

    def act(policy: PolicySnapshot, trajectory: Trajectory, key: Key) -> ArrayTree:
        def step(memory, inputs):
            timestep, key = inputs
            memory, output = agent.act(policy, memory, timestep, key)
            return memory, output

        keys = jax.random.split(key, agent.unroll_length)
        timesteps = jax.tree.map(lambda leaf: leaf[:-1], trajectory.steps.timestep)
        return jax.lax.scan(step, trajectory.actor_state, (timesteps, keys))

    return seconds_per_call(jax.jit(act), policy, example, jax.random.key(0), seconds=seconds)


def environment_seconds(run: Run, seconds: float) -> float:
    """Times an unroll of one actor's JAX environments with random actions, inside a scan, for about `seconds`."""
    env, num_envs, length = run.runner.env, run.plan.envs_per_actor, run.agent.unroll_length
    state, _ = jax.jit(env.reset, static_argnums=1)(jax.random.key(0), num_envs)

    def unroll(state: ArrayTree, key: Key) -> ArrayTree:
        def step(carry, inputs):
            state, total = carry
            key, action = inputs
            state, timestep = env.step(key, state, action)
            # Summed, so that nothing that the environment computes is left out by the compiler.
            leaves = jax.tree.leaves((timestep.observation, timestep.reward))
            return (state, total + sum(jnp.sum(leaf, dtype=jnp.float32) for leaf in leaves)), None

        actions = random_actions(env.spec.action, key, (length, num_envs))
        return jax.lax.scan(step, (state, jnp.float32(0.0)), (jax.random.split(key, length), actions))

    return seconds_per_call(jax.jit(unroll), state, jax.random.key(0), seconds=seconds)


def random_actions(space: ActionSpace, key: Key, batch_shape: tuple[int, ...]) -> Array:
    """Draws actions `[*batch_shape, ...]` uniformly."""
    shape = (*batch_shape, *space.shape)
    if isinstance(space, Box):
        return jax.random.uniform(key, shape, minval=-1.0, maxval=1.0)
    return jax.random.randint(key, shape, 0, np.asarray(space.num_values))


def blank_batch(run: Run, num_envs: int) -> Batch:
    """An unroll of zeros in which no episode ends."""
    agent = dataclasses.replace(run.agent, axis_name=None)
    shapes = example_trajectory(agent, agent.spec, run.plan.num_envs, num_envs)
    trajectory = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    timestep = trajectory.steps.timestep
    timestep = timestep._replace(
        step_type=jnp.full_like(timestep.step_type, StepType.MID), discount=jnp.ones_like(timestep.discount)
    )
    trajectory = trajectory._replace(steps=trajectory.steps._replace(timestep=timestep))
    return Batch(trajectory, jnp.arange(num_envs, dtype=jnp.int32), jnp.ones((num_envs,)))


def learner_state(run: Run) -> Any:
    """A new state of the run's agent, on one device."""
    return jax.jit(dataclasses.replace(run.agent, axis_name=None).init_learner)(jax.random.key(0))


def seconds_per_call(function: Callable[..., Any], *arguments: Any, seconds: float) -> float:
    """The median time of a jitted call, over about `seconds`, compiling and two warm-up calls apart."""
    for _ in range(2):
        jax.block_until_ready(function(*arguments))
    times: list[float] = []
    ends = time.perf_counter() + seconds
    while not times or time.perf_counter() < ends:
        started = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - started)
    return sorted(times)[len(times) // 2]
