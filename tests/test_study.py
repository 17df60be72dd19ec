"""`hydra/sweeper=optuna` with the real package. Training is a double where its numbers do not matter."""

import json
import math
import os
import re
import signal
import sys
import time

import optuna
import pytest
import yaml

import podracer.api
from podracer import cli
from podracer.config import load_config
from podracer.driving import Pruned
from podracer.provenance import record_run
from tests.commands import SHORT, finish, start
from tests.contract.tables import ENVS, SMALL

_STUDY = ("train", "-m", "hydra/sweeper=optuna", "hydra.sweeper.seed=0", "hydra.sweep.dir=sweep")


@pytest.fixture
def train(monkeypatch, tmp_path):
    """A double that scores x = agent.entropy_cost with -(x - 3)²; `train.outcome` may say otherwise."""

    class Train:
        def __init__(self):
            self.calls, self.outcome = [], lambda x, number: -((x - 3) ** 2)

        def __call__(self, config, folder, command, watch=None):
            record_run(config, folder, command)
            x, number = config.agent.settings["entropy_cost"], len(self.calls)
            self.calls.append(x)
            outcome = self.outcome(x, number)
            if isinstance(outcome, BaseException):
                raise outcome
            result = {"status": "completed", "final_return": outcome, "best_return": 7.0, "steps_per_second": 9.0}
            (folder / "result.json").write_text(json.dumps(result))
            return result

    double = Train()
    monkeypatch.setattr(podracer.api, "train", double)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    return double


def trials(folder):
    return optuna.load_study(study_name="podracer", storage=f"sqlite:///{folder}/sweep/study.db").trials


def states(folder):
    return [trial.state.name for trial in trials(folder)]


def test_C06_a_study_maximises_what_is_logged_and_says_so(train, tmp_path, capsys):
    assert cli.main([*_STUDY, "agent.entropy_cost=interval(0,10)", "hydra.sweeper.n_trials=25"]) == 0
    printed = capsys.readouterr().out
    assert "objective=final_return direction=maximize" in printed
    results = yaml.safe_load((tmp_path / "sweep/optimization_results.yaml").read_text())
    best = results["best_params"]["agent.entropy_cost"]
    assert abs(best - 3) < 0.5
    assert f"best of 25 trials is {results['best_trial']}" in printed
    logged = json.loads((tmp_path / f"sweep/{results['best_trial']}/result.json").read_text())["final_return"]
    assert math.isfinite(logged) and logged == results["best_value"] == -((best - 3) ** 2)
    errors = [abs(x - 3) for x in train.calls]
    assert sum(errors[-10:]) < sum(errors[:10]) / 2  # it has learnt where to look


def test_C05_runs_that_crash_or_say_nothing_are_failed_trials(train, tmp_path, capsys):
    train.outcome = lambda x, number: {1: RuntimeError("no luck"), 2: math.nan, 3: None}.get(number, x)
    assert cli.main([*_STUDY, "agent.entropy_cost=interval(0,10)", "hydra.sweeper.n_trials=6"]) == 1
    assert states(tmp_path) == ["COMPLETE", "FAIL", "FAIL", "FAIL", "COMPLETE", "COMPLETE"]
    printed = capsys.readouterr().err
    summary = printed.partition("3 runs of the sweep failed")[2]
    assert re.findall(r"sweep/(\d)\): (\w+)", summary) == [
        ("1", "RuntimeError"),
        ("2", "ValueError"),
        ("3", "ValueError"),
    ]
    assert "objective=final_return says nothing of this run: it is nan" in summary and "made no evaluation" in summary


def test_C05_fail_fast_ends_a_study_which_goes_on_later(train, tmp_path):
    train.outcome = lambda x, number: RuntimeError("no luck") if number == 1 else x
    command = [*_STUDY, "agent.entropy_cost=interval(0,10)", "hydra.sweeper.n_trials=4", "hydra.sweeper.batch_size=3"]
    assert cli.main([*command, "fail_fast=true"]) == 1
    assert states(tmp_path) == ["COMPLETE", "FAIL", "RUNNING"] and len(train.calls) == 2
    assert cli.main(command) == 0
    assert states(tmp_path) == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
    assert train.calls == [trial.params["agent.entropy_cost"] for trial in trials(tmp_path)]


