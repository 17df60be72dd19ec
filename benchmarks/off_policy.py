"""Steps per second of whole runs that learn from replay, beside the cost of their gradient steps alone."""

import shlex
import statistics
from typing import Any

import jax
import jax.numpy as jnp
from rich.table import Table

from benchmarks.cases import Case
from podracer.build import Run, build
from podracer.calibration.parts import seconds_per_call
from podracer.calibration.steady import steady
from podracer.config import load_config
from podracer.runners.unroll import example_trajectory
from podracer.types import Array, ArrayTree, Batch, StepType

_ALWAYS = ("env.num_envs=64", "evaluation.num_episodes=0", "logger=quiet", "total_env_steps=100000000000")
_AGENTS = {
    "dqn-cartpole": ("agent=dqn", "env=gymnax/cartpole", "network=mlp"),
    "sac-pendulum": ("agent=sac", "env=gymnax/pendulum", "network=mlp"),
}
CASES = {
    f"{agent}-{runner}-{samples}": Case(
        (*overrides, f"runner={runner}", f"replay.samples_per_insert={samples}", *_ALWAYS),
    )
    for agent, overrides in _AGENTS.items()
    for runner in ("anakin", "sebulba")
    for samples in (8, 256)
}
# Updates in one call of the loop that their cost is measured in.
_UPDATES = 64


def measure(case: Case, repeats: int, seconds: float) -> dict[str, Any]:
    """Measures one run, and its updates alone on a batch that stays the same."""
    run = build(load_config(case.overrides))
    with steady(run, warm_up_seconds=seconds) as training:
        rates = [training.train(seconds).steps_per_second for _ in range(repeats)]
    update_seconds = _update_seconds(run, seconds)
    floor = 1 / (run.runner.replay.updates_per_insert * update_seconds)
    rate = statistics.median(rates)
    return {
        "overrides": shlex.join(case.overrides),
        "unroll_length": run.plan.unroll_length,
        "batch_size": run.agent.batch_size,
        "updates_per_step": run.runner.replay.updates_per_insert,
        "steps_per_second": rate,
        "steps_per_second_min": min(rates),
        "steps_per_second_max": max(rates),
        "update_us": 1e6 * update_seconds,
        "floor": floor,  # steps a second, were there nothing but updates
        "fraction_of_floor": rate / floor,
    }


def to_table(results: dict[str, dict[str, Any]]) -> Table:
    """The results as a table for a terminal."""
    table = Table(title="environment steps a second; the floor is what the updates alone would allow")
    table.add_column("case", no_wrap=True)
    for heading in ("steps/s", "min", "max", "µs an update", "floor", "reached"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, result in results.items():
        figures = [result[f"steps_per_second{suffix}"] for suffix in ("", "_min", "_max")]
        figures += [result["update_us"], result["floor"]]
        table.add_row(name, *(f"{figure:,.0f}" for figure in figures), f"{result['fraction_of_floor']:.0%}")
    return table


def _update_seconds(run: Run, seconds: float) -> float:
    """Time of `Agent.update`, in a loop of nothing else."""
    agent, batch = run.agent, _batch(run)

    def updates(state: ArrayTree, batch: Batch) -> tuple[ArrayTree, ArrayTree]:
        def step(state: ArrayTree, key: Array) -> tuple[ArrayTree, ArrayTree]:
            state, output = agent.update(state, batch, key, progress=jnp.float32(0.0))
            return state, (output.metrics, output.priorities)

        return jax.lax.scan(step, state, jax.random.split(jax.random.key(0), _UPDATES))

    state = jax.jit(agent.init_learner)(jax.random.key(0))
    return seconds_per_call(jax.jit(updates), state, batch, seconds=seconds) / _UPDATES


def _batch(run: Run) -> Batch:
    """Zeros as the run's store would hand them out, in which no episode ends."""
    replay, plan = run.runner.replay, run.plan
    example = example_trajectory(run.agent, run.agent.spec, plan.num_envs, plan.num_envs)
    _, shapes = jax.eval_shape(lambda: replay.sample(replay.init(_zeros(example)), jax.random.key(0)))
    batch = _zeros(shapes)
    timestep = batch.trajectory.steps.timestep
    timestep = timestep._replace(
        step_type=jnp.full_like(timestep.step_type, StepType.MID), discount=jnp.ones_like(timestep.discount)
    )
    trajectory = batch.trajectory._replace(steps=batch.trajectory.steps._replace(timestep=timestep))
    return batch._replace(trajectory=trajectory, probabilities=jnp.full_like(batch.probabilities, 1e-5))


def _zeros(shapes: ArrayTree) -> ArrayTree:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
