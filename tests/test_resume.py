"""A run that ended early goes on as if it had not: its settings, its rows, its result."""

import json

import pytest
import yaml

from podracer import api, checkpoint, cli
from podracer.config import load_config, read_config
from podracer.conversion import ConfigError
from podracer.loop import Loop
from podracer.resume import changed_config, changes
from tests.test_api import ANAKIN, DOUBLE, SEBULBA, SMALL, rows

RUNNERS = pytest.mark.parametrize("runner", [ANAKIN, SEBULBA], ids=["anakin", "sebulba"])
CHUNKS = {"anakin": "runner.updates_per_call=1", "sebulba": "runner.updates_per_report=1"}
NOT_COMPARED = ("seconds", "steps_per_second", "speed", "advice")


def overrides(runner):
    return [*SMALL, *runner, *DOUBLE, CHUNKS[runner[0].partition("=")[2]], "evaluation.num_evaluations=3"]


def comparable(row):
    return {key: value for key, value in row.items() if not key.endswith(NOT_COMPARED)}


def interrupt_after(monkeypatch, updates):
    """Makes the run stop, as a signal does, after so many updates."""
    handle = Loop.handle

    def handle_and_stop(self, report):
        handle(self, report)
        if report.updates >= updates:
            self.interrupts.requested = True

    monkeypatch.setattr(Loop, "handle", handle_and_stop)


def interrupted(monkeypatch, folder, runner, updates=8, *more):
    with monkeypatch.context() as patch:
        interrupt_after(patch, updates)
        with pytest.raises(KeyboardInterrupt) as stopped:
            api.train(load_config([*overrides(runner), *more]), folder)
    assert f"resume={folder} goes on from update" in stopped.value.__notes__[0]


@RUNNERS
def test_B27_an_interrupted_run_goes_on_without_a_seam(monkeypatch, tmp_path, runner):
    whole = api.train(load_config(overrides(runner)), tmp_path / "whole")
    interrupted(monkeypatch, tmp_path / "cut", runner)
    assert json.loads((tmp_path / "cut" / "result.json").read_text())["status"] == "interrupted"
    result = api.resume(tmp_path / "cut")
    for kind in ("train", "evaluation"):
        expected = [comparable(row) for row in rows(tmp_path / "whole", kind)]
        assert [comparable(row) for row in rows(tmp_path / "cut", kind)] == expected
    assert comparable(result) == comparable(whole)
    walls = [row["wall_seconds"] for row in rows(tmp_path / "cut")]
    assert walls == sorted(walls) and result["wall_seconds"] >= walls[-1]
    (resumed,) = json.loads((tmp_path / "cut" / "provenance.json").read_text())["resumed"]
    assert 8 < resumed["updates"] < 20 and resumed["changed"] == {}


@pytest.mark.parametrize("updates", [7, 20], ids=["periodic", "final"])
def test_B04_B27_an_evaluation_that_a_signal_ended_is_made_up_once(monkeypatch, tmp_path, updates):
    whole = api.train(load_config(overrides(ANAKIN)), tmp_path / "whole")
    evaluate = Loop._run_evaluation

    def stop_and_evaluate(self, policy):
        self.interrupts.requested |= self.progress.updates == updates
        return evaluate(self, policy)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_run_evaluation", stop_and_evaluate)
        with pytest.raises(KeyboardInterrupt):
            api.train(load_config(overrides(ANAKIN)), tmp_path / "cut")
    assert checkpoint.latest(tmp_path / "cut") == updates
    assert updates not in [row["updates"] for row in rows(tmp_path / "cut", "evaluation")]
    for _ in range(2):  # the checkpoint of a completed run does not know of it, its log does
        assert comparable(api.resume(tmp_path / "cut")) == comparable(whole)
        for kind in ("train", "evaluation"):
            expected = [comparable(row) for row in rows(tmp_path / "whole", kind)]
            assert [comparable(row) for row in rows(tmp_path / "cut", kind)] == expected
    if updates < 20:  # the last checkpoint is not written again, so it does not know what it was worth
        best = [checkpoint.load(tmp_path / folder, "best").updates for folder in ("cut", "whole")]
        assert best[0] == best[1]


