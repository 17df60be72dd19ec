import _thread
import json
import threading
import time
import traceback

import jax
import numpy as np
import pytest

from podracer import api, checkpoint, training
from podracer.build import Run
from podracer.config import load_config, read_config
from podracer.conversion import ConfigError
from podracer.parallel.mesh import Plan
from podracer.runners.evaluator import EvaluationResult
from podracer.runners.sebulba import SebulbaConfig
from tests.runners.doubles import EnvError, Factory, RecordingAgent, make_sebulba, run_threads
from tests.runners.test_anakin import make_anakin

SMALL = [
    "env.num_envs=4",
    "logger=quiet",
    "total_env_steps=320",
    "evaluation.num_episodes=8",
    "evaluation.num_evaluations=2",
]
PPO = ["agent.unroll_length=4", "agent.num_minibatches=1", "agent.num_epochs=1", "network.hidden_sizes=[8]"]
DOUBLE = ["agent=custom", "agent.make=tests.runners.doubles:RecordingAgent", "env=probe", "env.id=matched_reward"]
ANAKIN = ["runner=anakin", "mesh.learner=1"]
SEBULBA = ["runner=sebulba", "mesh.actor_ids=[1]", "mesh.learner_ids=[2]"]
RUNNERS = pytest.mark.parametrize("runner", [ANAKIN, SEBULBA], ids=["anakin", "sebulba"])


def train(folder, *overrides):
    return api.train(load_config([*SMALL, *overrides]), folder)


def saved_policy(folder):
    return api._restore(read_config(folder / "config.yaml"), folder, "latest")[2]


def rows(folder, kind="train"):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def test_B29_saved_parameters_evaluate_exactly_as_they_did(tmp_path):
    # Anakin's do in a fresh process: `tests/runners/test_processes.py`.
    result = train(tmp_path, *SEBULBA, *PPO, "agent.normalise_observations=true", "agent.learning_rate=0.01")
    again = api.evaluate(tmp_path)
    last = rows(tmp_path, "evaluation")[-1]
    assert again["episode_return"] == result["final_return"] == last["episode_return"]
    assert {key: last[key] for key in again} == again
    assert api.evaluate(tmp_path, num_episodes=3)["episodes"] == 3
    assert api.evaluate(tmp_path, seed=1)["episode_return"] != again["episode_return"]
    assert api.evaluate(tmp_path, greedy=False)["episode_return"] != again["episode_return"]
    # The statistics that were saved are those of training: all of its transitions that were learnt from.
    policy = saved_policy(tmp_path)
    assert float(policy.params.statistics.observation.count) == result["env_steps"]
    assert json.loads((tmp_path / "result.json").read_text()) == result


@RUNNERS
def test_A35_evaluation_does_not_change_training(runner, tmp_path):
    chunks = "runner.updates_per_call=4" if runner is ANAKIN else "runner.updates_per_report=4"

    def trained(name, *overrides):
        train(tmp_path / name, *runner, *DOUBLE, chunks, *overrides)
        return jax.device_get(saved_policy(tmp_path / name))

    with_evaluation = trained("with", "evaluation.num_evaluations=5")
    without = trained("without", "evaluation.num_episodes=0")
    jax.tree.map(np.testing.assert_array_equal, with_evaluation, without)
    kept = ("seen", "progress", "env_steps")
    # The run is cut into the same chunks of four updates by both.
    assert [[row[key] for key in kept] for row in rows(tmp_path / "with")] == [
        [row[key] for key in kept] for row in rows(tmp_path / "without")
    ]


def test_B08_ten_updates_and_three_evaluations(tmp_path):
    result = train(tmp_path, *ANAKIN, *DOUBLE, "total_env_steps=160", "evaluation.num_evaluations=3")
    assert result["updates"] == 10
    assert [row["updates"] for row in rows(tmp_path, "evaluation")] == [4, 7, 10]


def test_a_run_from_python_needs_no_folder():
    result = api.train(load_config([*SMALL, *ANAKIN, *DOUBLE]))
    assert result["status"] == "completed" and result["updates"] == 20


@RUNNERS
def test_debugging_trains_without_compiling(runner, tmp_path):
    before = jax.config.jax_disable_jit, jax.config.jax_debug_nans
    tiny = ["env.num_envs=2", "total_env_steps=8", "evaluation.num_episodes=1"]
    result = train(tmp_path, *runner, *DOUBLE, *tiny, "debug=true")
    assert (result["status"], result["updates"]) == ("completed", 1)
    assert (jax.config.jax_disable_jit, jax.config.jax_debug_nans) == before


@RUNNERS
def test_a_profile_is_written(runner, tmp_path):
    assert train(tmp_path, *runner, *DOUBLE, "profile=true", "evaluation.num_episodes=0")["status"] == "completed"
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))


# -- Supervision: whoever fails, the run ends with that error, soon, and with what was known.


def failing_evaluator(snapshot, stopping):
    raise EnvError("evaluator")


