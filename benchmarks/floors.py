"""The parts of a run, each measured alone: what no arrangement of them can be faster than.

environment: steps with random actions, nothing else: JAX environments inside a scan, those of the host from
as many threads as the run has actors. acting: the agent's `act` for every step, inside a scan.
gradient: as many gradients of minibatches as an update takes, each one call outside of any loop.
"""

import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.measure import seconds_per_call
from podracer.agents.impala import IMPALA
from podracer.build import Run
from podracer.envs.base import HostEnv
from podracer.randomness import host_seeds
from podracer.runners.learn import learn, snapshot
from podracer.runners.sebulba import Sebulba
from podracer.runners.unroll import example_trajectory
from podracer.spaces import ActionSpace, Box
from podracer.types import Array, Batch, Key, PolicySnapshot, StepType, Trajectory

# Learn phases in one call of the loop that the learner's cost is measured in.
_PHASES = 4


def floors(run: Run, seconds: float) -> dict[str, float]:
    """Steps per second of a run's parts, and of all of them one after the other.

    Args:
      run: on one device.
      seconds: for each part.
    """
    steps = run.plan.env_steps_per_update
    rates = {
        "environment": _host_env_rate(run, seconds) if _is_hosted(run) else _jax_env_rate(run, seconds),
        "acting": steps / _acting_seconds(run, seconds),
        "gradient": steps / (_num_gradients(run) * gradient_seconds(run, seconds)),
    }
    # On a CPU that all parts share their times add up.
    return {**rates, "combined": 1 / sum(1 / rate for rate in rates.values())}


def learner_cost(run: Run, seconds: float) -> dict[str, float]:
    """Microseconds that a learner takes for a sample's gradient, inside of a loop and outside of one."""
    samples = _num_gradients(run) * _minibatch_size(run)
    inside = _loop_seconds(run, seconds) / samples
    outside = gradient_seconds(run, seconds) / _minibatch_size(run)
    return {"inside_us": 1e6 * inside, "outside_us": 1e6 * outside, "ratio": inside / outside}


