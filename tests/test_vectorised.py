"""A sweep as one program, from the command line: its folders are those of runs that were trained alone."""

import json
import shutil
import sys

import pytest

import podracer
from podracer import cli
from podracer.config import load_config, read_config
from podracer.conversion import ConfigError
from podracer.runners.population import Population
from podracer.training import program_key
from tests.contract.tables import ENVS, SMALL

_RUN = (*SMALL, *ENVS["catch"], "agent=ppo", "total_env_steps=480", "logger.console=plain")
_RUN = (*_RUN, "evaluation.num_episodes=4", "evaluation.num_evaluations=2", "runner.updates_per_call=1")
_SWEEP = ("train", "-m", "hydra/launcher=vectorised", *_RUN, "hydra.sweep.dir=sweep")
# What a clock gives, of rows and results.
_TIMED = {"seconds", "per_second", "bytes", "utilisation", "advice"}


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    return tmp_path


def lasting(values):
    return {name: value for name, value in values.items() if not any(name.endswith(timed) for timed in _TIMED)}


def rows(folder):
    return [lasting(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def result(folder):
    return json.loads((folder / "result.json").read_text())


def saved(folder):
    """Updates behind the checkpoints of a run."""
    return sorted(int(path.name) for path in (folder / "checkpoints").iterdir())


def check_alike(together, alone):
    """The files of two runs, but for what a clock gives."""
    names = [{path.name.partition(".tfevents")[0] for path in folder.iterdir()} for folder in (together, alone)]
    assert names[0] == names[1]
    assert rows(together) == rows(alone)
    assert lasting(result(together)) == lasting(result(alone))
    assert podracer.evaluate(together) == podracer.evaluate(alone)


def test_F06_a_sweep_in_one_program_leaves_what_runs_alone_leave(folder, capsys):
    """Two seeds by two learning rates, then the last of them alone."""
    assert cli.main([*_SWEEP, "seed=3,4", "agent.learning_rate=1e-2,1e-3"]) == 0
    said = capsys.readouterr().out
    assert said.count("runs together") == 1 and "training 4 runs together" in said
    assert (
        cli.main(["train", *_RUN, "mesh.learner=1", "seed=4", "agent.learning_rate=1e-3", "hydra.run.dir=alone"]) == 0
    )
    check_alike(folder / "sweep/3", folder / "alone")
    configs = [read_config(folder / f"sweep/{number}/config.yaml") for number in range(4)]
    assert [config.seed for config in configs] == [3, 4, 3, 4]
    assert [config.agent.settings["learning_rate"] for config in configs] == [1e-2, 1e-2, 1e-3, 1e-3]
    assert rows(folder / "sweep/2") != rows(folder / "sweep/3")


def test_F06_a_sweep_in_one_program_that_was_killed_does_only_what_is_missing(folder, capsys):
    """One run is completed, two lack their end, one has nothing yet."""
    command = [*_SWEEP, "seed=0,1,2,3", "resume=auto", "checkpoint.keep_latest=9"]
    assert cli.main(command) == 0
    before = [rows(folder / f"sweep/{number}") for number in range(4)]
    middle = saved(folder / "sweep/1")[0]
    for number in (1, 2):
        (folder / f"sweep/{number}/result.json").unlink()
        for updates in saved(folder / f"sweep/{number}")[1:]:
            shutil.rmtree(folder / f"sweep/{number}/checkpoints/{updates}")
    shutil.rmtree(folder / "sweep/3")
    capsys.readouterr()
    assert cli.main(command) == 0
    said = capsys.readouterr().out
    assert "0 is completed" in said and "training 2 runs together" in said and "training 1 run together" in said
    assert 0 < middle < result(folder / "sweep/1")["updates"]
    assert [rows(folder / f"sweep/{number}") for number in range(4)] == before


def test_C05_a_member_that_fails_leaves_the_others_alone(folder, capsys):
    """A learning rate makes the parameters of one of three runs overflow."""
    assert cli.main([*_SWEEP, "agent.learning_rate=1e-2,1e38,1e-3"]) == 1
    printed = capsys.readouterr().err
    assert printed.count("Traceback") == 1
    summary = printed.partition("1 runs of the sweep failed")[2]
    assert "agent.learning_rate=1e+38" in summary and "sweep/1" in summary
    assert [result(folder / f"sweep/{number}")["status"] for number in range(3)] == ["completed", "failed", "completed"]
    assert cli.main(["train", *_RUN, "mesh.learner=1", "agent.learning_rate=1e-3", "hydra.run.dir=alone"]) == 0
    check_alike(folder / "sweep/2", folder / "alone")


def test_C05_an_error_of_the_program_is_shown_once(folder, monkeypatch, capsys):
    def broken(population):
        raise RuntimeError("it does not fit into memory")

    monkeypatch.setattr(Population, "init", broken)
    assert cli.main([*_SWEEP, "seed=0,1,2"]) == 1
    printed = capsys.readouterr().err
    assert printed.count("Traceback (most recent call last)") == 1
    assert printed.partition("3 runs of the sweep failed")[2].count("it does not fit into memory") == 3
    assert result(folder / "sweep/2")["status"] == "failed"


def test_what_cannot_share_a_program_is_grouped(capsys):
    """By the size of the network; one run is refused, and Sebulba's is trained by itself."""
    common = [*_SWEEP, "total_env_steps=96", "evaluation.num_episodes=0"]
    assert cli.main([*common, "seed=0,1", "network.hidden_sizes=[8],[4],[-1]"]) == 2
    said, printed = capsys.readouterr()
    assert said.count("training 2 runs together") == 3 and "2 runs of the sweep failed" in printed
    assert cli.main([*common, "seed=0,1,2", "hydra.launcher.max_together=2", "hydra.sweep.dir=second"]) == 0
    said = capsys.readouterr().out
    assert said.count("training 2 runs together") == said.count("training 1 run together") == 1
    sebulba = [override for override in common if not override.startswith("runner.")]
    assert (
        cli.main(
            [
                *sebulba,
                "runner=sebulba",
                "mesh.actor_ids=[0]",
                "mesh.learner_ids=[1]",
                "seed=0",
                "hydra.sweep.dir=third",
            ]
        )
        == 0
    )
    assert "training by itself" in capsys.readouterr().out


def test_C05_fail_fast_starts_no_further_group(folder, capsys):
    sweep = ["agent.learning_rate=1e38,1e-3", "network.hidden_sizes=[8],[4]", "fail_fast=true"]
    assert cli.main([*_SWEEP, *sweep]) == 1
    printed = capsys.readouterr().err
    assert "1 runs of the sweep failed" in printed and "2 runs were not started" in printed
    assert result(folder / "sweep/2")["status"] == "completed"  # of the group of the one that failed
    assert not (folder / "sweep/1").exists()


@pytest.mark.parametrize("setting", ["max_together=0", "batching=sideways"])
def test_settings_of_the_launcher_are_refused(setting, capsys):
    assert cli.main([*_SWEEP, f"hydra.launcher.{setting}"]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and setting in printed


def test_jobs_share_a_program_that_differ_in_seed_and_traceable_settings():
    def key(*overrides, started=None):
        return program_key(load_config([*_RUN, *overrides]), started)

    assert key() == key("seed=7") == key("agent.learning_rate=3e-4", "agent.discount_factor=0.9", "agent.gae_lambda=1")
    different = [
        key(),
        key("agent.num_epochs=2"),
        key("env.num_envs=16"),
        key("total_env_steps=960"),
        key("network=gru"),
    ]
    assert len(set(different)) == 5
    assert len({key(), key(started=2), key(started=4)}) == 3


_REFUSED = {  # overrides of two members, and what is said
    "runner": ([], ["runner=sebulba"], "needs runner=anakin"),
    "debug": ([], ["debug=true"], "needs runner=anakin, without debug"),
    "profile": ([], ["profile=true"], "without debug, profile"),
    "recording": ([], ["recording.folder=dataset"], "and recording.folder"),
    "network": ([], ["network.hidden_sizes=[8]"], "cannot share a program"),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_members_that_cannot_share_a_program_are_refused(name, tmp_path):
    first, second, said = _REFUSED[name]
    run = [override for override in _RUN if not override.startswith(("runner", "network"))]
    configs = [load_config([*run, *overrides]) for overrides in (first, second)]
    members = [podracer.Member(config, tmp_path / str(index), []) for index, config in enumerate(configs)]
    with pytest.raises(ConfigError, match=said):
        podracer.train_together(members)
    with pytest.raises(ConfigError, match="at least one member"):
        podracer.train_together([])
    assert not list(tmp_path.iterdir())


def test_several_devices_hold_as_many_members_each(folder):
    """Five runs in Python, on the eight devices of the tests: as on one."""
    configs = [load_config([*_RUN, "evaluation.num_episodes=0", f"seed={seed}"]) for seed in range(5)]
    members = [podracer.Member(config, folder / str(config.seed), ["podracer"]) for config in configs]
    results = podracer.train_together(members, batching="vmap")
    assert [each["status"] for each in results] == ["completed"] * 5
    assert len({json.dumps(rows(member.folder)) for member in members}) == 5
