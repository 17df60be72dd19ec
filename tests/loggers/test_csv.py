import csv
import math

import pandas
import pytest

import podracer.loggers.csv
from podracer.loggers.csv import Csv
from podracer.logging import Row
from tests.loggers.rows import (
    AFTER_THE_RESUME,
    BEFORE_THE_KILL,
    EVALUATION_STEPS,
    HARD,
    INTERLEAVED,
    LARGE,
    RESUME_UPDATES,
    RUN,
    TRAIN_STEPS,
    write_all,
)


def read(folder, kind="train"):
    with open(folder / f"metrics_{kind}.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_D05_rows_that_step_backwards_are_kept_in_a_file_a_kind(tmp_path):
    write_all(Csv(tmp_path), INTERLEAVED)
    assert [(row["env_steps"], row["updates"], row["wall_seconds"]) for row in read(tmp_path)] == [
        ("100", "2", "1.0"),
        ("120", "3", "1.5"),
        ("140", "4", "2.0"),
    ]
    assert read(tmp_path, "evaluation") == [
        {"env_steps": "90", "updates": "1", "wall_seconds": "1.75", "episode_return": "7.0"}
    ]


def test_a_metric_that_appears_later_gets_a_column(tmp_path):
    write_all(Csv(tmp_path), INTERLEAVED)
    assert [row["episode_return"] for row in read(tmp_path)] == ["5.0", "", "6.0"]
    assert [row["policy_loss"] for row in read(tmp_path)] == ["", "0.25", ""]
    table = pandas.read_csv(tmp_path / "metrics_train.csv")
    assert table.shape == (3, 5)
    assert [child.name for child in tmp_path.iterdir() if child.name.startswith(".")] == []


def test_a_name_with_a_comma_or_a_quote_is_one_column(tmp_path):
    write_all(Csv(tmp_path), [Row("train", 8, 1, 0.5, {'q(a, "b")': 1.0}), Row("train", 16, 2, 1.0, {"x,y": 2.0})])
    assert [row['q(a, "b")'] for row in read(tmp_path)] == ["1.0", ""]
    assert [row["x,y"] for row in read(tmp_path)] == ["", "2.0"]


def test_the_file_is_rewritten_for_new_columns_only(tmp_path, monkeypatch):
    rewritten = []
    rewrite = podracer.loggers.csv.rewrite
    monkeypatch.setattr(
        podracer.loggers.csv, "rewrite", lambda path, change: rewritten.append(path) or rewrite(path, change)
    )
    rows = [Row("train", n, n, 1.0, {"a": 1.0, **({"b": 2.0} if n % 7 == 3 else {})}) for n in range(1, 101)]
    write_all(Csv(tmp_path), rows)
    assert len(rewritten) == 2  # the first header, and that with b
    assert [row["b"] for row in read(tmp_path)] == ["2.0" if n % 7 == 3 else "" for n in range(1, 101)]


def test_D07_a_resumed_run_has_one_header_and_every_row_once(tmp_path):
    write_all(Csv(tmp_path), BEFORE_THE_KILL, None)
    with open(tmp_path / "metrics_train.csv", "a") as file:
        file.write("60,6,6.")  # what the killed process had begun
    write_all(Csv(tmp_path, RESUME_UPDATES), AFTER_THE_RESUME)

    assert [int(row["env_steps"]) for row in read(tmp_path)] == TRAIN_STEPS
    assert [int(row["env_steps"]) for row in read(tmp_path, "evaluation")] == EVALUATION_STEPS
    assert (tmp_path / "metrics_train.csv").read_text().count("env_steps") == 1
    (tmp_path / "undisturbed").mkdir()
    write_all(Csv(tmp_path / "undisturbed"), RUN)
    for name in ("metrics_train.csv", "metrics_evaluation.csv"):
        assert (tmp_path / name).read_text() == (tmp_path / "undisturbed" / name).read_text()


def test_D07_a_resumed_run_may_have_new_metrics(tmp_path):
    write_all(Csv(tmp_path), BEFORE_THE_KILL, None)
    write_all(Csv(tmp_path, RESUME_UPDATES), [row._replace(values={"entropy": 0.5}) for row in AFTER_THE_RESUME])
    assert [row["policy_loss"] for row in read(tmp_path)] == ["0.5", "1.0", "1.5", "", "", "", "", ""]
    assert [row["entropy"] for row in read(tmp_path)] == ["", "", "", *["0.5"] * 5]


def test_B14_counters_pass_32_bits(tmp_path):
    write_all(Csv(tmp_path), LARGE)
    assert [int(row["env_steps"]) for row in read(tmp_path)] == [2_147_483_648, 2_147_483_712, 2_147_483_776]
    assert [int(row["frames"]) for row in read(tmp_path)] == [2**53 + 1, 2**53 + 2, 2**53 + 3]


def test_values_that_are_no_numbers_stay_apart_from_absent_ones(tmp_path):
    write_all(Csv(tmp_path), [HARD, INTERLEAVED[0]])
    assert [(row["policy_loss"], row["kl"], row["value_loss"]) for row in read(tmp_path)] == [
        ("nan", "inf", "nan"),
        ("", "", ""),
    ]
    assert math.isinf(pandas.read_csv(tmp_path / "metrics_train.csv")["kl"][0])


def test_what_is_no_value_of_a_metric_is_refused(tmp_path):
    with pytest.raises(TypeError):
        Csv(tmp_path).write(Row("train", 8, 1, 0.5, {"policy_loss": [1.0, 2.0]}))