def gradient_seconds(run: Run, seconds: float) -> float:
    """Time of the gradient of one minibatch, jitted by itself."""
    agent = run.agent
    columns = max(1, run.plan.num_envs // getattr(agent, "num_minibatches", 1))
    state, batch = _learner_state(run), _batch(run, columns)
    count = jnp.float32(_minibatch_size(run))
    if isinstance(agent, IMPALA):
        arguments = state.statistics, batch, count
    else:
        rows = jax.jit(agent.rows)(state, batch)
        arguments = rows, batch.trajectory.actor_state.core, count
    gradient = jax.jit(jax.grad(agent.loss, has_aux=True))
    return seconds_per_call(gradient, state.trained.params, *arguments, seconds=seconds)


def _loop_seconds(run: Run, seconds: float) -> float:
    """Time of one learn phase within a loop of them, as a runner's program has it."""
    agent, replay = run.agent, run.runner.replay

    def phases(state: Any, trajectory: Trajectory, key: Key) -> Any:
        def phase(carry, key):
            state, replay_state, learned = learn(agent, replay, *carry, trajectory, key, jnp.float32(0.0))
            return (state, replay_state), learned

        return jax.lax.scan(phase, (state, replay.init(trajectory)), jax.random.split(key, _PHASES))

    trajectory = _batch(run, run.plan.num_envs).trajectory
    state = _learner_state(run)
    return seconds_per_call(jax.jit(phases), state, trajectory, jax.random.key(0), seconds=seconds) / _PHASES


def _acting_seconds(run: Run, seconds: float) -> float:
    """Time of acting for one update's steps, all actors one after the other."""
    agent, num_envs = run.agent, run.plan.envs_per_actor
    policy = _policy(run)
    example = _batch(run, num_envs).trajectory

    def act(policy: PolicySnapshot, trajectory: Trajectory, key: Key) -> Array:
        def step(memory, inputs):
            timestep, key = inputs
            memory, output = agent.act(policy, memory, timestep, key)
            return memory, output

        keys = jax.random.split(key, agent.unroll_length)
        timesteps = jax.tree.map(lambda leaf: leaf[:-1], trajectory.steps.timestep)
        return jax.lax.scan(step, trajectory.actor_state, (timesteps, keys))

    return run.plan.actors * seconds_per_call(jax.jit(act), policy, example, jax.random.key(0), seconds=seconds)


def _jax_env_rate(run: Run, seconds: float) -> float:
    env, num_envs, length = run.runner.env, run.plan.num_envs, run.agent.unroll_length
    state, _ = jax.jit(env.reset, static_argnums=1)(jax.random.key(0), num_envs)

    def unroll(state: Any, key: Key) -> Any:
        def step(carry, inputs):
            state, total = carry
            key, action = inputs
            state, timestep = env.step(key, state, action)
            # Summed, so that nothing that the environment computes is left out by the compiler.
            leaves = jax.tree.leaves((timestep.observation, timestep.reward))
            return (state, total + sum(jnp.sum(leaf, dtype=jnp.float32) for leaf in leaves)), None

        actions = _random_actions(env.spec.action, key, (length, num_envs))
        return jax.lax.scan(step, (state, jnp.float32(0.0)), (jax.random.split(key, length), actions))

    called = seconds_per_call(jax.jit(unroll), state, jax.random.key(0), seconds=seconds)
    return num_envs * length / called


def _host_env_rate(run: Run, seconds: float) -> float:
    """Steps per second of all actors' environments together, each stepped by a thread of its own."""
    plan, runner = run.plan, run.runner
    envs = [runner.make_env(shard) for shard in range(plan.actors)]
    counts = [0] * len(envs)
    ready = threading.Barrier(len(envs) + 1)
    stop = threading.Event()

    def work(index: int, env: HostEnv) -> None:
        env.reset(host_seeds(plan.seed, index * env.num_envs + np.arange(env.num_envs)))
        actions = np.asarray(_random_actions(env.spec.action, jax.random.key(index), (64, env.num_envs)))
        env.step(actions[0])
        ready.wait()
        while not stop.is_set():
            env.step(actions[counts[index] % len(actions)])
            counts[index] += 1

    threads = [threading.Thread(target=work, args=item, daemon=True) for item in enumerate(envs)]
    for thread in threads:
        thread.start()
    ready.wait()
    started = time.perf_counter()
    time.sleep(seconds)
    stop.set()
    steps, elapsed = sum(counts) * plan.envs_per_actor, time.perf_counter() - started
    for thread, env in zip(threads, envs):
        thread.join()
        env.close()
    return steps / elapsed


def _random_actions(space: ActionSpace, key: Key, batch_shape: tuple[int, ...]) -> Array:
    shape = (*batch_shape, *space.shape)
    if isinstance(space, Box):
        return jax.random.uniform(key, shape, minval=-1.0, maxval=1.0)
    return jax.random.randint(key, shape, 0, np.asarray(space.num_values))


def _batch(run: Run, num_envs: int) -> Batch:
    """An unroll of zeros in which no episode ends."""
    shapes = example_trajectory(run.agent, run.agent.spec, run.plan.num_envs, num_envs)
    trajectory = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    timestep = trajectory.steps.timestep
    timestep = timestep._replace(
        step_type=jnp.full_like(timestep.step_type, StepType.MID), discount=jnp.ones_like(timestep.discount)
    )
    trajectory = trajectory._replace(steps=trajectory.steps._replace(timestep=timestep))
    return Batch(trajectory, jnp.arange(num_envs, dtype=jnp.int32), jnp.ones((num_envs,)))


def _learner_state(run: Run) -> Any:
    return jax.jit(run.agent.init_learner)(jax.random.key(0))


def _policy(run: Run) -> PolicySnapshot:
    return snapshot(run.agent, _learner_state(run), jnp.int32(0), run.plan.updates)


def _num_gradients(run: Run) -> int:
    return getattr(run.agent, "num_epochs", 1) * getattr(run.agent, "num_minibatches", 1)


def _minibatch_size(run: Run) -> int:
    return run.plan.env_steps_per_update // getattr(run.agent, "num_minibatches", 1)


def _is_hosted(run: Run) -> bool:
    return isinstance(run.runner, Sebulba)
