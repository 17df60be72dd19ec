"""Short runs that are recorded: every report, and how much was compiled before each."""

import dataclasses
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from podracer import build
from podracer.agent import Agent
from podracer.config import load_config
from podracer.parallel import collectives
from podracer.runner import Due, Report
from podracer.runners.sebulba import Sebulba
from podracer.runners.unroll import example_trajectory
from tests.contract.members import broken
from tests.contract.tables import SMALL

_TRACED, _COMPILED = "/jax/core/compile/jaxpr_trace_duration", "/jax/core/compile/backend_compile_duration"


class Recorded(NamedTuple):
    reports: list[Report]  # one an update; the first and the last have a snapshot, and those that were asked for
    compilations: list[int]  # events of tracing and compiling before each report
    programs: Counter[str]  # how often each function was compiled


def on_anakin(num_devices: int) -> tuple[str, ...]:
    return ("runner=anakin", "runner.updates_per_call=1", f"mesh.learner={num_devices}")


def on_sebulba(num_devices: int, mode: str = "lockstep") -> tuple[str, ...]:
    """One actor thread and one learner on each device."""
    ids = list(range(num_devices))
    return (
        "runner=sebulba",
        f"runner.mode={mode}",
        "runner.threads_per_device=1",
        "runner.updates_per_report=1",
        f"mesh.actor_ids={ids}",
        f"mesh.learner_ids={ids}",
    )


def record(
    overrides: tuple[str, ...],
    *,
    updates: int = 10,
    evaluate_at: tuple[int, ...] = (),
    double: Callable[[Agent], Agent] = lambda agent: agent,
) -> Recorded:
    """Trains for some updates."""
    config = load_config([*SMALL, *overrides, f"total_env_steps={updates * 8 * 6}"])
    run = build.build(config)
    assert run.plan.updates == updates
    agent = double(run.runner.agent)
    runner = dataclasses.replace(run.runner, agent=agent)
    if isinstance(runner, Sebulba):
        example = example_trajectory(agent, agent.spec, run.plan.num_envs, run.plan.envs_per_learner)
        runner = dataclasses.replace(runner, example=example)
    ends = (1, *evaluate_at, updates)

    def due(done: int) -> Due:
        return Due(min(end for end in ends if end > done), snapshot=True)

    reports, compilations = [], []
    with counted_compilations() as (events, programs):
        for report in runner.run(runner.init(), due):
            reports.append(report)
            compilations.append(events.total())
            if report.updates in evaluate_at:
                run.evaluate(report.snapshot, lambda: False)
    assert [report.updates for report in reports] == list(range(1, updates + 1))
    return Recorded(reports, compilations, programs)


@contextmanager
def counted_compilations():
    """Counts what is traced and compiled in any thread: events by kind, and compilations by function."""
    events, programs = Counter(), Counter()

    def listen(event: str, seconds: float, **kwargs: Any) -> None:
        if event in (_TRACED, _COMPILED):
            events[event] += 1
        if event == _COMPILED:
            programs[kwargs["fun_name"]] += 1

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield events, programs
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def fingerprinted(agent: Agent) -> Agent:
    """The same agent with a metric that differs if any action of any step and environment does."""

    def update(self, state, batch, key, *, progress):
        state, output = super(type(self), self).update(state, batch, key, progress=progress)
        action = batch.trajectory.steps.action.astype(jnp.float32)
        shard = collectives.axis_index(self.axis_name).astype(jnp.float32)
        place = jnp.arange(action.size, dtype=jnp.float32).reshape(action.shape) + 1.0
        fingerprint = jnp.sum(action * place) * (shard + 1.0)  # whole numbers: sums are exact
        output.metrics["fingerprint"] = collectives.pmean(fingerprint, self.axis_name)
        return state, output

    return broken(agent, update=update)
