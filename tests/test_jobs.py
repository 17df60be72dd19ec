"""The runs of a sweep: one that fails, one that is started again. Training is a double that says what it got."""

import json
import re
import sys
from pathlib import Path

import pytest

import podracer.api
from podracer import cli
from podracer.config import load_config, save_config
from podracer.conversion import ConfigError
from podracer.jobs import Failure
from podracer.provenance import record_run
from podracer.resume import completed, set_aside


@pytest.fixture
def train(monkeypatch, tmp_path):
    """The double's calls; seeds in `train.failures` raise, and the others end as a run does."""

    class Train:
        def __init__(self):
            self.seeds, self.failures = [], {}

        def __call__(self, config, folder, command):
            record_run(config, folder, command)
            self.seeds.append(config.seed)
            (folder / "metrics.jsonl").write_text("{}\n")
            if config.seed in self.failures:
                raise self.failures.pop(config.seed)
            result = {"status": "completed", "final_return": float(config.seed)}
            (folder / "result.json").write_text(json.dumps(result))
            return result

    double = Train()
    monkeypatch.setattr(podracer.api, "train", double)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    return double


def test_C05_fail_fast_starts_no_further_run(train, capsys):
    train.failures = {1: RuntimeError("the second one")}
    assert cli.main(["train", "-m", "seed=0,1,2,3", "fail_fast=true"]) == 1
    assert train.seeds == [0, 1]
    printed = capsys.readouterr().err
    assert "1 runs of the sweep failed" in printed and "RuntimeError: the second one" in printed
    assert printed.partition("2 runs were not started")[2].split() == [
        "(fail_fast=true):",
        "seed=2",
        "fail_fast=True",
        "seed=3",
        "fail_fast=True",
    ]


def test_fail_fast_is_of_one_sweep(train):
    train.failures = {0: RuntimeError("once")}
    assert cli.main(["train", "-m", "seed=0,1", "fail_fast=true", "hydra.sweep.dir=a"]) == 1
    assert cli.main(["train", "-m", "seed=0,1", "fail_fast=true", "hydra.sweep.dir=b"]) == 0
    assert train.seeds == [0, 0, 1]


def test_F06_a_sweep_that_was_killed_does_only_what_is_missing(train, tmp_path, capsys):
    """Of six runs the fourth is killed before its first checkpoint: again, and runs four to six are made."""
    command = ["train", "-m", "seed=0,1,2,3,4,5", "hydra.sweep.dir=sweep", "resume=auto"]
    train.failures = {3: KeyboardInterrupt()}
    assert cli.main(command) == 130
    assert train.seeds == [0, 1, 2, 3]
    train.seeds.clear()
    assert cli.main(command) == 0
    assert train.seeds == [3, 4, 5]
    assert capsys.readouterr().out.count("is completed") == 3
    assert (tmp_path / "sweep/3/died-1/metrics.jsonl").is_file()
    train.seeds.clear()
    assert cli.main(command) == 0 and train.seeds == []


def test_a_run_with_other_settings_is_not_taken_for_done(tmp_path):
    config = load_config(["seed=1", "total_env_steps=1000"])
    record_run(config, tmp_path, ["podracer"])
    assert completed(tmp_path, config) is None
    (tmp_path / "result.json").write_text('{"status": "interrupted", "final_return": null}')
    assert completed(tmp_path, config) is None
    (tmp_path / "result.json").write_text('{"status": "completed", "final_return": 3.0}')
    assert completed(tmp_path, config)["final_return"] == 3.0
    assert completed(tmp_path, load_config(["seed=1", "total_env_steps=2000"])) is None  # its budget has grown
    with pytest.raises(ConfigError, match="seed: 1 in the run, 2 now"):
        completed(tmp_path, load_config(["seed=2"]))


def test_only_what_a_run_wrote_is_set_aside(tmp_path):
    config = load_config(["seed=1"])
    (tmp_path / "notes.txt").write_text("mine")
    set_aside(tmp_path, config)  # no run's folder
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    save_config(config, tmp_path / "config.yaml")
    (tmp_path / "metrics.jsonl").write_text("{}")
    set_aside(tmp_path, config)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["died-1", "notes.txt"]
    assert sorted(path.name for path in (tmp_path / "died-1").iterdir()) == ["config.yaml", "metrics.jsonl"]


def test_a_failure_can_be_told_of_by_another_process():
    failure = Failure(["seed=1"], "runs/a", "RuntimeError", "no luck", False)
    assert Failure(**json.loads(json.dumps(failure._asdict()))) == failure


def test_C05_processes_of_a_launcher_share_a_folder_and_tell_of_failures(tmp_path, monkeypatch, capfd):
    """Joblib's own processes: both runs are refused, and the command says so at its end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    command = ["train", "-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "seed=0,1", "mesh.learner=999"]
    assert cli.main(command) == 2
    summary = capfd.readouterr().err.partition("2 runs of the sweep failed")[2]
    folders = re.findall(r"\((\S+)\): ConfigError", summary)
    assert sorted(Path(folder).name for folder in folders) == ["0", "1"]
    assert len({Path(folder).parent for folder in folders}) == 1
