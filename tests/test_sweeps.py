"""Sweeps that a file defines. Training is a double that says what it got."""

import json
import subprocess
import sys

import pytest
import yaml

import podracer.api
from podracer import cli, composition
from podracer.conversion import ConfigError
from podracer.locations import config_files
from podracer.provenance import record_run
from tests import commands


@pytest.fixture
def train(monkeypatch, tmp_path):
    """The configurations that were trained with, and where."""
    calls = []

    def train(config, folder, command):
        record_run(config, folder, command)
        calls.append((config, command))
        result = {"status": "completed", "final_return": float(config.seed)}
        (folder / "result.json").write_text(json.dumps(result))
        return result

    monkeypatch.setattr(podracer.api, "train", train)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    return calls


def test_F06_a_sweep_of_seeds_is_chosen_by_name(train):
    assert cli.main(["train", "-m", "sweep=seeds", "agent=impala"]) == 0
    assert [config.seed for config, _ in train] == list(range(5))
    assert {config.agent.name for config, _ in train} == {"impala"}


def test_F06_a_sweep_of_agents_is_chosen_by_name_and_overridden(train):
    assert cli.main(["train", "-m", "sweep=cartpole_agents", "seed=7", "runner=anakin,sebulba"]) == 0
    made = [(config.agent.name, config.runner.name, config.seed) for config, _ in train]
    assert made == [(agent, runner, 7) for agent in ("ppo", "impala", "pqn") for runner in ("anakin", "sebulba")]
    assert {config.env.id for config, _ in train} == {"CartPole-v1"}


def test_what_does_a_run_again_names_no_sweep(train):
    cli.main(["train", "-m", "sweep=seeds"])
    assert train[3][1] == ["podracer", "train", "seed=3"]


def test_a_sweep_is_refused_as_one_run(train, capsys):
    assert cli.main(["train", "sweep=seeds"]) == 2
    assert "podracer train -m sweep=seeds" in capsys.readouterr().err and not train


@pytest.mark.parametrize(
    ("code", "override", "message"),
    [
        ("", "hydra/launcher=submitit_slurm", "hydra/launcher=submitit_slurm needs a package"),
        ("", "hydra/launcher=joblib", 'pip install "podracer[joblib]"'),
        ("ray", "hydra/launcher=ray", 'pip install "podracer[ray]"'),
        ("optuna", "hydra/sweeper=optuna", 'pip install "podracer[optuna]"'),
    ],
)
def test_a_package_that_is_missing_is_named(code, override, message, tmp_path):
    """In a process that cannot import it."""
    hidden = ["hydra_plugins.hydra_submitit_launcher", "hydra_plugins.hydra_joblib_launcher", code or "submitit"]
    program = f"""
import sys
sys.modules |= dict.fromkeys({hidden})
from podracer import cli
sys.exit(cli.main(["train", "-m", {override!r}, "seed=0,1"]))
"""
    command, environment = [sys.executable, "-c", program], commands.environment(tmp_path)
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr


def test_an_interval_is_for_optuna(train, capsys):
    assert cli.main(["train", "-m", "agent.learning_rate=interval(1e-4,1e-2)"]) == 2
    assert "hydra/sweeper=optuna does" in capsys.readouterr().err and not train


def test_the_nearest_sweep_is_named(train, capsys):
    assert cli.main(["train", "-m", "sweep=seds"]) == 2
    assert "did you mean sweep=seeds?" in capsys.readouterr().err and not train


@pytest.fixture
def register(monkeypatch, tmp_path):
    """Reads the files under `configs/` anew, and one sweep more."""

    def read(content):
        path = tmp_path / "mine.yaml"
        path.write_text(yaml.safe_dump(content))
        monkeypatch.setattr(composition, "config_files", lambda: [*config_files(), ("sweep/mine", path)])
        return composition.register.__wrapped__()

    return read


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"hydra": {"sweeper": {"params": {"agent.lerning_rate": "1,2"}}}}, "agent.lerning_rate; did you mean"),
        ({"hydra": {"sweeper": {"params": {"agnet": "ppo,pqn"}}}}, "unknown key agnet; did you mean agent"),
        ({"seed": 3}, "seed is set outside of hydra.sweeper.params; write it there"),
    ],
)
def test_an_unknown_key_in_a_file_is_named(register, content, message):
    with pytest.raises(ConfigError, match=rf"^sweep/mine: .*{message}"):
        register(content)


def test_a_sweep_of_the_users_own_is_refused_before_anything_runs(train, tmp_path, capsys):
    (tmp_path / "own/sweep").mkdir(parents=True)
    file = tmp_path / "own/sweep/rates.yaml"
    content = "# @package _global_\nhydra:\n  sweeper:\n    params:\n      agent.{}: 1e-3,1e-4\n"
    file.write_text(content.format("lerning_rate"))
    assert cli.main(["train", "--config-dir", "own", "-m", "sweep=rates"]) == 2
    assert "agent.lerning_rate" in capsys.readouterr().err and not train
    file.write_text(content.format("learning_rate"))
    assert cli.main(["train", "--config-dir", "own", "-m", "sweep=rates"]) == 0
    assert [config.agent.settings["learning_rate"] for config, _ in train] == [1e-3, 1e-4]