def test_rows_after_the_checkpoint_come_once(monkeypatch, tmp_path):
    """A killed run has written rows that its last checkpoint knows nothing of."""
    interrupted(monkeypatch, tmp_path, ANAKIN)
    updates = checkpoint.latest(tmp_path)
    path = tmp_path / "metrics.jsonl"
    last = json.loads(path.read_text().splitlines()[-1])
    lost = {**last, "updates": updates + 1, "env_steps": last["env_steps"] + 8}
    path.write_text(path.read_text() + json.dumps(lost) + "\n" + '{"kind": "tra')
    api.resume(tmp_path)
    assert [row["updates"] for row in rows(tmp_path)] == list(range(1, 21))


def test_C11_budget_logging_and_evaluation_may_change_and_are_recorded(monkeypatch, tmp_path):
    interrupted(monkeypatch, tmp_path, ANAKIN)
    changed = ["total_env_steps=480", "evaluation.num_episodes=4", "logger.tensorboard=false"]
    result = api.resume(tmp_path, changed_config(tmp_path, [*changed, "resume=x", "hydra.run.dir=y"]))
    assert result["updates"] == 30 and rows(tmp_path, "evaluation")[-1]["episodes"] == 4
    config = read_config(tmp_path / "config.yaml")
    assert (config.total_env_steps, config.evaluation.num_episodes) == (480, 4)
    (resumed,) = json.loads((tmp_path / "provenance.json").read_text())["resumed"]
    assert resumed["changed"]["total_env_steps"] == [320, 480]


def test_C11_other_settings_are_refused_with_the_list(monkeypatch, tmp_path):
    interrupted(monkeypatch, tmp_path, ANAKIN)
    with pytest.raises(ConfigError) as refused:
        changed_config(tmp_path, ["seed=5", "env.num_envs=8", "total_env_steps=1000"])
    message = str(refused.value)
    assert "  seed: 0 in the run, 5 now" in message and "  env.num_envs: 4 in the run, 8 now" in message
    assert "total_env_steps:" not in message and "those that may change:" in message
    with pytest.raises(ConfigError, match=r"runner\.name: 'anakin' in the run, 'sebulba' now"):
        changed_config(tmp_path, ["runner=sebulba"])
    with pytest.raises(ConfigError, match="sed"):
        changed_config(tmp_path, ["sed=5"])


def test_a_group_may_be_chosen_anew(monkeypatch, tmp_path):
    interrupted(monkeypatch, tmp_path, ANAKIN)
    assert changed_config(tmp_path, ["logger=quiet"]).logger.console == "none"


def test_a_completed_run_is_over_unless_its_budget_grows(tmp_path):
    first = api.train(load_config(overrides(ANAKIN)), tmp_path)
    again = api.resume(tmp_path)
    assert comparable(again) == comparable(first)
    more = api.resume(tmp_path, changed_config(tmp_path, ["total_env_steps=400"]))
    assert more["updates"] == 25 and [row["updates"] for row in rows(tmp_path)] == list(range(1, 26))


def test_there_has_to_be_something_to_go_on_from(tmp_path):
    with pytest.raises(ConfigError, match="is not the folder of a run"):
        api.resume(tmp_path)
    api.train(load_config([*overrides(ANAKIN), "checkpoint.enabled=false"]), tmp_path / "run")
    with pytest.raises(ConfigError, match="parameters only"):
        api.resume(tmp_path / "run")


def test_an_edited_config_is_noticed_by_its_values(tmp_path):
    api.train(load_config(overrides(ANAKIN)), tmp_path)
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert changes(read_config(tmp_path / "config.yaml"), load_config(overrides(ANAKIN))) == {}
    assert config["checkpoint"]["keep_latest"] == 1


def test_the_command_resumes_a_folder_and_by_itself(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    command = [*overrides(ANAKIN), "hydra.run.dir=run", "resume=auto"]
    with monkeypatch.context() as patch:
        interrupt_after(patch, 8)
        assert cli.main(["train", *command]) == 130
    assert f"podracer train resume={tmp_path / 'run'} goes on from update" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        interrupt_after(patch, 14)
        assert cli.main(["train", *command]) == 130
    assert cli.main(["train", "resume=run"]) == 0
    assert [row["updates"] for row in rows(tmp_path / "run")] == list(range(1, 21))
    assert cli.main(["train", "resume=run", "seed=3"]) == 2
    assert "seed: 0 in the run, 3 now" in capsys.readouterr().err
    assert cli.main(["train", "resume=elsewhere"]) == 2
    assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").iterdir())
