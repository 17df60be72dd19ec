"""Agents that learn from replay, on both runners: how often they learn, and that both learn the same."""

import jax
import numpy as np
import pytest

from podracer.build import build
from podracer.config import load_config
from podracer.runner import Due
from podracer.trees import to_arrays

SMALL = ["agent=dqn", "agent.batch_size=8", "agent.unroll_length=4", "network=mlp", "network.hidden_sizes=[8]"]
SMALL += ["env.num_envs=8", "evaluation.num_episodes=0", "logger=quiet", "replay.capacity=512"]
SMALL += ["replay.learning_starts=64"]
RUNNERS = {
    "anakin": ["runner=anakin", "mesh.learner=1"],
    "two devices": ["runner=anakin", "mesh.learner=2"],
    "lockstep": [
        "runner=sebulba",
        "runner.mode=lockstep",
        "runner.threads_per_device=1",
        "mesh.actor=1",
        "mesh.learner=1",
    ],
    "fixed lag": ["runner=sebulba", "mesh.actor=1", "mesh.learner=2"],
    "free": ["runner=sebulba", "runner.mode=free", "mesh.actor=1", "mesh.learner=1"],
}


def reports_of(*overrides):
    runner = build(load_config([*SMALL, *overrides])).runner
    return list(runner.run(runner.init(), lambda updates: Due(10**9)))


@pytest.mark.parametrize(
    ("runner", "ratio"),
    [
        ("two devices", "replay.samples_per_insert=2.3"),
        ("lockstep", "replay.replay_ratio=0.07"),
        ("free", "replay.samples_per_insert=2.3"),
    ],
)
def test_F09_the_ratio_is_honoured(runner, ratio):
    """Within 1 % and one update of what the valid transitions after the first 100 demand; CartPole resets often."""
    reports = reports_of(*RUNNERS[runner], "total_env_steps=6400", "replay.learning_starts=100", ratio)
    made = sum(report.counters["agent_updates"] for report in reports)
    env_steps = reports[-1].env_steps
    updates_per_insert = 2.3 / 8 if "samples" in ratio else 0.07
    assert env_steps < 6300  # slots on which an environment resets insert nothing
    assert abs(made - updates_per_insert * (env_steps - 100)) <= 1 + 0.01 * made
    assert reports[-1].updates == 200


def test_metrics_are_absent_until_learning_starts():
    reports = reports_of(
        *RUNNERS["lockstep"], "runner.updates_per_report=1", "total_env_steps=320", "replay.learning_starts=150"
    )
    learnt = [report.counters["agent_updates"] for report in reports]
    assert learnt[:4] == [0, 0, 0, 0] and learnt[-1] > 0
    assert all(("q_loss" in report.metrics) == (count > 0) for report, count in zip(reports, learnt, strict=True))
    assert all(np.isfinite(value) for report in reports for value in report.metrics.values())


@pytest.mark.parametrize("replay", ["uniform", "prioritised"])
def test_anakin_equals_lockstep_sebulba_with_replay(replay):
    """The same actions, batches and parameters on the same JAX environment, store and all."""
    overrides = [f"replay={replay}", "env=catch", "total_env_steps=640", "replay.learning_starts=64"]
    states = []
    for name in ("anakin", "lockstep"):
        runner = build(load_config([*SMALL, *RUNNERS[name], *overrides])).runner
        reports = list(runner.run(runner.init(), lambda updates: Due(updates + 1 if updates > 18 else 19, state=True)))
        states.append(
            to_arrays({"learner": reports[-1].state.device.learner, "replay": reports[-1].state.device.replay})
        )
    anakin, lockstep = states
    assert list(anakin) == list(lockstep)
    for name in anakin:
        np.testing.assert_allclose(anakin[name], lockstep[name], rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["agent=ppo", "replay=uniform"],
            "fresh unrolls only, which replay=uniform is not for; use replay=on_policy",
        ),
        (["agent=dqn", "replay=on_policy"], "agent=dqn learns from a store .* use replay=.*uniform"),
        (["agent=dqn", "agent.batch_size=7", "mesh.learner=2"], "batch_size=7 does not divide over 2"),
        (["agent=dqn", "replay.capacity=3"], "capacity=3 transitions are too few"),
        (["agent=dqn", "replay.samples_per_insert=8", "replay.replay_ratio=8"], "contradicts"),
    ],
)
def test_what_does_not_fit_is_refused(overrides, message):
    with pytest.raises(ValueError, match=message):
        build(load_config([*overrides, "env.num_envs=8"]))


def test_the_plan_says_what_the_store_comes_to():
    plan = build(load_config([*SMALL, "mesh.learner=1", "replay.samples_per_insert=2"])).plan
    assert plan.replay["capacity"] == 512 and plan.replay["replay_ratio"] == 2 / 8
    state = build(load_config([*SMALL, "mesh.learner=1"])).runner.init().device.replay
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    assert plan.memory["learner device: replay"] == held
