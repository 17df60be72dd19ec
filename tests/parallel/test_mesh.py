import itertools

import pytest

from podracer.parallel.divides import check_divides
from podracer.parallel.mesh import MeshConfig, PlanError, Topology, plan

KEYWORDS = {"env.num_envs": "num_envs", "agent.num_minibatches": "num_minibatches"}


def make_plan(runner="anakin", devices=1, mesh=None, hosts=1, cores=8, **settings):
    settings = dict(num_envs=64, unroll_length=16, total_env_steps=1_000_000, seed=0) | settings
    topology = Topology(hosts=hosts, devices_per_host=devices, cores_per_host=cores)
    return plan(runner=runner, topology=topology, mesh=mesh or MeshConfig(), **settings)


def assert_whole(result, devices, hosts):
    """Every division of a plan holds, and every device does something."""
    learners_per_host = len(result.learner_ids)
    assert set(result.actor_ids) | set(result.learner_ids) == set(range(devices))
    assert result.learners == hosts * learners_per_host
    assert result.actors == hosts * result.actors_per_host
    assert result.envs_per_actor * result.actors == result.num_envs
    assert result.envs_per_learner * result.learners == result.num_envs
    # Joined in actor order and cut into contiguous pieces, a learner's share is whole actors or a part of one.
    assert (
        max(result.envs_per_learner, result.envs_per_actor) % min(result.envs_per_learner, result.envs_per_actor) == 0
    )
    assert result.envs_per_learner * result.unroll_length % result.num_minibatches == 0
    assert result.updates * result.env_steps_per_update == result.total_env_steps


def test_anakin_acts_and_learns_on_every_device():
    result = make_plan(devices=8, hosts=2, num_envs=1024)
    assert result.actor_ids == result.learner_ids == tuple(range(8))
    assert (result.actors, result.actors_per_host, result.learners) == (16, 8, 16)
    assert (result.envs_per_actor, result.envs_per_learner) == (64, 64)
    # 16 steps x 1024 environments = 16,384; 1,000,000 // 16,384 = 61; 61 x 16,384 = 999,424
    assert (result.env_steps_per_update, result.updates, result.total_env_steps) == (16384, 61, 999424)


def test_anakin_uses_the_chosen_devices():
    assert make_plan(devices=8, mesh=MeshConfig(learner=2)).learner_ids == (0, 1)
    assert make_plan(devices=8, mesh=MeshConfig(learner_ids=(3, 5))).actor_ids == (3, 5)


@pytest.mark.parametrize(
    "devices, num_envs, actor_ids, learner_ids",
    [
        (1, 64, (0,), (0,)),
        (2, 64, (0,), (1,)),
        (4, 96, (0,), (1, 2, 3)),  # one actor to three learners, as 96 divides by 3
        (4, 64, (0, 1), (2, 3)),  # 64 does not
        (8, 96, (0, 1), (2, 3, 4, 5, 6, 7)),
        (8, 128, (0, 1, 2, 3), (4, 5, 6, 7)),
    ],
)
def test_sebulba_splits_devices_by_default(devices, num_envs, actor_ids, learner_ids):
    result = make_plan("sebulba", devices, num_envs=num_envs)
    assert (result.actor_ids, result.learner_ids) == (actor_ids, learner_ids)


def test_sebulba_threads_have_pools_of_their_own():
    result = make_plan(
        "sebulba", 4, MeshConfig(actor=2, learner=2), hosts=3, cores=32, threads_per_device=2, num_envs=96
    )
    assert (result.actors_per_host, result.actors, result.learners) == (4, 12, 6)
    assert (result.envs_per_actor, result.envs_per_learner) == (8, 16)
    assert result.env_threads_per_actor == 8  # 32 cores // 4 actors of a host
    assert make_plan("sebulba", cores=2, threads_per_device=4).env_threads_per_actor == 1


