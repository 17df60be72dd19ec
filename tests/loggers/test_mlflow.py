import math

import pytest

from podracer.logging import LoggerConfig, Row, make_logger
from tests.loggers.rows import (
    AFTER_THE_RESUME,
    BEFORE_THE_KILL,
    EVALUATION_STEPS,
    HARD,
    INTERLEAVED,
    LARGE,
    RESUME_UPDATES,
    TRAIN_STEPS,
    write_all,
    write_config,
)

mlflow = pytest.importorskip("mlflow")

CONFIG = LoggerConfig(mlflow=True, tensorboard=False, fail_on_error=True)


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # for reading; a run sets it itself


class Store:
    """What MLflow has of the run in a folder."""

    def __init__(self, folder, uri=None):
        self.client = mlflow.MlflowClient(uri or (folder / "mlruns").as_uri())
        experiment = self.client.get_experiment_by_name("podracer")
        self.runs = self.client.search_runs([experiment.experiment_id], order_by=["attributes.start_time"])

    def history(self, key, run=0):
        metrics = self.client.get_metric_history(self.runs[run].info.run_id, key)
        return [(metric.step, metric.value) for metric in metrics]


def make(folder, resume_updates=None, config=CONFIG):
    return make_logger(config, folder, is_writer=True, resume_updates=resume_updates)


def test_D05_every_row_is_kept_with_env_steps_as_its_step(tmp_path):
    write_all(make(tmp_path), INTERLEAVED)
    store = Store(tmp_path)
    assert store.history("train/episode_return") == [(100, 5.0), (140, 6.0)]
    assert store.history("train/policy_loss") == [(120, 0.25)]
    assert store.history("evaluation/episode_return") == [(90, 7.0)]
    assert store.history("train/updates") == [(100, 2), (120, 3), (140, 4)]
    assert store.history("train/wall_seconds") == [(100, 1.0), (120, 1.5), (140, 2.0)]


def test_D05_a_kind_keeps_rows_that_step_backwards(tmp_path):
    write_all(make(tmp_path), [Row("evaluation", n, 1, 1.0, {"episode_return": n}) for n in (100, 90, 110)])
    assert sorted(Store(tmp_path).history("evaluation/episode_return")) == [(90, 90), (100, 100), (110, 110)]


def test_D06_runs_of_one_process_stay_apart_and_have_their_own_status(tmp_path):
    config = LoggerConfig(mlflow=True, mlflow_uri=(tmp_path / "shared").as_uri(), tensorboard=False, fail_on_error=True)
    for number, status in enumerate(("completed", "failed", "interrupted")):
        (tmp_path / str(number)).mkdir()
        write_all(make(tmp_path / str(number), config=config), [Row("train", 8, 1, 0.5, {"loss": number})], status)
    store = Store(tmp_path, config.mlflow_uri)
    assert [run.info.status for run in store.runs] == ["FINISHED", "FAILED", "KILLED"]
    assert [run.info.run_name for run in store.runs] == [f"{tmp_path.name}/{number}" for number in range(3)]
    assert [store.history("train/loss", run) for run in range(3)] == [[(8, 0)], [(8, 1)], [(8, 2)]]
    assert mlflow.active_run() is None


def test_D07_a_resumed_run_goes_on_in_the_same_run_with_every_row_once(tmp_path):
    write_config(tmp_path)
    write_all(make(tmp_path), BEFORE_THE_KILL, None)
    write_all(make(tmp_path, RESUME_UPDATES), AFTER_THE_RESUME[:1], None)  # killed again, before what was reached first
    assert Store(tmp_path).runs[0].info.status == "RUNNING"
    write_all(make(tmp_path, RESUME_UPDATES), AFTER_THE_RESUME)

    store = Store(tmp_path)
    assert len(store.runs) == 1
    assert store.runs[0].info.status == "FINISHED"
    assert store.runs[0].data.tags["resumed_at_env_steps"] == "30"
    assert store.history("train/policy_loss") == [(step, step / 20) for step in TRAIN_STEPS]
    assert [step for step, _ in store.history("evaluation/episode_return")] == EVALUATION_STEPS


def test_D07_a_resumed_run_tells_what_its_tracker_has_missed(tmp_path):
    without = LoggerConfig(tensorboard=False)
    write_all(make(tmp_path, config=without), [HARD, *BEFORE_THE_KILL], None)
    write_all(make(tmp_path, RESUME_UPDATES), AFTER_THE_RESUME)
    store = Store(tmp_path)
    assert [step for step, value in store.history("train/policy_loss")] == [8, *TRAIN_STEPS]
    assert math.isnan(store.history("train/kl")[0][1])
    assert [step for step, _ in store.history("evaluation/episode_return")] == EVALUATION_STEPS


def test_C11_the_configuration_is_tracked_and_its_changes_are_tags(tmp_path):
    write_config(tmp_path)
    write_all(make(tmp_path), BEFORE_THE_KILL, None)
    assert Store(tmp_path).runs[0].data.params == {"seed": "3", "agent.name": "ppo", "agent.learning_rate": "0.0003"}

    write_config(tmp_path, "seed: 3\ntotal_env_steps: 800\nagent:\n  name: ppo\n  learning_rate: 0.1\n")
    write_all(make(tmp_path, RESUME_UPDATES), AFTER_THE_RESUME)
    run = Store(tmp_path).runs[0]
    assert run.data.params["agent.learning_rate"] == "0.0003"
    assert run.data.params["total_env_steps"] == "800"
    assert run.data.tags["changed.agent.learning_rate"] == "0.1"
    assert "changed.seed" not in run.data.tags


def test_a_configuration_of_more_than_a_hundred_settings_fits(tmp_path):
    write_config(tmp_path, "".join(f"key{n}: {'x' * 7000 if n == 0 else n}\n" for n in range(250)))
    write_all(make(tmp_path), [])
    assert len(Store(tmp_path).runs[0].data.params) == 250


def test_B14_steps_pass_32_bits(tmp_path):
    write_all(make(tmp_path), LARGE)
    assert [step for step, _ in Store(tmp_path).history("train/frames")] == [2147483648, 2147483712, 2147483776]


def test_values_that_are_no_numbers_and_odd_names_neither_fail_nor_vanish(tmp_path):
    write_all(make(tmp_path), [HARD, Row("train", 16, 2, 1.0, {"kl(π, μ)": 0.5})])
    store = Store(tmp_path)
    assert math.isnan(store.history("train/policy_loss")[0][1])
    assert math.isnan(store.history("train/value_loss")[0][1])
    assert store.history("train/kl") == [(8, math.inf)]
    assert store.history("train/kl___ __") == [(16, 0.5)]  # kl, (, π, comma, space, μ, )


def test_a_server_that_is_not_there_is_told_of_and_costs_no_rows(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    config = LoggerConfig(mlflow=True, mlflow_uri="http://127.0.0.1:9", tensorboard=False)
    write_all(make(tmp_path, config=config), INTERLEAVED)
    assert capsys.readouterr().err.count("logger mlflow could not start") == 1
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == len(INTERLEAVED)
