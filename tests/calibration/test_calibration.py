"""Calibration: what is measured and proposed, with costs that are given, and from the command line."""

import json

import pytest

from podracer import cli
from podracer.calibration import report, sides
from podracer.calibration.calibrate import calibrate
from podracer.calibration.model import ActingCost, LearningCost
from podracer.config import load_config
from podracer.conversion import ConfigError
from podracer.parallel.topologies import local_topology

TINY = ["env=catch", "env.num_envs=8", "agent.unroll_length=4", "agent.num_minibatches=1", "network=mlp"]
TINY += ["network.hidden_sizes=[8]", "agent.num_epochs=1"]
SEBULBA = [*TINY, "runner=sebulba", "runner.threads_per_device=2", "mesh.learner_ids=[0]", "mesh.actor_ids=[0]"]


@pytest.fixture
def costs(monkeypatch):
    """Costs in place of measurements: actors as quick as they are few, a learner that takes 1 ms an environment."""
    measured = []

    def time_actors(runner, seconds):
        plan = runner.plan
        measured.append(("acting", plan.actors, plan.envs_per_actor, plan.unroll_length))
        spent = 0.001 * plan.actors
        return ActingCost(plan.env_steps_per_update, spent, 0.25 * spent, 0.75 * spent, 0.001 * spent), []

    def time_learner(runner, unrolls, seconds):
        measured.append(("learning", runner.plan.num_envs, runner.plan.unroll_length))
        return LearningCost(0.0001 * runner.plan.num_envs, 1e-9)

    monkeypatch.setattr(sides, "time_actors", time_actors)
    monkeypatch.setattr(sides, "time_learner", time_learner)
    monkeypatch.setattr(sides, "available_processors", lambda cores, seconds: float(cores))
    return measured


def test_every_part_is_measured_once_and_the_fastest_is_proposed(costs):
    calibration = calibrate(load_config(SEBULBA), 1000.0, lambda what: None)
    assert calibration.left_out == 0
    assert len(set(costs)) == len(costs)
    rates = {
        (item.candidate.num_envs, item.candidate.threads_per_device): item.prediction.steps_per_second
        for item in calibration.calibrated
        if item.candidate.unroll_length == 4
    }
    # Base: two actors take 2 ms and the learner 0.8 for 32 steps; one actor takes 1 ms.
    assert rates[8, 2] == pytest.approx(32 / 0.002)
    assert rates[8, 1] == pytest.approx(32 / 0.001)
    # 32 environments on one actor: the learner takes 3.2 ms for 128 steps, and those of 16 environments 1.6 for 64.
    assert rates[32, 1] == pytest.approx(128 / 0.0032)
    same_batch = calibration.best(same_batch=True)
    assert same_batch.candidate.changes(calibration.base) == {"runner.threads_per_device": 1}
    assert calibration.best().prediction.steps_per_second == max(rates.values())
    assert calibration.best().prediction.limit == "learner"


def test_the_proposal_replaces_the_override_that_it_changes(costs):
    calibration = calibrate(load_config(SEBULBA), 1000.0, lambda what: None)
    proposed = report.proposal(calibration.best(same_batch=True), calibration, SEBULBA)
    assert proposed == [*(text for text in SEBULBA if "threads" not in text), "runner.threads_per_device=1"]
    load_config(proposed)
    shown = report.to_text(calibration, SEBULBA)
    assert "'network.hidden_sizes=[8]'" in shown  # as a shell takes it
    assert "fastest with the batch as it is: 32.0k steps/s" in shown


def test_a_base_that_nothing_beats_notably_is_kept(costs):
    config = load_config([*SEBULBA, "runner.threads_per_device=1", "total_env_steps=32"])  # no larger batch fits
    calibration = calibrate(config, 1000.0, lambda what: None)
    assert calibration.best() is calibration.calibrated[0]
    assert report.to_json(calibration, SEBULBA)["proposed"]["fastest"] == SEBULBA
    assert "nothing that was tried is notably faster" in report.to_text(calibration, SEBULBA)


def test_a_machine_that_others_use_is_told_of(costs, monkeypatch):
    config = load_config([*SEBULBA, "total_env_steps=32"])
    cores = local_topology().cores_per_host
    monkeypatch.setattr(sides, "available_processors", lambda cores, seconds: 0.7 * cores)
    busy = calibrate(config, 1000.0, lambda what: None)
    assert f"{0.7 * cores:.1f} of {cores} processors" in report.to_text(busy, SEBULBA)
    monkeypatch.setattr(sides, "available_processors", lambda cores, seconds: 0.99 * cores)
    assert "other processes" not in report.to_text(calibrate(config, 1000.0, lambda what: None), SEBULBA)


def test_only_the_base_is_measured_without_time(costs):
    calibration = calibrate(load_config(SEBULBA), 1e-6, lambda what: None)
    assert [item.candidate for item in calibration.calibrated] == [calibration.base]
    assert calibration.left_out > 0
    assert len(costs) == 2


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("topology=tpu-v3-2048", "topology=tpu-v3-2048 is not the machine at hand.*leave out topology"),
        ("topology.hosts=2", "not the machine at hand"),
        ("recording.folder=somewhere", "recording.folder is not for --calibrate.*leave it out"),
        ("debug=true", "debug is not for --calibrate"),
    ],
)
def test_what_cannot_be_measured_here_is_refused(override, said):
    with pytest.raises(ConfigError, match=said):
        calibrate(load_config([*TINY, override]), 1.0, lambda what: None)


def test_the_command_refuses_machines_that_are_not_there_and_times_that_are_none(capsys):
    assert cli.main(["plan", "--calibrate", "topology=tpu-v3-2048", "runner=sebulba", "env.num_envs=65536"]) == 2
    assert "leave out topology=..., or --calibrate" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["plan", "--calibrate", "--seconds", "0"])
    assert "0 is not positive" in capsys.readouterr().err


def test_the_command_calibrates_sebulba(capsys):
    assert cli.main(["plan", "--calibrate", "--seconds", "4", "--json", *SEBULBA]) == 0
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    base = document["candidates"][0]
    assert base["changes"] == {}
    assert (base["num_envs"], base["unroll_length"], base["threads_per_device"]) == (8, 4, 2)
    seconds = base["seconds"]
    assert 0 < base["steps_per_second"] <= 32 / max(seconds["actors"], seconds["learner"], seconds["processors"])
    assert seconds["environment"] + seconds["acting"] == pytest.approx(seconds["actors"])
    assert document["processors"] > 0
    assert "measuring acting: 2 actors x 4 environments x 4 steps" in shown.err
    assert "measuring learning: 8 environments x 4 steps" in shown.err


def test_the_command_calibrates_anakin_with_replay(capsys):
    arguments = [
        "agent=dqn",
        "env=catch",
        "env.num_envs=8",
        "network=mlp",
        "network.hidden_sizes=[8]",
        "mesh.learner=1",
    ]
    assert cli.main(["plan", "--calibrate", "--seconds", "2", *arguments]) == 0
    shown = capsys.readouterr()
    assert "milliseconds of an update, predicted: anakin" in shown.out
    assert "as it is: " in shown.out
    assert "measuring the program: 8 environments x 4 steps" in shown.err