@pytest.mark.parametrize(
    "mesh, actor_ids, learner_ids",
    [
        (MeshConfig(actor=2), (0, 1), (2, 3)),
        (MeshConfig(learner=1), (0, 1, 2), (3,)),
        (MeshConfig(actor=1, learner=2), (0,), (1, 2)),
        (MeshConfig(learner_ids=(0, 1)), (2, 3), (0, 1)),
        (MeshConfig(actor_ids=(3,), learner=2), (3,), (0, 1)),
        (MeshConfig(actor_ids=(0, 1), learner_ids=(0, 1)), (0, 1), (0, 1)),
    ],
)
def test_sebulba_follows_the_mesh(mesh, actor_ids, learner_ids):
    num_envs = 48
    result = make_plan("sebulba", 4, mesh, num_envs=num_envs)
    assert (result.actor_ids, result.learner_ids) == (actor_ids, learner_ids)


@pytest.mark.parametrize("runner", ["anakin", "sebulba"])
def test_C10_counts_do_not_change_with_the_number_of_devices(runner):
    plans = [make_plan(runner, devices, num_envs=128, num_minibatches=4) for devices in (1, 2, 4, 8)]
    counts = {(p.num_envs, p.env_steps_per_update, p.updates, p.total_env_steps, p.num_minibatches) for p in plans}
    assert len(counts) == 1


def test_B25_environments_over_devices():
    with pytest.raises(PlanError) as caught:
        make_plan(devices=4, num_envs=10)
    assert str(caught.value) == ("env.num_envs=10 does not divide over 4 learner devices (mesh.learner=4); use 8 or 12")
    with pytest.raises(
        PlanError, match=r"over 16 learner devices \(mesh.learner=8 x topology.hosts=2\); use 96 or 112"
    ):
        make_plan(devices=8, hosts=2, num_envs=100)


def test_B25_environments_over_actors():
    with pytest.raises(PlanError, match=r"4 actors \(mesh.actor=2 x runner.threads_per_device=2\); use 8 or 12"):
        make_plan("sebulba", 4, MeshConfig(actor=2, learner=1), threads_per_device=2, num_envs=10)


def test_B25_rows_over_minibatches():
    with pytest.raises(PlanError) as caught:
        make_plan(unroll_length=12, num_envs=10, num_minibatches=7)
    assert str(caught.value) == (
        "agent.num_minibatches=7 does not divide the 120 rows (agent.unroll_length=12) of a learner device "
        "(env.num_envs=10, mesh.learner=1); use agent.num_minibatches=6 or 8, or env.num_envs=7 or 14"
    )

    # 16 steps bring one factor of 2 of the 6 minibatches, so three environments are the unit, not six.
    with pytest.raises(PlanError, match=r"the 160 rows .*num_minibatches=5 or 8, or env.num_envs=9 or 12$"):
        make_plan(unroll_length=16, num_envs=10, num_minibatches=6)


def test_B25_a_recurrent_network_keeps_sequences_whole():
    assert make_plan(num_envs=2, num_minibatches=4).num_minibatches == 4  # 32 rows
    with pytest.raises(
        PlanError, match=r"minibatches=4 does not divide the 2 sequences.*minibatches=2, or env.num_envs=4"
    ):
        make_plan(num_envs=2, num_minibatches=4, recurrent=True)


def test_B25_any_two_settings():
    check_divides(32, 4, "replay.batch_size", "mesh.learner")
    with pytest.raises(PlanError) as caught:
        check_divides(30, 4, "replay.batch_size", "mesh.learner", things="learner devices")
    assert str(caught.value) == (
        "replay.batch_size=30 does not divide over 4 learner devices (mesh.learner=4); use 28 or 32"
    )
    with pytest.raises(PlanError, match=r"use 4$"):
        check_divides(3, 4, "replay.batch_size", "mesh.learner")


def test_actors_and_learners_that_share_out_unevenly():
    with pytest.raises(PlanError, match=r"3 actors .* 2 learner devices .* runner.threads_per_device=2$"):
        make_plan("sebulba", 5, MeshConfig(actor=3, learner=2), num_envs=96)
    with pytest.raises(PlanError, match=r"runner.threads_per_device=2 with env.num_envs=102$"):
        make_plan("sebulba", 5, MeshConfig(actor=3, learner=2), num_envs=100)


def test_a_budget_below_one_update():
    with pytest.raises(PlanError, match=r"total_env_steps=1000 .* 1024 .*; use 1024$"):
        make_plan(total_env_steps=1000)
    assert make_plan(total_env_steps=1024).updates == 1


