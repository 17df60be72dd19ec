"""The command: help, exit status, run folders, sweeps. Training is replaced by a double that says what it got."""

import concurrent.futures
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml

import podracer.api
from podracer import cli, locations, runtime
from podracer.config import load_config
from podracer.conversion import ConfigError
from podracer.provenance import record_run
from podracer.runners.evaluator import EvaluationResult


class TrainDouble:
    """Claims the run's folder as `train` does, and records its calls; the seeds in `failures` raise."""

    def __init__(self):
        self.calls = []  # (config, folder, working directory)
        self.failures = {}

    def __call__(self, config, folder, command):
        record_run(config, folder, command)
        self.calls.append((config, folder, Path.cwd()))
        if config.seed in self.failures:
            raise self.failures[config.seed]
        return {"status": "completed", "final_return": float(config.seed)}

    def settings(self, name):
        return [config.agent.settings[name] for config, _, _ in self.calls]


@pytest.fixture
def train(monkeypatch, tmp_path):
    """The double, in an empty working directory; what the command changes in the process is put back."""
    double = TrainDouble()
    monkeypatch.setattr(podracer.api, "train", double)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    return double


def test_help_is_quick_and_imports_neither_jax_nor_hydra():
    code = (
        "import sys; from podracer.cli import main; assert main(['--help']) == 0\n"
        "assert not {'jax', 'hydra', 'omegaconf', 'numpy'} & set(sys.modules)"
    )
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    # A second on a quiet machine, with room for a busy one.
    assert time.monotonic() - start < 3.0
    for option, _ in locations.config_files():
        assert option.partition("/")[2] in done.stdout


def test_train_help_lists_every_key_with_its_default_and_meaning(capsys):
    assert cli.main(["train", "--help"]) == 0
    printed = capsys.readouterr().out
    for line in ("agent.learning_rate=", "env.time_limit=null", "env.suite  (required)", "runner.mode=fixed_lag"):
        assert f"\n  {line}" in printed
    assert "\n      Global number of environments that act.\n" in printed


def test_version_and_unknown_commands(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("podracer 0.")
    assert cli.main(["trian"]) == 2
    assert "train, plan, evaluate, runs, plot, compare" in capsys.readouterr().err


def test_C01_a_run_saves_its_configuration_and_where_it_comes_from(train, tmp_path):
    assert cli.main(["train", "agent.learning_rate=1e-5", "total_env_steps=1e6"]) == 0
    ((config, folder, _),) = train.calls
    assert folder.parent == tmp_path / "runs"
    saved = yaml.safe_load((folder / "config.yaml").read_text())
    assert saved["agent"]["learning_rate"] == config.agent.settings["learning_rate"] == 1e-5
    assert saved["total_env_steps"] == 1_000_000
    provenance = json.loads((folder / "provenance.json").read_text())
    assert provenance["command"] == "podracer train agent.learning_rate=1e-5 total_env_steps=1e6"
    assert provenance["versions"]["jax"] == jax.__version__
    assert len(provenance["devices"]) == jax.device_count()
    assert {path.name for path in folder.iterdir()} == {"config.yaml", "provenance.json"}


def test_C01_a_sweep_passes_small_floats_as_floats(train, tmp_path):
    assert cli.main(["train", "-m", "agent.learning_rate=1e-5,1e-6"]) == 0
    assert train.settings("learning_rate") == [1e-5, 1e-6]
    for _, folder, _ in train.calls:
        assert type(yaml.safe_load((folder / "config.yaml").read_text())["agent"]["learning_rate"]) is float
        assert folder.parents[1] == tmp_path / "multirun"


@pytest.mark.parametrize("override", ["lrr=1", "+lrr=1", "algo.lrr=1", "agent.learning_rate='1e-5'", "agent=pp0"])
def test_C03_refused_settings_leave_one_line_and_no_folder(train, tmp_path, capsys, override):
    assert cli.main(["train", override]) == 2
    assert not train.calls
    printed = capsys.readouterr().err
    assert printed.startswith("podracer: ") and printed.count("\n") == 1
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not list(tmp_path.glob("runs/*"))


def test_C04_eight_processes_at_once_have_eight_folders():
    code = (
        "from omegaconf import OmegaConf; from podracer import composition, locations\n"
        "OmegaConf.register_new_resolver('now', lambda form: 'the same second')\n"
        "OmegaConf.register_new_resolver('run_suffix', composition.run_suffix)\n"
        "hydra = OmegaConf.load(locations.config_folder() / 'config.yaml').hydra\n"
        "assert hydra.run.dir == hydra.run.dir\n"
        "print(hydra.run.dir, hydra.sweep.dir, sep='|')"
    )
    start = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(8)]
    folders = [process.communicate()[0].strip().split("|") for process in start]
    assert len({run for run, _ in folders}) == len({sweep for _, sweep in folders}) == 8
    assert all("the same second" in folder for pair in folders for folder in pair)


def test_C04_of_eight_runs_that_are_given_one_folder_one_gets_it(tmp_path):
    config = load_config()

    def claim(_):
        try:
            record_run(config, tmp_path / "shared", ["podracer", "train"])
        except ConfigError as error:
            return str(error)
        return "claimed"

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(claim, range(8)))
    assert outcomes.count("claimed") == 1
    assert all("hydra.run.dir" in outcome for outcome in outcomes if outcome != "claimed")


