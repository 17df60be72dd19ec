import math
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from podracer.loggers.tensorboard import TensorBoard
from tests.loggers.rows import (
    AFTER_THE_RESUME,
    BEFORE_THE_KILL,
    EVALUATION_STEPS,
    HARD,
    LARGE,
    TRAIN_STEPS,
    write_all,
)


def read(folder: Path, tag: str):
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_D07_a_resumed_run_has_every_row_once(tmp_path):
    write_all(TensorBoard(tmp_path), BEFORE_THE_KILL, None)
    write_all(TensorBoard(tmp_path, 30), AFTER_THE_RESUME)
    assert [step for step, _ in read(tmp_path, "train/policy_loss")] == TRAIN_STEPS
    assert [step for step, _ in read(tmp_path, "evaluation/episode_return")] == EVALUATION_STEPS


def test_D07_rows_that_a_resumed_run_has_not_reached_again_are_purged(tmp_path):
    write_all(TensorBoard(tmp_path), BEFORE_THE_KILL, None)  # up to step 50
    write_all(TensorBoard(tmp_path, 30), AFTER_THE_RESUME[:1])
    assert [step for step, _ in read(tmp_path, "train/policy_loss")] == [10, 20, 30, 40]


def test_D07_files_are_read_in_the_order_they_were_written_whatever_the_clock_says(tmp_path, monkeypatch):
    for seconds, rows in ((5000, BEFORE_THE_KILL), (5000, AFTER_THE_RESUME[:2]), (400, AFTER_THE_RESUME)):
        monkeypatch.setattr("time.time", lambda seconds=seconds: float(seconds))
        write_all(TensorBoard(tmp_path, None if rows is BEFORE_THE_KILL else 30), rows)
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        f"events.out.tfevents.0000005000.{n:04d}" for n in range(3)
    ]
    assert [step for step, _ in read(tmp_path, "train/policy_loss")] == TRAIN_STEPS


def test_B14_steps_pass_32_bits(tmp_path):
    write_all(TensorBoard(tmp_path), LARGE[:2], None)
    write_all(TensorBoard(tmp_path, 2_147_483_712), LARGE[2:])
    assert [step for step, _ in read(tmp_path, "train/frames")] == [2_147_483_648, 2_147_483_712, 2_147_483_776]


def test_values_that_are_no_numbers_neither_fail_nor_vanish(tmp_path):
    write_all(TensorBoard(tmp_path), [HARD])
    assert math.isnan(read(tmp_path, "train/policy_loss")[0][1])
    assert math.isnan(read(tmp_path, "train/value_loss")[0][1])
    assert read(tmp_path, "train/kl") == [(8, math.inf)]
