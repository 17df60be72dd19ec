"""The launchers of sweeps, with their own packages and processes, from the command line."""

import json
import os
import re

import pytest

from tests.commands import SHORT, finish, start

pytestmark = pytest.mark.slow

LAUNCHERS = {
    "joblib": ["hydra.launcher.n_jobs=2"],
    "submitit_local": [],
    "ray": [],
}
_CORES = len(os.sched_getaffinity(0))


def sweep(folder, launcher, *arguments):
    settings = [f"hydra/launcher={launcher}", *LAUNCHERS[launcher], "hydra.sweep.dir=./sweep"]
    return finish(start(folder, "train", "-m", *settings, *SHORT, *arguments))


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_C04_C05_C09_runs_have_folders_and_the_summary_lists_failures(launcher, tmp_path):
    """Two runs of four are refused in the launcher's processes."""
    done = sweep(tmp_path, launcher, "seed=3,4", "mesh.learner=1,999")
    assert done.returncode == 2, done.stderr
    results = {path.parent.name: json.loads(path.read_text()) for path in tmp_path.glob("sweep/*/result.json")}
    assert sorted(results) == ["0", "2"]
    assert all(result["status"] == "completed" for result in results.values())
    summary = done.stderr.partition("2 runs of the sweep failed")[2]
    assert re.findall(r"seed=(\d).*sweep/(\d)\): ConfigError: mesh.learner=999", summary) == [("3", "1"), ("4", "3")]
    assert not list(tmp_path.glob("sweep/.jobs-*"))
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == ["sweep"]
    cores = {json.loads(path.read_text())["topology"]["cores_per_host"] for path in tmp_path.glob("sweep/*/plan.json")}
    assert cores == {"joblib": {max(1, _CORES // 2)}, "ray": {1}, "submitit_local": {_CORES}}[launcher]


_DYING = """
import os
import signal

import gymnax


def make(dies):
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    return gymnax.make("CartPole-v1")
"""


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_C05_a_process_that_dies_fails_the_sweep_and_is_told_of(launcher, tmp_path):
    (tmp_path / "dying.py").write_text(_DYING)
    dying = ["env=custom_jax", "env.make=dying:make", "~env.kwargs.rows", "~env.kwargs.columns"]
    dying = [*dying, "+env.kwargs.dies=false,true"]
    done = sweep(tmp_path, launcher, *dying)
    assert done.returncode == 1
    said = {"joblib": "TerminatedWorkerError", "submitit_local": "UncompletedJobError", "ray": "WorkerCrashedError"}
    assert said[launcher] in done.stderr
    if launcher != "joblib":  # it gives up what runs beside
        assert json.loads((tmp_path / "sweep/0/result.json").read_text())["status"] == "completed"