def test_F06_a_study_that_was_killed_goes_on_with_the_trial_in_hand(train, tmp_path, capsys):
    command = [*_STUDY, "agent.entropy_cost=interval(0,10)", "hydra.sweeper.n_trials=4"]
    train.outcome = lambda x, number: KeyboardInterrupt() if number == 2 else x
    assert cli.main(command) == 130
    assert states(tmp_path) == ["COMPLETE", "COMPLETE", "RUNNING"]
    assert cli.main(command) == 0
    assert states(tmp_path) == ["COMPLETE"] * 4
    assert train.calls[3] == train.calls[2] and len(set(train.calls)) == 4
    assert "2 of 4 trials are done" in capsys.readouterr().out
    assert cli.main([*command, "hydra.sweeper.n_trials=5"]) == 0
    assert states(tmp_path) == ["COMPLETE"] * 5 and len(train.calls) == 6


def test_the_space_is_what_hydras_sweeps_say(train, tmp_path):
    space = ["agent.entropy_cost=tag(log,interval(1e-4,1e-2))", "env.num_envs=range(8,33,8)", "agent=ppo,impala"]
    space += ["agent.unroll_length=int(interval(2,5))", "network.hidden_sizes=[8],[4,4]", "seed=3"]
    assert cli.main([*_STUDY, *space, "hydra.sweeper.n_trials=8"]) == 0
    distributions = optuna.distributions
    assert trials(tmp_path)[0].distributions == {
        "agent.entropy_cost": distributions.FloatDistribution(1e-4, 1e-2, log=True),
        "env.num_envs": distributions.IntDistribution(8, 32, step=8),
        "agent": distributions.CategoricalDistribution(("ppo", "impala")),
        "agent.unroll_length": distributions.IntDistribution(2, 5),
        "network.hidden_sizes": distributions.CategoricalDistribution(("[8]", "[4,4]")),
    }
    config = yaml.safe_load((tmp_path / "sweep/5/config.yaml").read_text())
    tried = trials(tmp_path)[5].params
    assert config["seed"] == 3 and config["env"]["num_envs"] == tried["env.num_envs"]
    assert config["agent"]["entropy_cost"] == tried["agent.entropy_cost"]
    assert str(config["network"]["hidden_sizes"]).replace(" ", "") == tried["network.hidden_sizes"]


def test_F06_a_search_is_chosen_by_name_and_overridden(train, tmp_path):
    train.outcome = lambda x, number: x
    command = ["train", "-m", "sweep=ppo_search", "agent.num_epochs=2", "hydra.sweeper.n_trials=2"]
    assert cli.main([*command, "hydra.sweep.dir=sweep", "env=gymnax/acrobot"]) == 0
    searched = {"agent.learning_rate", "agent.entropy_cost", "agent.gae_lambda"}
    assert [set(trial.params) for trial in trials(tmp_path)] == [searched] * 2
    config = yaml.safe_load((tmp_path / "sweep/1/config.yaml").read_text())
    assert config["env"]["id"] == "Acrobot-v1" and config["agent"]["num_epochs"] == 2
    assert config["agent"]["unroll_length"] == 64  # of the experiment