@pytest.mark.parametrize(
    "runner, mesh, message",
    [
        ("anakin", MeshConfig(learner=9), r"mesh.learner=9, but a host has 4 devices; use 4"),
        ("anakin", MeshConfig(learner=0), r"mesh.learner=0, .*; use 1"),
        ("anakin", MeshConfig(learner_ids=(0, 4)), r"mesh.learner_ids=\[0, 4\] is out of range.* 4 devices, 0 to 3"),
        ("anakin", MeshConfig(learner_ids=(-1,)), "out of range"),
        ("anakin", MeshConfig(learner_ids=(1, 1)), r"mesh.learner_ids=\[1, 1\] names a device twice"),
        ("anakin", MeshConfig(learner_ids=()), r"mesh.learner_ids=\[\] names no device"),
        ("anakin", MeshConfig(learner=3, learner_ids=(0, 1)), r"mesh.learner=3 contradicts mesh.learner_ids=\[0, 1\]"),
        ("anakin", MeshConfig(actor_ids=(0,)), r"mesh.actor_ids=.*runner=anakin"),
        ("anakin", MeshConfig(actor=1), r"mesh.actor=1 .*runner=anakin"),
        (
            "sebulba",
            MeshConfig(learner=4),
            r"4 learner devices \(mesh.learner=4\) leave 0 of the 4 .*mesh.actor=1 are needed",
        ),
        (
            "sebulba",
            MeshConfig(actor=3, learner=2),
            r"mesh.actor=3\) leave 1 of .*mesh.learner=2 are needed.* use mesh.learner=1",
        ),
        ("sebulba", MeshConfig(actor=2, actor_ids=(0,)), "mesh.actor=2 contradicts"),
        ("padawan", MeshConfig(), "runner=padawan"),
    ],
)
def test_a_mesh_that_cannot_be(runner, mesh, message):
    with pytest.raises(PlanError, match=message):
        make_plan(runner, 4, mesh)


def test_anakin_has_no_actor_threads():
    with pytest.raises(PlanError, match=r"runner.threads_per_device=2 has no meaning with runner=anakin"):
        make_plan(threads_per_device=2)


@pytest.mark.parametrize("setting", ["num_envs", "unroll_length", "threads_per_device", "num_minibatches", "hosts"])
def test_counts_are_positive(setting):
    with pytest.raises(PlanError, match=rf"{setting}=0 is not positive"):
        make_plan("sebulba", **{setting: 0})


@pytest.mark.parametrize("runner", ["anakin", "sebulba"])
def test_every_combination_divides_or_is_repaired_as_the_error_says(runner):
    planned = repaired = 0
    threads = (1, 2, 3) if runner == "sebulba" else (1,)
    axes = itertools.product((1, 2, 3, 5, 8), (1, 2), threads, (1, 6, 64, 100), (1, 3, 4), (False, True))
    for devices, hosts, threads_per_device, num_envs, num_minibatches, recurrent in axes:
        settings = dict(
            devices=devices,
            hosts=hosts,
            threads_per_device=threads_per_device,
            num_envs=num_envs,
            num_minibatches=num_minibatches,
            recurrent=recurrent,
        )
        try:
            assert_whole(make_plan(runner, **settings), devices, hosts)
            planned += 1
        except PlanError as error:
            assert error.repairs
            for repair in error.repairs:
                assert all(f"{key}=" in str(error) and str(value) in str(error) for key, value in repair.items())
                repair = {KEYWORDS[key]: value for key, value in repair.items()}
                assert_whole(make_plan(runner, **(settings | repair)), devices, hosts)
                repaired += 1
    assert planned > 30 and repaired > 30


@pytest.mark.parametrize("actor, learner", [*itertools.product((1, 2, 3, 4), (1, 2, 3, 4))])
def test_uneven_meshes_are_repaired_as_the_error_says(actor, learner):
    for threads_per_device, num_envs in itertools.product((1, 2, 5), (48, 50)):
        settings = dict(mesh=MeshConfig(actor=actor, learner=learner), num_envs=num_envs)
        settings["threads_per_device"] = threads_per_device
        try:
            assert_whole(make_plan("sebulba", actor + learner, **settings), actor + learner, 1)
        except PlanError as error:
            assert error.repairs
            for repair in error.repairs:
                repair = {key.split(".")[1]: value for key, value in repair.items()}
                assert_whole(make_plan("sebulba", actor + learner, **(settings | repair)), actor + learner, 1)
