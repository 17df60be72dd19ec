"""What breaks in a run, injected for real, and what is done about it."""

import threading
import time
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest

from podracer.envs.host_guard import GuardedHost
from podracer.faults import EnvHung, FaultsConfig
from podracer.runners.activities import STEPPING, Activities
from podracer.runners.sebulba import SebulbaConfig
from podracer.runners.workers import WorkerHung
from tests.runners.doubles import CountingEnv, Factory, RecordingAgent, make_sebulba, run_all
from tests.runners.test_anakin import make_anakin


@dataclass(frozen=True, kw_only=True)
class Poisoned(RecordingAgent):
    """Its third update of five gives NaN."""

    def update(self, state, batch, key, *, progress):
        updated, output = super().update(state, batch, key, progress=progress)
        weight = jnp.where((progress > 0.35) & (progress < 0.45), jnp.nan, updated["weight"])
        return {**updated, "weight": weight}, output


@pytest.mark.parametrize("devices", [(0,), (0, 1)])
@pytest.mark.parametrize("runner", ["anakin", "sebulba"])
def test_E11_an_update_that_is_not_finite_is_not_made_and_counted(runner, devices):
    if runner == "anakin":
        reports = run_all(make_anakin(Poisoned(), learners=devices, updates=5))
    else:
        reports = run_all(make_sebulba(Factory(4), Poisoned(), actors=devices, learners=devices, updates=5))
    assert sum(report.counters["skipped_updates"] for report in reports) == 1
    learner = reports[-1].state.device.learner
    assert np.isfinite(learner["weight"]).all() and int(learner["updates"]) == 4  # all of it is as it was before


def test_B05_environments_that_are_started_again_are_counted():
    faults = FaultsConfig(environment="restart")
    made = []

    def make(shard):
        def make_env():
            made.append(CountingEnv(2, raises_at=6 if not made else None))
            return made[-1]

        return GuardedHost(make_env, faults, shard)

    reports = run_all(make_sebulba(make, envs_per_actor=2, updates=4))
    assert sum(report.counters["restarted"] for report in reports) == 1
    assert sum(report.counters["dropped"] for report in reports) == 2
    transitions = sum(env.transitions for env in made)
    assert reports[-1].env_steps == transitions


class Hanging(CountingEnv):
    def __init__(self, num_envs):
        super().__init__(num_envs)
        self.released = threading.Event()

    def step(self, action):
        if self.steps == 5:
            self.released.wait(60)
        return super().step(action)


def test_B02_an_environment_that_hangs_ends_the_run_by_name(monkeypatch):
    monkeypatch.setattr("podracer.runners.workers._JOIN_SECONDS", 0.5)
    factory = Factory(2, make=Hanging)
    runner = make_sebulba(factory, envs_per_actor=2, updates=9, faults=FaultsConfig(step_timeout_seconds=1.0))
    started = time.monotonic()
    try:
        with pytest.raises(
            EnvHung, match=r"actor-0 has been stepping its environments for 1 s .*learner waiting"
        ) as hung:
            run_all(runner)
        assert time.monotonic() - started < 20
        assert "did not stop within" in hung.value.__notes__[0] and "actor-0" in hung.value.__notes__[0]
    finally:
        factory.envs[0].released.set()
    assert issubclass(WorkerHung, RuntimeError)


def test_a_slow_environment_is_told_of_and_not_ended():
    config = SebulbaConfig(updates_per_report=2)
    factory = Factory(2, step_seconds=0.15)
    faults = FaultsConfig(stall_warning_seconds=0.5)
    runner = make_sebulba(factory, envs_per_actor=2, updates=2, config=config, faults=faults)
    with pytest.warns(UserWarning, match=r"no update for \d s: actor-0 .*; learner waiting for an unroll of actor-0"):
        assert run_all(runner)[-1].updates == 2


def test_a_stall_is_told_of_once_and_again_after_progress():
    activities = Activities(FaultsConfig(stall_warning_seconds=1.0))
    activities.begin("actor-0", STEPPING)
    with pytest.warns(UserWarning, match="actor-0 stepping its environments for 0 s"):
        activities.check(2.0)
    activities.check(3.0)
    activities.progressed()
    with pytest.warns(UserWarning):
        activities.check(2.0)
