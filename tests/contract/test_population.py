"""Runs that are trained together: a member is what it would have been alone."""

import dataclasses

import jax
import numpy as np
import pytest

from podracer import build
from podracer.config import load_config
from podracer.parallel.placement import member_mesh
from podracer.runner import Due
from podracer.runners.population import Population
from podracer.trees import to_arrays
from tests.contract.tables import AGENTS, FEEDFORWARD_AND_RECURRENT, SMALL

_UPDATES = 6
_RECURRENT = {name for name in FEEDFORWARD_AND_RECURRENT if not name.endswith("-feedforward")}
_SEEDS_AND_RATES = (3, 1e-2), (4, 1e-2), (3, 3e-3)


def members(overrides):
    """Three runs of one device, of other seeds and learning rates."""
    overrides = [*SMALL, *overrides, "runner.updates_per_call=2", "mesh.learner=1", f"total_env_steps={_UPDATES * 48}"]
    configs = [load_config([*overrides, f"seed={s}", f"agent.learning_rate={rate}"]) for s, rate in _SEEDS_AND_RATES]
    first = build.build(configs[0])
    return [build.build_member(first, config).runner for config in configs]


def finished(runner, state):
    """The reports of a run, with its state in the last."""

    def due(updates):
        return Due(_UPDATES, snapshot=True, state=True)

    return [jax.tree.map(np.array, report) for report in map(_plain, runner.run(state, due))]


def _plain(reports):
    """Reports whose states are plain arrays."""
    several = reports if isinstance(reports, list) else [reports]
    return [report._replace(timings={}, state=report.state and to_arrays(report.state)) for report in several]


def together(runners, batching, num_devices=2):
    population = Population(runners, member_mesh(num_devices), batching)
    by_call = finished(population, population.init())
    return list(zip(*by_call, strict=True))


def alone(runner):
    return tuple(reports[0] for reports in finished(runner, runner.init()))


def check_equal(first, second, rtol, atol):
    for a, b in zip(first, second, strict=True):
        leaves = jax.tree.leaves_with_path(a), jax.tree.leaves_with_path(b)
        for (path, x), (other, y) in zip(*leaves, strict=True):
            assert path == other
            np.testing.assert_allclose(y, x, rtol=rtol, atol=atol, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize("name", FEEDFORWARD_AND_RECURRENT)
def test_a_member_equals_its_run_alone(name):
    """Three members on two devices, those of a device in turn: bit for bit.

    A recurrent agent is equal within rounding: inside another loop XLA fuses the scan over time differently.
    """
    runners = members(AGENTS[name])
    runs = together(runners, "loop")
    tolerance = {"rtol": 1e-4, "atol": 1e-6} if name in _RECURRENT else {"rtol": 0, "atol": 0}
    for run, runner in zip(runs, runners, strict=True):
        check_equal(alone(runner), run, **tolerance)
    parameters = [jax.tree.leaves(run[-1].snapshot.params) for run in runs]
    for other in parameters[1:]:
        assert any(np.any(a != b) for a, b in zip(parameters[0], other, strict=True))


@pytest.mark.parametrize("name", ["ppo-feedforward", "pqn-gru", "impala-normal", "dqn-rainbow", "sac-pendulum"])
def test_a_member_computed_beside_others_equals_its_run_alone(name):
    """Within rounding: a batch of matrix products may add in another order."""
    runners = members(AGENTS[name])
    for run, runner in zip(together(runners, "vmap"), runners, strict=True):
        check_equal(alone(runner), run, rtol=1e-3, atol=1e-4)


def test_a_member_with_the_randomness_of_another_is_rejected():
    runners = members(AGENTS["ppo-feedforward"])
    (run, *_) = together([dataclasses.replace(runners[0], plan=runners[1].plan), runners[2]], "loop")
    with pytest.raises(AssertionError):
        check_equal(alone(runners[0]), run, rtol=0, atol=0)


@pytest.mark.parametrize("num_devices", [1, 4])
def test_members_go_on_from_their_states(num_devices):
    """Three runs in the middle of their budget, saved by a population and restored to another."""
    runners = members(AGENTS["dqn-feedforward"])
    whole = together(runners, "loop")
    population = Population(runners, member_mesh(2), "loop")
    reports = population.run(population.init(), lambda updates: Due(2, state=True))
    saved = [to_arrays(report.state) for report in next(reports)]
    reports.close()
    population = Population(runners, member_mesh(num_devices), "loop")
    rest = list(zip(*finished(population, population.restore(saved)), strict=True))
    for first, second in zip(whole, rest, strict=True):
        check_equal(first[1:], second, rtol=0, atol=0)
