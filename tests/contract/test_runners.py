"""The runners: Anakin and lockstep Sebulba are the same run, and both compile once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.contract.continuity import ContinuityAgent
from tests.contract.members import broken
from tests.contract.runs import Recorded, fingerprinted, on_anakin, on_sebulba, record
from tests.contract.tables import AGENTS, ENVS, FEEDFORWARD_AND_RECURRENT, RUNNERS


def check_runs_are_equal(first: Recorded, second: Recorded) -> None:
    """Actions and counts are identical, metrics and parameters within 1e-5."""
    for a, b in zip(first.reports, second.reports, strict=True):
        assert (a.env_steps, a.episodes) == (b.env_steps, b.episodes), a.updates
        assert a.metrics["fingerprint"] == b.metrics["fingerprint"], a.updates
        for name, value in a.metrics.items():
            np.testing.assert_allclose(b.metrics[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    leaves = [jax.tree.leaves(run.reports[-1].snapshot.params) for run in (first, second)]
    for a, b in zip(*leaves, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def check_continuity(run: Recorded) -> None:
    """Memory, columns and versions of every step are what they have to be."""
    for report in run.reports:
        errors = {name: value for name, value in report.metrics.items() if name.endswith("_errors")}
        assert errors and not any(errors.values()), (report.updates, errors)


def check_compiled_once(run: Recorded, warm_up: int = 1) -> None:
    """Nothing is traced or compiled after the first updates."""
    assert run.compilations[-1] == run.compilations[warm_up - 1], run.compilations


@pytest.mark.parametrize("num_devices", [1, 2])
@pytest.mark.parametrize("name", FEEDFORWARD_AND_RECURRENT)
def test_anakin_equals_lockstep_sebulba(name, num_devices):
    anakin = record((*AGENTS[name], *on_anakin(num_devices)), double=fingerprinted)
    sebulba = record((*AGENTS[name], *on_sebulba(num_devices)), double=fingerprinted)
    check_runs_are_equal(anakin, sebulba)
    check_compiled_once(anakin)
    assert anakin.programs["jit(chunk)"] == 1
    check_compiled_once(sebulba)
    assert (sebulba.programs["jit(act)"], sebulba.programs["jit(update)"]) == (num_devices, 1)


def test_a_runner_that_acts_with_old_parameters_is_rejected():
    name = "ppo-feedforward"
    anakin = record((*AGENTS[name], *on_anakin(1)), double=fingerprinted)
    late = record((*AGENTS[name], *on_sebulba(1, mode="fixed_lag")), double=fingerprinted)
    with pytest.raises(AssertionError):
        check_runs_are_equal(anakin, late)


@pytest.mark.parametrize("runner", [on_anakin(1), on_sebulba(1)], ids=["anakin", "sebulba"])
def test_A35_B17_B18_evaluation_and_the_number_of_episodes_compile_and_change_nothing(runner):
    # Episodes take ten slots and unrolls six: an update ends none, or one in every environment.
    overrides = ("agent=ppo", "env=catch", *runner)
    evaluated = record((*overrides, "evaluation.num_episodes=4"), updates=50, evaluate_at=(2, 3, 20))
    assert {report.episodes.count for report in evaluated.reports} == {0, 8}
    check_compiled_once(evaluated, warm_up=3)
    alone = record(overrides, updates=50)
    leaves = [jax.tree.leaves(run.reports[-1].snapshot) for run in (evaluated, alone)]
    for a, b in zip(*leaves, strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_agent_whose_memory_changes_its_type_is_rejected():
    def init_actor(self, key, env_indices, num_envs):
        memory = super(type(self), self).init_actor(key, env_indices, num_envs)
        return memory._replace(core=jnp.full(env_indices.shape, 0.0))  # weakly typed, unlike what `act` returns

    def act(self, policy, state, timestep, key, *, evaluation=False):
        core = state.core * jnp.float32(1.0)
        memory, output = super(type(self), self).act(policy, state._replace(core=()), timestep, key)
        return memory._replace(core=core), output

    def update(self, state, batch, key, *, progress):
        memory = batch.trajectory.actor_state._replace(core=())
        batch = batch._replace(trajectory=batch.trajectory._replace(actor_state=memory))
        return super(type(self), self).update(state, batch, key, progress=progress)

    overrides = ("agent=impala", *ENVS["counter"], *on_sebulba(1))
    wrong = record(overrides, double=lambda agent: broken(agent, init_actor=init_actor, act=act, update=update))
    with pytest.raises(AssertionError):
        check_compiled_once(wrong)


@pytest.mark.parametrize("name", RUNNERS)
def test_memory_columns_and_versions_go_on_from_unroll_to_unroll(name):
    run = record(("agent=ppo", *ENVS["counter"], *RUNNERS[name]), updates=6, double=ContinuityAgent.like)
    check_continuity(run)
    check_compiled_once(run)
    lags = [report.metrics["lag"] for report in run.reports]
    if name in ("anakin", "lockstep"):
        assert lags == [0.0] * 6
    elif name.startswith("fixed_lag"):
        assert lags == [0.0] + [1.0] * 5
    else:
        assert min(lags) >= 0.0


@pytest.mark.parametrize("fault", ["forgets_resets", "shifts_columns"])
def test_an_agent_that_loses_its_memory_or_place_is_rejected(fault):
    double = functools.partial(ContinuityAgent.like, fault=fault)
    wrong = record(("agent=ppo", *ENVS["counter"], *RUNNERS["anakin"]), updates=2, double=double)
    with pytest.raises(AssertionError):
        check_continuity(wrong)
