import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from podracer import api
from podracer.config import load_config
from podracer.conversion import ConfigError
from podracer.logging import (
    RESULT_KEYS,
    LoggerConfig,
    Row,
    check_installed,
    make_logger,
    train_values,
    write_json,
    write_result,
)
from podracer.runner import Episodes, Report, no_episodes

INTERLEAVED = [
    Row("train", 100, 2, 1.0, {"episode_return": 5.0}),
    Row("train", 120, 3, 1.5, {"policy_loss": 0.25}),
    Row("evaluation", 90, 1, 1.75, {"episode_return": 7.0}),
    Row("train", 140, 4, 2.0, {"episode_return": 6.0}),
]


def read_rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def read_scalars(folder, tag):
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_D05_every_logger_keeps_rows_that_step_backwards(tmp_path):
    logger = make_logger(LoggerConfig(), tmp_path, is_writer=True)
    for row in INTERLEAVED:
        logger.write(row)
    logger.close("completed")

    rows = read_rows(tmp_path)
    assert [(row["kind"], row["env_steps"], row["updates"], row["wall_seconds"]) for row in rows] == [
        ("train", 100, 2, 1.0),
        ("train", 120, 3, 1.5),
        ("evaluation", 90, 1, 1.75),
        ("train", 140, 4, 2.0),
    ]
    assert rows[2]["episode_return"] == 7.0
    assert "episode_return" not in rows[1]  # absent, not NaN
    assert read_scalars(tmp_path, "train/episode_return") == [(100, 5.0), (140, 6.0)]
    assert read_scalars(tmp_path, "evaluation/episode_return") == [(90, 7.0)]
    assert read_scalars(tmp_path, "train/updates") == [(100, 2.0), (120, 3.0), (140, 4.0)]
    assert read_scalars(tmp_path, "evaluation/wall_seconds") == [(90, 1.75)]


def test_D05_a_tag_keeps_steps_that_go_backwards(tmp_path):
    logger = make_logger(LoggerConfig(), tmp_path, is_writer=True)
    for env_steps in (100, 90, 110):
        logger.write(Row("evaluation", env_steps, 1, 1.0, {"episode_return": float(env_steps)}))
    logger.close("completed")

    assert [row["env_steps"] for row in read_rows(tmp_path)] == [100, 90, 110]
    assert read_scalars(tmp_path, "evaluation/episode_return") == [(100, 100.0), (90, 90.0), (110, 110.0)]


def test_B14_steps_increase_past_32_bits(tmp_path):
    steps = [2**31 - 64 + 64 * update for update in range(1, 4)]
    logger = make_logger(LoggerConfig(), tmp_path, is_writer=True)
    for update, env_steps in enumerate(steps, start=1):
        logger.write(Row("train", env_steps, update, float(update), {"steps_per_second": 1e6}))
    logger.close("completed")

    assert steps == [2_147_483_648, 2_147_483_712, 2_147_483_776]
    assert [row["env_steps"] for row in read_rows(tmp_path)] == steps
    assert [step for step, _ in read_scalars(tmp_path, "train/steps_per_second")] == steps


