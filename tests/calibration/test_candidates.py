"""Which configurations a calibration compares."""

import pytest

from podracer.calibration.candidates import Candidate, base_candidate, candidates, with_candidate
from podracer.config import load_config
from podracer.parallel.mesh import MeshConfig, Topology, plan


def _plan(runner: str, devices: int = 1, **settings):
    arguments = dict(mesh=MeshConfig(), num_envs=32, unroll_length=8, total_env_steps=10**6, seed=0, **settings)
    return plan(runner=runner, topology=Topology(devices_per_host=devices), **arguments)


def test_the_base_comes_first_then_what_differs_least():
    run_plan = _plan("sebulba", threads_per_device=2)
    base = base_candidate(load_config(["runner=sebulba"]), run_plan)
    listed = candidates(base, run_plan, vary_unroll=True)
    assert listed[0] == base == Candidate(32, 8, 2)
    assert listed[1:3] == [Candidate(32, 8, 1), Candidate(32, 8, 4)]  # with the learner as it is
    assert Candidate(32, 16, 2) in listed
    assert Candidate(128, 8, 1) in listed
    assert len(listed) == len(set(listed)) == 3 * 4 + 1
    numbers = [len(candidate.changes(base)) for candidate in listed]
    assert numbers == sorted(numbers)


def test_anakin_has_no_threads_and_one_device_no_splits():
    run_plan = _plan("anakin")
    base = base_candidate(load_config([]), run_plan)
    listed = candidates(base, run_plan, vary_unroll=False)
    assert listed == [Candidate(envs, 8) for envs in (32, 64, 128, 16)]


def test_devices_are_shared_out_in_several_ways():
    run_plan = _plan("sebulba", devices=8, threads_per_device=1)
    base = base_candidate(load_config(["runner=sebulba"]), run_plan)
    listed = candidates(base, run_plan, vary_unroll=False)
    splits = {(candidate.actor_devices, candidate.learner_devices) for candidate in listed}
    assert splits == {(len(run_plan.actor_ids), len(run_plan.learner_ids)), (2, 6), (4, 4), (1, 7)}
    run_plan = _plan("anakin", devices=8)
    base = base_candidate(load_config([]), run_plan)
    listed = candidates(base, run_plan, vary_unroll=False)
    assert {candidate.learner_devices for candidate in listed} == {8, 4, 1}


def test_devices_that_are_named_stay_as_they_are():
    config = load_config(["runner=sebulba", "mesh.learner_ids=[1,2]"])
    base = base_candidate(config, _plan("sebulba", devices=8))
    assert (base.actor_devices, base.learner_devices) == (None, None)


def test_changes_are_overrides_and_are_made_in_the_configuration():
    base, candidate = Candidate(32, 8, 2, 1, 7), Candidate(64, 16, 4, 2, 6)
    changes = candidate.changes(base)
    assert changes == {
        "env.num_envs": 64,
        "agent.unroll_length": 16,
        "runner.threads_per_device": 4,
        "mesh.actor": 2,
        "mesh.learner": 6,
    }
    config = load_config(["runner=sebulba"])
    overrides = [f"{key}={value}" for key, value in changes.items()]
    assert with_candidate(config, candidate, base) == load_config(["runner=sebulba", *overrides])


@pytest.mark.parametrize(("num_envs", "unroll_length", "same"), [(32, 8, True), (64, 4, False), (32, 16, False)])
def test_the_same_batch_is_as_many_environments_and_steps(num_envs, unroll_length, same):
    assert Candidate(num_envs, unroll_length, 4).has_batch_of(Candidate(32, 8, 1)) is same
