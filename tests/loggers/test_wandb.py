import math
import os
import subprocess
import sys
import time

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
from tests.loggers.wandb_file import read_runs

wandb = pytest.importorskip("wandb")

CONFIG = LoggerConfig(wandb=True, wandb_mode="offline", tensorboard=False, fail_on_error=True)


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_SILENT", "true")
    for variable in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / "wandb-home"))


def make(folder, resume_updates=None):
    return make_logger(CONFIG, folder, is_writer=True, resume_updates=resume_updates)


def resume(folder, rows, status="completed"):
    time.sleep(1)  # W&B names the files of a process by the second
    write_all(make(folder, RESUME_UPDATES), rows, status)


def steps(rows, key):
    return [row["env_steps"] for row in rows if key in row]


def test_D05_every_row_is_kept_over_env_steps(tmp_path):
    write_all(make(tmp_path), INTERLEAVED)
    (run,) = read_runs(tmp_path)
    assert [(row["env_steps"], row["_step"]) for row in run["rows"]] == [(100, 0), (120, 1), (90, 2), (140, 3)]
    assert run["rows"][2]["evaluation/episode_return"] == 7.0
    assert run["rows"][2]["evaluation/updates"] == 1
    assert run["rows"][2]["evaluation/wall_seconds"] == 1.75
    assert "train/episode_return" not in run["rows"][1]
    assert run["axes"] == {"train/*": "env_steps", "evaluation/*": "env_steps"}


def test_D05_a_kind_keeps_rows_that_step_backwards(tmp_path):
    write_all(make(tmp_path), [Row("evaluation", n, 1, 1.0, {"episode_return": n}) for n in (100, 90, 110)])
    assert steps(read_runs(tmp_path)[0]["rows"], "evaluation/episode_return") == [100, 90, 110]


def test_D06_runs_of_one_process_stay_apart_and_have_their_own_status(tmp_path):
    for number, status in enumerate(("completed", "failed", "interrupted")):
        (tmp_path / str(number)).mkdir()
        write_all(make(tmp_path / str(number)), [Row("train", 8, 1, 0.5, {"loss": number})], status)
    runs = [run for number in range(3) for run in read_runs(tmp_path / str(number))]
    assert [[row["train/loss"] for row in run["rows"]] for run in runs] == [[0], [1], [2]]
    assert [run["exit_code"] for run in runs] == [0, 1, 255]
    assert [run["name"] for run in runs] == [f"{tmp_path.name}/{number}" for number in range(3)]
    assert len({run["id"] for run in runs}) == 3
    assert wandb.run is None


def test_D07_a_resumed_run_goes_on_in_the_same_run_with_every_row_once(tmp_path):
    write_config(tmp_path)
    write_all(make(tmp_path), BEFORE_THE_KILL, "interrupted")
    resume(tmp_path, AFTER_THE_RESUME[:1], "interrupted")  # interrupted again, before what was reached first
    write_config(tmp_path, "seed: 3\ntotal_env_steps: 800\nagent:\n  name: ppo\n")
    resume(tmp_path, AFTER_THE_RESUME)

    runs = read_runs(tmp_path)
    assert len(runs) == 3
    assert len({run["id"] for run in runs}) == 1
    rows = [row for run in runs for row in run["rows"]]
    assert steps(rows, "train/policy_loss") == TRAIN_STEPS
    assert steps(rows, "evaluation/episode_return") == EVALUATION_STEPS
    assert [row["_step"] for row in rows] == list(range(len(rows)))
    assert runs[0]["config"]["agent"] == {"name": "ppo", "learning_rate": 0.0003}
    assert runs[2]["config"]["total_env_steps"] == 800
    assert runs[2]["config"]["resumed_at_env_steps"] == 30


def test_D07_rows_that_a_killed_process_had_not_delivered_come_again(tmp_path):
    # W&B's own process writes once a second, and ends at once when the process that logs is killed.
    program = f"""
import os, pathlib, signal, time
from podracer.logging import LoggerConfig, Row, make_logger
config = LoggerConfig(wandb=True, wandb_mode="offline", tensorboard=False)
logger = make_logger(config, pathlib.Path({str(tmp_path)!r}), is_writer=True)
for n in range(1, 13):
    logger.write(Row("train", 10 * n, n, float(n), {{"policy_loss": 1.5}}))
    time.sleep(0.25)
logger.write(Row("train", 130, 13, 13.0, {{"policy_loss": 1.5}}))
os.kill(os.getpid(), signal.SIGKILL)
"""
    # Otherwise it would share the process of W&B's that belongs to this one.
    environment = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    assert subprocess.run([sys.executable, "-c", program], timeout=60, env=environment).returncode == -9
    logger = make(tmp_path, resume_updates=12)  # the last that it had written but one
    write_all(logger, [Row("train", 10 * n, n, float(n), {"policy_loss": 1.5}) for n in range(13, 18)])

    by_step = {row["_step"]: row for run in read_runs(tmp_path) for row in run["rows"]}
    assert steps([by_step[step] for step in sorted(by_step)], "train/policy_loss") == [10 * n for n in range(1, 18)]


def test_B14_counters_pass_32_bits_and_values_that_are_no_numbers_do_not_vanish(tmp_path):
    write_all(make(tmp_path), [HARD, *LARGE])
    (run,) = read_runs(tmp_path)
    first, *others = run["rows"]
    assert math.isnan(first["train/policy_loss"]) and math.isnan(first["train/value_loss"])
    assert first["train/kl"] == math.inf
    assert steps(others, "train/frames") == [2_147_483_648, 2_147_483_712, 2_147_483_776]
    assert [row["train/updates"] for row in others] == [2_147_483_649, 2_147_483_650, 2_147_483_651]