def test_a_row_outlives_the_process_that_wrote_it(tmp_path):
    program = f"""
import os, pathlib
from podracer.logging import LoggerConfig, Row, make_logger
logger = make_logger(LoggerConfig(), pathlib.Path({str(tmp_path)!r}), is_writer=True)
logger.write(Row("train", 64, 1, 0.5, {{"policy_loss": 1.5}}))
os._exit(3)
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 3
    assert read_rows(tmp_path)[0]["policy_loss"] == 1.5
    assert read_scalars(tmp_path, "train/policy_loss") == [(64, 1.5)]


def test_values_that_json_cannot_hold_are_null_and_stay_in_tensorboard(tmp_path):
    logger = make_logger(LoggerConfig(), tmp_path, is_writer=True)
    logger.write(Row("train", np.int64(8), 1, 0.5, {"policy_loss": np.nan, "kl": np.inf, "lr": np.float32(0.5)}))
    logger.close("failed")

    row = read_rows(tmp_path)[0]
    assert (row["policy_loss"], row["kl"], row["lr"], row["env_steps"]) == (None, None, 0.5, 8)
    assert np.isnan(read_scalars(tmp_path, "train/policy_loss")[0][1])


def test_a_value_may_not_hide_a_counter(tmp_path):
    logger = make_logger(LoggerConfig(tensorboard=False), tmp_path, is_writer=True)
    with pytest.raises(ValueError, match="may not be called updates, wall_seconds"):
        logger.write(Row("train", 8, 1, 0.5, {"wall_seconds": 1.0, "updates": 3.0}))
    logger.close("failed")


def test_only_the_writer_touches_the_folder(tmp_path):
    logger = make_logger(LoggerConfig(), tmp_path, is_writer=False)
    logger.write(INTERLEAVED[0])
    logger.close("completed")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_package_is_refused_by_the_name_of_its_extra(tmp_path, monkeypatch, name):
    config = LoggerConfig(**{name: True})
    check_installed(config)
    check_installed(LoggerConfig())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=rf"logger\.{name}=true.*pip install 'podracer\[{name}\]'"):
        make_logger(config, tmp_path, is_writer=True)
    assert list(tmp_path.iterdir()) == []  # refused before anything is opened


def test_a_missing_package_is_refused_before_a_run_has_a_folder(tmp_path, monkeypatch):
    config = load_config(["logger.wandb=true"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"podracer\[wandb\]"):
        api.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_is_not_taken_for_a_package(tmp_path):
    (tmp_path / "wandb").mkdir()  # W&B's own files lie in a folder of this name
    program = (
        "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p] + [sys.argv[1]]\n"
        "from podracer.logging import LoggerConfig, check_installed\n"
        "check_installed(LoggerConfig(wandb=True))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert "pip install 'podracer[wandb]'" in done.stderr


def test_train_values_are_absent_when_no_episode_ended():
    report = Report(2, 256, {"policy_loss": 0.5}, no_episodes(), {"train_seconds": 0.5, "act_seconds": 0.25}, {})
    assert train_values(report, 128) == {
        "policy_loss": 0.5,
        "train_seconds": 0.5,
        "act_seconds": 0.25,
        "steps_per_second": 256.0,  # 128 / 0.5
        "episodes": 0,
    }

    ended = train_values(report._replace(episodes=Episodes(4, 10.0, 50, 1.0, 4.0)), 128)
    assert ended["episode_return"] == 2.5  # 10 / 4
    assert ended["episode_length"] == 12.5  # 50 / 4
    assert (ended["episode_return_min"], ended["episode_return_max"], ended["episodes"]) == (1.0, 4.0, 4)


def test_the_result_has_every_key(tmp_path):
    result = dict.fromkeys(RESULT_KEYS) | {"status": "completed", "env_steps": 2**40, "final_return": np.nan}
    write_result(tmp_path, result)
    assert json.loads((tmp_path / "result.json").read_text()) == result | {"final_return": None}

    del result["episodes"], result["best_return"]
    with pytest.raises(ValueError, match="lacks episodes, best_return"):
        write_result(tmp_path, result)


def test_json_is_written_in_one_stroke(tmp_path):
    path = tmp_path / "plan.json"
    write_json(path, {"actor_ids": (0, 1), "updates": np.int32(3), "folder": Path("runs")})
    before = path.read_text()
    assert json.loads(before) == {"actor_ids": [0, 1], "updates": 3, "folder": "runs"}

    with pytest.raises(TypeError, match="ndarray"):
        write_json(path, {"updates": 4, "weights": np.zeros(2)})
    assert path.read_text() == before
    assert [child.name for child in tmp_path.iterdir()] == ["plan.json"]


def test_a_period_below_zero_is_refused():
    with pytest.raises(ValueError, match=r"logger\.console_period_seconds=-1"):
        dataclasses.replace(LoggerConfig(), console_period_seconds=-1)


def test_loggers_load_nothing_before_they_are_used(tmp_path):
    program = """
import pathlib, sys
from podracer.logging import LoggerConfig, make_logger
make_logger(LoggerConfig(), pathlib.Path(sys.argv[1]), is_writer=True).close("completed")
print([name for name in ("jax", "tensorboard", "wandb", "mlflow") if name in sys.modules])
"""
    arguments = [sys.executable, "-c", program, str(tmp_path)]
    assert subprocess.run(arguments, capture_output=True, text=True).stdout == "[]\n"
