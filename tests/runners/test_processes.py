"""The command in processes of its own: how they end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

from podracer import api
from podracer.config import load_config

ROOT = Path(__file__).parents[2]
TINY = [
    "agent.unroll_length=4",
    "agent.num_minibatches=1",
    "agent.num_epochs=1",
    "network.hidden_sizes=[8]",
    "logger=plain",
    "logger.tensorboard=false",
    "evaluation.num_episodes=4",
    "hydra.run.dir=run",
]
HOST = ["runner=sebulba", "env=custom_host", "env.make=tests.runners.doubles:CountingEnv", "env.num_envs=4"]

pytestmark = pytest.mark.slow


def start(folder, *arguments, command="train"):
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir),
        "PYTHONUNBUFFERED": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "podracer.cli", command, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_rows(process, folder, count):
    path = folder / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (path.exists() and len(path.read_text().splitlines()) >= count):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def result(folder):
    return json.loads((folder / "run" / "result.json").read_text())


def test_B01_an_environment_that_raises_ends_the_process_with_its_traceback(tmp_path):
    process = start(tmp_path, *TINY, *HOST, "+env.kwargs.raises_at=50", "runner.updates_per_report=1")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1, err
    assert err.count("Traceback") == 1 and err.count("EnvError: broke at step 50") == 1
    assert 'raise EnvError(f"broke at step {self.steps}")' in err
    assert result(tmp_path)["status"] == "failed"
    assert result(tmp_path)["updates"] >= 8
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(rows[-1])["updates"] == result(tmp_path)["updates"]


@pytest.mark.parametrize(
    ("runner", "number"), [(["env.num_envs=4"], signal.SIGINT), (HOST, signal.SIGTERM)], ids=["anakin", "sebulba"]
)
def test_B04_a_signal_ends_the_process_at_once(tmp_path, runner, number):
    process = start(tmp_path, *TINY, *runner, "total_env_steps=1e12", "evaluation.num_evaluations=0")
    wait_for_rows(process, tmp_path, 3)
    started = time.monotonic()
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert time.monotonic() - started < 10
    assert "Traceback" not in err
    assert result(tmp_path)["status"] == "interrupted" and result(tmp_path)["updates"] > 0


def test_a_thread_that_hangs_is_named_and_does_not_keep_the_process(tmp_path):
    (tmp_path / "hanging.py").write_text(
        "import time\n"
        "from tests.runners.doubles import CountingEnv\n"
        "class Hanging(CountingEnv):\n"
        "    def step(self, action):\n"
        "        if self.steps == 20:\n"
        "            time.sleep(1000)\n"
        "        return super().step(action)\n"
        "def make(num_envs):\n"
        "    return Hanging(num_envs)\n"
    )
    host = [*HOST[:2], "env.make=hanging:make", *HOST[3:]]
    process = start(tmp_path, *TINY, *host, "runner.updates_per_report=1", "runner.threads_per_device=1")
    wait_for_rows(process, tmp_path, 3)
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert time.monotonic() - started < 25
    assert "actor-0" in err


def test_B29_a_fresh_process_evaluates_exactly_as_the_run_did(tmp_path):
    settings = [*TINY[:4], "logger=quiet", "agent.normalise_observations=true", "env.num_envs=4", "mesh.learner=1"]
    config = load_config([*settings, "total_env_steps=64", "evaluation.num_episodes=6"])
    trained = api.train(config, tmp_path / "run")
    out, err = start(tmp_path, "run", command="evaluate").communicate(timeout=120)
    assert json.loads(out)["episode_return"] == trained["final_return"], err
