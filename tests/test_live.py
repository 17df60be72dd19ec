import re
import sys
import threading
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest

from podracer.live import Live
from podracer.logging import Row

PLAN = SimpleNamespace(updates=1000, total_env_steps=10_000_000)
VALUES = {
    "train_seconds": 2.0,
    "steps_per_second": 182_345.0,
    "episodes": 3,
    "episode_return": 195.31,
    "episode_length": 187.5,
    "policy_loss": -0.0123,
    "entropy": float("nan"),
}
SEBULBA = {
    "env_seconds": 0.9,
    "act_seconds": 0.6,
    "actor_wait_seconds": 0.5,
    "learn_seconds": 2.2,
    "learner_wait_seconds": 0.1,
    "policy_lag_mean": 1.0,
    "policy_lag_max": 2.0,
}


class Clock:
    seconds = 0.0

    def __call__(self):
        return self.seconds


class Screen:
    """A live console whose latest frame can be read as text."""

    def __init__(self, width):
        self.file, self.clock = StringIO(), Clock()
        self.console = Live(self.file, self.clock, width)

    def frame(self):
        """What a reader sees after the next redraw."""
        self.file.seek(0)
        self.file.truncate()
        self.console._live.refresh()
        return self.text()

    def text(self):
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.file.getvalue())


@pytest.fixture(params=[80, 120])
def screen(request):
    screen = Screen(request.param)
    screen.console.start(PLAN, "ppo on CartPole-v1, sebulba, [2] cpu devices")
    yield screen
    screen.console.close()


def test_what_is_compiled_and_for_how_long_shows_before_any_report(screen):
    screen.clock.seconds = 3.0
    screen.console.phase("compiling the training program")
    screen.clock.seconds = 15.0
    frame = screen.frame()
    assert "ppo on CartPole-v1, sebulba, [2] cpu devices" in frame
    assert "compiling the training program, 12 s" in frame
    assert "steps/s" not in frame


def test_a_report_shows_progress_speed_and_quality(screen):
    console = screen.console
    console.report(Row("train", 1_000, 100, 5.0, VALUES | SEBULBA))
    assert "-:--:-- left" in screen.frame()
    console.report(Row("train", 2_000, 200, 10.0, VALUES | SEBULBA | {"steps_per_second": 82_345.0}))
    console.evaluation(Row("evaluation", 2_000, 200, 11.0, {"episode_return": 201.5}))
    screen.clock.seconds = 12.0
    frame = screen.frame()
    for text in ("2.00M/10.0M steps", "200/1,000 updates", "20.0%", "0:00:12 gone", "0:00:40 left"):  # 800 x 5 s / 100
        assert text in frame
    assert re.search(r"steps/s +82\.3k +mean 132k", frame)  # (182345 + 82345) / 2
    assert re.search(r"return +195\.3 +▁▁", frame)
    assert re.search(r"length +187\.5 steps", frame)
    assert re.search(r"evaluation +201\.5 best", frame)
    assert re.search(r"policy lag 1\.0 +updates, at most 2", frame)
    assert re.search(r"policy_loss +-0\.01230", frame)
    assert re.search(r"entropy +nan", frame)
    assert max(len(line) for line in frame.splitlines()) <= screen.console._terminal.width - 2


def test_where_the_time_goes_is_a_share_of_training(screen):
    screen.console.report(Row("train", 1_000, 100, 5.0, VALUES | SEBULBA))
    frame = screen.frame()
    shares = (("environment", 45), ("acting", 30), ("actors wait", 25), ("learning", 110), ("learner waits", 5))
    for name, percent in shares:  # seconds / 2
        assert re.search(rf"{name} +[━╸╺ ]+ {percent}%", frame)
    assert re.search(r"environment +━{7}╺", frame)  # 0.45 x 16 = 7.2
    assert re.search(r"learning +━{16} ", frame)


def test_one_compiled_program_has_no_activities(screen):
    screen.console.report(Row("train", 1_000, 100, 5.0, VALUES | {"compile_seconds": 3.0}))
    frame = screen.frame()
    assert "learning" not in frame and "lag" not in frame and "compile" not in frame


def test_an_evaluation_in_progress_shows(screen):
    screen.console.report(Row("train", 1_000, 100, 5.0, VALUES))
    screen.console.phase("evaluating")
    screen.clock.seconds = 2.0
    assert "evaluating, 2 s" in screen.frame()
    screen.console.evaluation(Row("evaluation", 2_000, 200, 11.0, {"episode_return": 201.5}))
    assert "evaluating" not in screen.frame()


def test_what_is_printed_meanwhile_stays_whole():
    screen = Screen(80)
    screen.console.start(PLAN, "ppo")  # here rather than in a fixture: pytest swaps the streams in between
    print("a word from an environment")
    print("a [bold]warning", file=sys.stderr)
    screen.console.close()
    lines = [line.strip() for line in screen.text().splitlines()]
    assert "a word from an environment" in lines
    assert "a [bold]warning" in lines


def test_the_result_follows_the_panel(screen):
    screen.console.report(Row("train", 1_000, 1000, 5.0, VALUES))
    screen.console.finish({"status": "interrupted", "env_steps": 987_654, "final_return": 1.5}, Path("runs/1"))
    text = screen.text()
    assert re.search(r"status +interrupted", text)
    assert re.search(r"env steps +987,654", text)
    assert re.search(r"folder +runs/1", text)


def test_closing_gives_the_terminal_back():
    stdout, threads = sys.stdout, set(threading.enumerate())
    screen = Screen(80)
    screen.console.start(PLAN, "ppo")
    try:
        assert sys.stdout is not stdout
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        drawer = next(thread for thread in threading.enumerate() if type(thread).__name__ == "_RefreshThread")
        screen.console.close()
        screen.console.close()
    drawer.join(5.0)
    assert set(threading.enumerate()) <= threads  # one of an earlier test may have ended meanwhile
    assert sys.stdout is stdout
    assert screen.file.getvalue().rstrip().endswith("\x1b[?25h")  # the cursor is back


def test_a_narrow_terminal_is_no_fault():
    screen = Screen(30)
    screen.console.start(PLAN, "ppo on CartPole-v1, sebulba, 1 actor + 1 learner cpu devices")
    screen.console.report(Row("train", 1_000, 100, 5.0, VALUES | SEBULBA))
    assert max(len(line) for line in screen.frame().splitlines()) <= 30
    screen.console.close()
