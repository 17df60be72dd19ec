import json

from podracer.loggers.jsonl import JsonLines
from tests.loggers.rows import (
    AFTER_THE_RESUME,
    BEFORE_THE_KILL,
    EVALUATION_STEPS,
    LARGE,
    RESUME_UPDATES,
    RUN,
    TRAIN_STEPS,
    write_all,
)


def steps(path, kind):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row["env_steps"] for row in rows if row["kind"] == kind]


def test_D07_a_resumed_run_has_every_row_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_all(JsonLines(path), BEFORE_THE_KILL, None)
    resumed = JsonLines(path, RESUME_UPDATES)
    assert resumed.last_env_steps == 30  # ten a row, three updates
    write_all(resumed, AFTER_THE_RESUME)

    assert steps(path, "train") == TRAIN_STEPS
    assert steps(path, "evaluation") == EVALUATION_STEPS
    write_all(JsonLines(tmp_path / "undisturbed.jsonl"), RUN)
    assert sorted(path.read_text().splitlines()) == sorted((tmp_path / "undisturbed.jsonl").read_text().splitlines())


def test_D07_lines_that_a_killed_process_left_unfinished_are_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_all(JsonLines(path), RUN[:2])
    complete = path.read_text()
    for rest in ('{"kind": "train", "env_steps": 2', '{"kind": "train", "env_steps": 20, "updates": 2}', "\0\0\0\n"):
        path.write_text(complete + rest)
        write_all(JsonLines(path, 8), [])
        assert path.read_text() == complete
    assert [child.name for child in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_D07_a_resume_before_the_first_row_begins_anew(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_all(JsonLines(path, 0), RUN)
    write_all(JsonLines(path, 0), RUN)
    assert steps(path, "train") == TRAIN_STEPS


def test_B14_counters_pass_32_bits(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_all(JsonLines(path), LARGE[:2], None)
    write_all(JsonLines(path, 2**31 + 1), LARGE[1:])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["env_steps"] for row in rows] == [2_147_483_648, 2_147_483_712, 2_147_483_776]
    assert [row["updates"] for row in rows] == [2_147_483_649, 2_147_483_650, 2_147_483_651]
    assert [row["frames"] for row in rows] == [2**53 + 1, 2**53 + 2, 2**53 + 3]