@pytest.mark.parametrize(("objective", "value"), [("best_return", 7.0), ("steps_per_second", 9.0)])
def test_the_objective_is_a_setting(train, tmp_path, objective, value):
    command = [*_STUDY, "agent.entropy_cost=interval(0,10)", "hydra.sweeper.n_trials=1", f"objective={objective}"]
    assert cli.main(command) == 0
    assert trials(tmp_path)[0].value == value


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["seed=3"], "nothing to search"),
        (["agent.entropy_cost=interval(1,0)"], "agent.entropy_cost=interval"),
        (["agent.entropy_cost=interval(0,1)", "objective=finalreturn"], "finalreturn is none of final_return"),
        (["agent.entropy_cots=interval(0,1)"], "did you mean agent.entropy_cost"),
        (["seed=1,2", "hydra.sweeper.sampler=TPE"], "known are BruteForceSampler"),
        (["seed=1,2", "hydra.sweeper.sampler_kwargs.startup=3"], "startup"),
        (["seed=1,2", "hydra.sweeper.pruner=Median"], "did you mean 'MedianPruner'"),
        (["seed=1,2", "hydra.sweeper.pruner=MedianPruner", "objective=steps_per_second"], "pruner=null"),
        (["seed=1,2", "hydra.sweeper.direction=up"], "neither maximize nor minimize"),
        (["seed=1,2", "hydra.sweeper.n_trials=0"], "n_trials=0"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(train, overrides, message, capsys):
    assert cli.main([*_STUDY, *overrides]) == 2
    assert message in capsys.readouterr().err and not train.calls


@pytest.mark.parametrize("override", ["hydra.sweeper.direction=minimize", "objective=best_return"])
def test_C06_a_study_that_is_there_is_not_turned_round(train, override, capsys):
    command = [*_STUDY, "agent.entropy_cost=interval(0,10)", "hydra.sweeper.n_trials=1"]
    assert cli.main(command) == 0
    assert cli.main([*command, "hydra.sweeper.n_trials=2", override]) == 2
    assert f"{override}, but the study in" in capsys.readouterr().err and len(train.calls) == 1


# From here on runs are real: CartPole gives returns that differ.
_REAL = (*SMALL, "env=gymnax/cartpole", "mesh.learner=1", "agent=ppo", "total_env_steps=480", "logger.console=none")
_REAL = (*_REAL, "evaluation.num_episodes=4", "evaluation.num_evaluations=5", "runner.updates_per_call=1")


def evaluations(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["episode_return"] for row in rows if row["kind"] == "evaluation"]


def test_a_run_ends_where_it_is_pruned_and_can_go_on(tmp_path):
    told = []

    def watch(number, mean):
        told.append((number, mean))
        return number < 2

    config = load_config(_REAL)
    result = podracer.train(config, tmp_path / "run", watch=watch)
    assert result["status"] == "pruned" == json.loads((tmp_path / "run/result.json").read_text())["status"]
    assert told == list(enumerate(evaluations(tmp_path / "run"), 1)) and len(told) == 2
    assert result["updates"] == 4 and result["final_return"] is None
    whole = podracer.api.resume(tmp_path / "run", watch=lambda number, mean: told.append((number, mean)) or True)
    assert whole["status"] == "completed" and whole["updates"] == 10
    assert [number for number, _ in told] == [1, 2, 2, 3, 4]  # the final evaluation has nothing to prune
    assert not issubclass(Pruned, KeyboardInterrupt)


@pytest.mark.parametrize("launcher", [(), ("hydra/launcher=vectorised", "hydra.sweeper.batch_size=3")])
def test_hopeless_trials_are_pruned(tmp_path, monkeypatch, launcher):
    """A learning rate of nothing in trials of all launchers: below the threshold at the first evaluation."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    pruner = ["hydra.sweeper.pruner=ThresholdPruner", "hydra.sweeper.pruner_kwargs.lower=1e9"]
    pruner += ["hydra.sweeper.pruner_kwargs.n_warmup_steps=3", "hydra.sweeper.n_trials=3"]
    command = [*_STUDY, *_REAL, *launcher, *pruner, "agent.learning_rate=interval(1e-4,1e-2)"]
    assert cli.main(command) == 0
    assert states(tmp_path) == ["PRUNED"] * 3
    for trial in trials(tmp_path):
        folder = tmp_path / f"sweep/{trial.number}"
        assert trial.intermediate_values == dict(enumerate(evaluations(folder), 1)) and len(evaluations(folder)) == 3
        assert json.loads((folder / "result.json").read_text())["status"] == "pruned"


def test_the_area_under_the_curve_is_an_objective(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    command = [*_STUDY, *_REAL, "hydra.sweeper.n_trials=2", "hydra.sweeper.batch_size=2", "hydra/launcher=vectorised"]
    assert cli.main([*command, "objective=mean_return", "agent.learning_rate=interval(1e-4,1e-2)"]) == 0
    for trial in trials(tmp_path):
        returns = evaluations(tmp_path / f"sweep/{trial.number}")
        assert len(returns) == 5 and trial.value == pytest.approx(sum(returns) / 5)


@pytest.mark.slow
def test_F06_a_study_whose_process_is_killed_goes_on_with_joblibs_processes(tmp_path):
    """Killed at once, with the trials of a batch in hand; pruning, so that all write to the study."""
    command = ["train", "-m", "hydra/sweeper=optuna", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", *SHORT]
    command += ["hydra.sweeper.n_trials=3", "hydra.sweeper.batch_size=2", "hydra.sweeper.pruner=MedianPruner"]
    command += ["agent.learning_rate=tag(log,interval(1e-4,1e-2))", "hydra.sweep.dir=sweep", *ENVS["catch"]]
    process = start(tmp_path, *command)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("sweep/*/config.yaml")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGKILL)
    finish(process)
    assert "RUNNING" in states(tmp_path)
    left = [trial.params for trial in trials(tmp_path)]
    done = finish(start(tmp_path, *command))
    assert done.returncode == 0, done.stderr
    made = trials(tmp_path)
    assert len(made) == 3 and all(trial.state.is_finished() for trial in made)
    assert all(trial.params.items() >= params.items() for trial, params in zip(made, left))
    assert all((tmp_path / f"sweep/{number}/result.json").is_file() for number in range(3))
