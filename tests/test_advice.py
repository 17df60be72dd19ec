import pytest

from podracer.advice import advise
from podracer.parallel.mesh import MeshConfig, Topology, plan

SEBULBA = plan(
    runner="sebulba",
    topology=Topology(devices_per_host=4, cores_per_host=8),
    mesh=MeshConfig(),
    num_envs=48,
    unroll_length=8,
    total_env_steps=10**6,
    seed=0,
    threads_per_device=2,
)
ANAKIN = plan(
    runner="anakin", topology=Topology(), mesh=MeshConfig(), num_envs=8, unroll_length=8, total_env_steps=10**6, seed=0
)


def seconds(**shares):
    """Of 10 s of training."""
    return {"train_seconds": 10.0, **{f"{name}_seconds": 10.0 * share for name, share in shares.items()}}


@pytest.mark.parametrize(
    ("shares", "bottleneck", "settings"),
    [
        (
            {"learner_wait": 0.7, "env": 0.6, "act": 0.2},
            "environment",
            ["runner.threads_per_device=4", f"mesh.actor={len(SEBULBA.actor_ids) + 1}"],
        ),
        ({"learner_wait": 0.7, "env": 0.2, "act": 0.6}, "acting", ["env.num_envs=96", "runner.threads_per_device=4"]),
        (
            {"actor_wait": 0.6, "learn": 0.9, "env": 0.2},
            "learning",
            [f"mesh.learner, now {len(SEBULBA.learner_ids)}", "agent.num_epochs"],
        ),
        ({"actor_wait": 0.1, "learner_wait": 0.15}, "none", ["10%", "15%"]),
    ],
)
def test_who_is_waited_for_is_named_with_the_setting_to_change(shares, bottleneck, settings):
    advice = advise(SEBULBA, seconds(**shares))
    assert advice.bottleneck == bottleneck
    assert all(setting in advice.text for setting in settings)


def test_compilation_that_takes_longer_than_training():
    for run in (SEBULBA, ANAKIN):
        assert advise(run, {"train_seconds": 2.0, "compile_seconds": 9.0}).bottleneck == "compilation"


def test_nothing_is_said_of_what_was_not_measured():
    assert advise(ANAKIN, seconds()) is None
    assert advise(SEBULBA, {}) is None
