import pytest

from podracer.loggers.several import Expendable, Multi
from podracer.logging import LoggerConfig, make_logger
from tests.loggers.rows import INTERLEAVED, write_all


class Recorder:
    def __init__(self, failure=None):
        self.failure = failure
        self.calls = []

    def write(self, row):
        self.calls.append(row)
        if self.failure:
            raise self.failure

    def close(self, status):
        self.calls.append(status)
        if self.failure:
            raise self.failure


def test_one_failing_logger_costs_the_others_nothing():
    first, broken, last = Recorder(), Recorder(OSError("disk full")), Recorder()
    logger = Multi([first, broken, last])
    with pytest.raises(OSError, match="disk full"):
        logger.write(INTERLEAVED[0])
    with pytest.raises(OSError, match="disk full"):
        logger.close("failed")
    assert first.calls == last.calls == [INTERLEAVED[0], "failed"]


def test_a_failing_expendable_logger_is_told_of_once_and_dropped(capsys):
    kept, broken = Recorder(), Recorder(ConnectionError("no route to host"))
    write_all(Multi([kept, Expendable("wandb", lambda: broken)]), INTERLEAVED)

    assert kept.calls == [*INTERLEAVED, "completed"]
    assert broken.calls == [INTERLEAVED[0], "failed"]  # closed, and asked no more
    told = capsys.readouterr().err
    assert told.count("no route to host") == 1
    assert "logger wandb failed at env_steps=100" in told
    assert "ConnectionError" in told


def test_an_expendable_logger_that_cannot_start_is_told_of_and_dropped(capsys):
    def fail():
        raise ConnectionError("no route to host")

    write_all(Expendable("mlflow", fail), INTERLEAVED)
    assert capsys.readouterr().err.count("logger mlflow could not start") == 1


def test_an_interruption_is_no_failure_of_the_logger():
    with pytest.raises(KeyboardInterrupt):
        Expendable("wandb", lambda: Recorder(KeyboardInterrupt())).write(INTERLEAVED[0])


@pytest.mark.parametrize("fail_on_error", [False, True])
def test_a_run_outlives_its_loggers_unless_told_otherwise(tmp_path, capsys, fail_on_error):
    (tmp_path / "metrics_train.csv").mkdir()  # in the place of the file
    config = LoggerConfig(csv=True, tensorboard=False, fail_on_error=fail_on_error)
    logger = make_logger(config, tmp_path, is_writer=True)
    if fail_on_error:
        with pytest.raises(IsADirectoryError):
            logger.write(INTERLEAVED[0])
        logger.close("failed")
    else:
        write_all(logger, INTERLEAVED)
        assert "logger csv failed at env_steps=100" in capsys.readouterr().err
    expected = 1 if fail_on_error else len(INTERLEAVED)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == expected


def test_what_metrics_jsonl_cannot_keep_ends_the_run(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    logger = make_logger(LoggerConfig(tensorboard=False), tmp_path, is_writer=True)
    with pytest.raises(OSError, match="No space left"):
        logger.write(INTERLEAVED[0])
