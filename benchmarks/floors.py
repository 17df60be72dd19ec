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

from podracer.agents.impala import IMPALA
from podracer.build import Run
from podracer.calibration.parts import (
    acting_seconds,
    blank_batch,
    environment_seconds,
    learner_state,
    random_actions,
    seconds_per_call,
)
from podracer.envs.base import HostEnv
from podracer.randomness import host_seeds
from podracer.runners.learn import learn
from podracer.runners.sebulba import Sebulba
from podracer.types import Key, Trajectory

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
        "environment": _host_env_rate(run, seconds) if _is_hosted(run) else steps / environment_seconds(run, seconds),
        "acting": steps / (run.plan.actors * acting_seconds(run, seconds)),
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
    state, batch = learner_state(run), blank_batch(run, columns)
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

    trajectory = blank_batch(run, run.plan.num_envs).trajectory
    state = learner_state(run)
    return seconds_per_call(jax.jit(phases), state, trajectory, jax.random.key(0), seconds=seconds) / _PHASES


def _host_env_rate(run: Run, seconds: float) -> float:
    """Steps per second of all actors' environments together, each stepped by a thread of its own."""
    plan, runner = run.plan, run.runner
    envs = [runner.make_env(shard) for shard in range(plan.actors)]
    counts = [0] * len(envs)
    ready = threading.Barrier(len(envs) + 1)
    stop = threading.Event()

    def work(index: int, env: HostEnv) -> None:
        env.reset(host_seeds(plan.seed, index * env.num_envs + np.arange(env.num_envs)))
        actions = np.asarray(random_actions(env.spec.action, jax.random.key(index), (64, env.num_envs)))
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


def _num_gradients(run: Run) -> int:
    return getattr(run.agent, "num_epochs", 1) * getattr(run.agent, "num_minibatches", 1)


def _minibatch_size(run: Run) -> int:
    return run.plan.env_steps_per_update // getattr(run.agent, "num_minibatches", 1)


def _is_hosted(run: Run) -> bool:
    return isinstance(run.runner, Sebulba)