def no_returns(snapshot, stopping):
    return EvaluationResult(np.zeros(2), np.ones(2), 0)


class FullDisk:
    def write(self, row):
        raise OSError("no space left on device")

    def close(self, status):
        pass


def sebulba(agent=None, **env):
    factory = Factory(2, **env)
    config = SebulbaConfig(updates_per_report=2)
    return make_sebulba(factory, agent, threads=2, envs_per_actor=2, updates=100, config=config), factory


def run_double(monkeypatch, tmp_path, runner, evaluate=None):
    config = load_config([*SMALL, "evaluation.num_evaluations=25"])
    monkeypatch.setattr(
        training, "build", lambda config: Run(runner.plan, runner.agent, runner, evaluate, recorder=None)
    )
    started = time.monotonic()
    try:
        api.train(config, tmp_path)
        return None
    except BaseException as error:
        assert time.monotonic() - started < 30
        assert run_threads() == []
        return error


def assert_failed(folder, error, words, updates):
    text = "".join(traceback.format_exception(error))
    assert text.count(f"EnvError: {words}") <= 1 and words in text
    assert "another exception occurred" not in text
    result = json.loads((folder / "result.json").read_text())
    assert result["status"] == "failed"
    assert [row["updates"] for row in rows(folder)][-1:] == updates
    assert result["updates"] == sum(updates)


def test_B01_an_environment_that_raises_in_an_actor_thread(monkeypatch, tmp_path):
    runner, factory = sebulba(raises_at=lambda shard: 50 if shard == 1 else None)
    error = run_double(monkeypatch, tmp_path, runner)
    # Its 50th step is in unroll 12, after 48; the learner has made the updates of unrolls 0 to 11.
    assert isinstance(error, EnvError)
    frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert frames[-1] == "step" and "_unroll" in frames
    logged = [row["updates"] for row in rows(tmp_path)]
    assert 8 <= logged[-1] <= 12
    assert_failed(tmp_path, error, "broke at step 50", logged[-1:])
    assert [env.closes for env in factory.envs.values()] == [1, 1]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("runner", ["anakin", "sebulba"])
def test_B01_a_loss_that_raises_at_update_3(monkeypatch, tmp_path, runner):
    agent = RecordingAgent(raises_at_update=3)
    runner = make_anakin(agent, updates=100, updates_per_call=1) if runner == "anakin" else sebulba(agent)[0]
    error = run_double(monkeypatch, tmp_path, runner)
    assert "LossError: broke at update 3" in str(error)
    logged = [row["updates"] for row in rows(tmp_path)]
    assert logged[-1] in (2, 3)
    assert_failed(tmp_path, error, "LossError: broke at update 3", logged[-1:])


@pytest.mark.parametrize("runner", ["anakin", "sebulba"])
def test_B01_an_evaluator_that_raises(monkeypatch, tmp_path, runner):
    runner = make_anakin(updates=100) if runner == "anakin" else sebulba()[0]
    error = run_double(monkeypatch, tmp_path, runner, failing_evaluator)
    assert isinstance(error, EnvError)
    assert_failed(tmp_path, error, "evaluator", [4])
    assert checkpoint.latest(tmp_path) is not None  # what was to be evaluated is kept


@pytest.mark.parametrize("runner", ["anakin", "sebulba"])
def test_B01_a_logger_that_raises(monkeypatch, tmp_path, runner):
    runner = make_anakin(updates=100) if runner == "anakin" else sebulba()[0]
    monkeypatch.setattr(training, "make_logger", lambda *args, **kwargs: FullDisk())
    error = run_double(monkeypatch, tmp_path, runner)
    assert isinstance(error, OSError)
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "failed"


@pytest.mark.parametrize("runner", ["anakin", "sebulba"])
def test_an_interrupt_leaves_no_thread_and_says_so(monkeypatch, tmp_path, runner):
    factory = None
    if runner == "anakin":
        runner = make_anakin(updates=10**8, updates_per_call=None)
    else:
        runner, factory = sebulba(step_seconds=0.01)
    timer = threading.Timer(3.0, _thread.interrupt_main)
    timer.start()
    error = run_double(monkeypatch, tmp_path, runner)
    timer.cancel()
    assert isinstance(error, KeyboardInterrupt)
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "interrupted"
    assert factory is None or [env.closes for env in factory.envs.values()] == [1, 1]


def test_a_console_that_fails_is_no_reason_to_lose_the_result(monkeypatch, tmp_path):
    def start(self, plan: Plan, title: str):
        raise OSError("the terminal is gone")

    monkeypatch.setattr("podracer.console.Silent.start", start)
    error = run_double(monkeypatch, tmp_path, make_anakin())
    assert isinstance(error, OSError)
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "failed"


def test_C04_a_folder_that_is_not_empty_is_refused_and_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"):
        api.train(load_config(["env=catch", "evaluation.num_episodes=0", "logger=quiet"]), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