def test_C04_a_folder_that_is_not_empty_is_refused(train, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    assert cli.main(["train", "hydra.run.dir=mine"]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert not train.calls
    assert (tmp_path / "mine" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("arguments", [["hydra.run.dir=./x/y"], ["-m", "seed=0,1", "hydra.sweep.dir=./x"]])
def test_C09_relative_paths_begin_at_the_shells_folder(train, tmp_path, arguments):
    assert cli.main(["train", *arguments]) == 0
    assert all(working == tmp_path for _, _, working in train.calls)
    assert all(folder.parent == tmp_path / "x" for _, folder, _ in train.calls)
    assert {path.name for path in tmp_path.iterdir()} == {"x"}
    assert Path.cwd() == tmp_path


def test_C05_a_failing_run_of_a_sweep_neither_hides_nor_stops_the_others(train, capsys):
    train.failures = {1: RuntimeError("the second one")}
    assert cli.main(["train", "-m", "seed=0,1,2"]) == 1
    assert [config.seed for config, _, _ in train.calls] == [0, 1, 2]
    said, printed = capsys.readouterr()
    assert "run 2 of the sweep: seed=2" in said
    assert printed.count("Traceback") == 1
    # Hydra, and with it any sweeper, knows of the failure.
    assert printed.count("Error executing job with overrides: ['seed=1']") == 1
    summary = printed.partition("1 runs of the sweep failed")[2]
    assert "seed=1" in summary and str(train.calls[1][1]) in summary and "RuntimeError: the second one" in summary


def test_an_error_is_shown_once_where_it_was_raised_and_a_refusal_without_traceback(train, capsys):
    train.failures = {0: RuntimeError("no luck"), 1: ConfigError("env.num_envs=7 does not divide")}
    assert cli.main(["train"]) == 1
    printed = capsys.readouterr().err
    assert printed.count("Traceback") == 1 and printed.count("RuntimeError: no luck") == 1
    assert "hydra/" not in printed
    assert cli.main(["train", "seed=1", "hydra.run.dir=second"]) == 2
    assert capsys.readouterr().err == "podracer: env.num_envs=7 does not divide\n"


def test_an_interruption_ends_a_run_and_a_sweep(train):
    train.failures = {0: KeyboardInterrupt()}
    assert cli.main(["train"]) == 130
    assert cli.main(["train", "-m", "seed=0,1"]) == 130
    assert len(train.calls) == 2


def test_parts_of_the_users_own_are_found_in_the_working_directory(train, tmp_path):
    (tmp_path / "my_own_agent.py").write_text(
        "import dataclasses\n\n@dataclasses.dataclass(frozen=True)\nclass MyAgent:\n    x: float = 0.0\n"
    )
    assert cli.main(["train", "agent=custom", "agent.make=my_own_agent:MyAgent", "agent.kwargs.x=1"]) == 0
    assert train.settings("x") == [1.0]


def test_plan_prints_a_table_or_json_for_machines_that_are_not_there(capsys):
    arguments = ["env=catch", "env.num_envs=4096", "topology=tpu-v3-32"]
    assert cli.main(["plan", "--json", *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["learners"] == 32
    assert cli.main(["plan", *arguments]) == 0
    assert "4 hosts x 8 tpu devices" in capsys.readouterr().out
    assert cli.main(["plan", "env=catch", "env.num_envs=100", "topology=tpu-v3-8"]) == 2
    assert "use 96 or 104" in capsys.readouterr().err


def test_evaluate_passes_on_what_is_given(monkeypatch, capsys, tmp_path):
    calls = []
    result = EvaluationResult(np.float32([1.0, 2.5]), np.int32([8, 10]), 0)

    def evaluate_episodes(folder, *, num_episodes, seed, greedy, **_):
        calls.append((folder, num_episodes, seed, greedy))
        return result

    monkeypatch.setattr(podracer.api, "evaluate_episodes", evaluate_episodes)
    assert cli.main(["evaluate", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["episode_return"] == 1.75
    assert cli.main(["evaluate", str(tmp_path), "--episodes", "3", "--seed", "5", "--sample", "--table"]) == 0
    assert calls == [(tmp_path, None, None, None), (tmp_path, 3, 5, False)]
    table, _, rest = capsys.readouterr().out.partition("{")
    assert [line.split() for line in table.splitlines()] == [
        ["episode", "return", "length"],
        ["0", "1", "8"],
        ["1", "2.5", "10"],
    ]
    assert json.loads("{" + rest)["episode_length"] == 9.0


def test_B20_a_second_process_compiles_nothing_anew(tmp_path):
    code = (
        "import jax; from podracer import runtime; runtime.enable_compile_cache(); hits = []\n"
        "jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))\n"
        "jax.jit(lambda x: x * 2 + 1)(3.0); print(hits.count('/jax/compilation_cache/cache_hits'))"
    )
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    environment["XDG_CACHE_HOME"] = str(tmp_path)
    hits = [
        int(subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True).stdout)
        for _ in range(2)
    ]
    assert hits[0] == 0 and hits[1] >= 1
    assert list((tmp_path / "podracer" / "jax").iterdir())


def test_B20_a_cache_that_cannot_be_written_is_warned_of(tmp_path):
    (tmp_path / "file").write_text("")
    folder = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "file" / "cache"))
    try:
        with pytest.warns(UserWarning, match="JAX_COMPILATION_CACHE_DIR"):
            runtime.enable_compile_cache()
        assert not jax.config.jax_enable_compilation_cache
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
        jax.config.update("jax_compilation_cache_dir", folder)


def test_devices_cannot_be_emulated_once_jax_runs():
    jax.devices()
    with pytest.raises(ConfigError, match=r"mesh\.emulated_devices=3 comes too late, JAX already runs on 8 devices"):
        runtime.prepare(load_config(["mesh.emulated_devices=3"]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runtime.prepare(load_config(["mesh.emulated_devices=8"]))
