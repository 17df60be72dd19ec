import subprocess
import sys
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest

from podracer.console import Plain, Progress, Silent, duration, human, make_console, number
from podracer.live import Live
from podracer.logging import LoggerConfig, Row

PLAN = SimpleNamespace(updates=1000, total_env_steps=10_000_000)
RESULT = {
    "status": "completed",
    "env_steps": 9_876_543,
    "updates": 1000,
    "episodes": 50_123,
    "train_seconds": 3_754.2,
    "compile_seconds": 4.26,
    "steps_per_second": 182_345.0,
    "final_return": 198.25,
    "best_return": None,
    "policy_lag_mean": 1.0,
    "policy_lag_max": 2.0,
}


def train_row(updates, wall_seconds, **values):
    return Row("train", 9_990 * updates, updates, wall_seconds, {"train_seconds": 0.5, "episodes": 0} | values)


class Clock:
    seconds = 0.0

    def __call__(self):
        return self.seconds


@pytest.fixture
def clock():
    return Clock()


def plain(clock):
    console = Plain(2.0, StringIO(), clock)
    console.start(PLAN, "ppo on CartPole-v1, anakin, 8 cpu devices")
    return console, lambda: console._file.getvalue().splitlines()[1:]


def test_plain_lines_are_aligned_and_at_least_a_period_apart(clock):
    console, lines = plain(clock)
    console.report(train_row(1, 1.0, steps_per_second=999.6))
    clock.seconds = 1.0
    console.report(train_row(50, 2.0, steps_per_second=1.0))
    clock.seconds = 2.0
    console.report(
        train_row(123, 3.0, steps_per_second=182_345, episode_return=195.31, episode_length=195.0, policy_lag_mean=1.0)
    )
    # Left: 877 updates at (3 - 1) s / (123 - 1) updates, 14.4 s. Used: 0.123 x 10M slots.
    assert lines() == [
        "  0.1%  10.0k/10.0M steps  1.00k steps/s",
        " 12.3%  1.23M/10.0M steps   182k steps/s  return  195.3  length 195.0  lag 1.0  eta 0:00:14",
    ]


def test_plain_ends_with_the_last_report_and_the_result(clock):
    console, lines = plain(clock)
    console.report(train_row(500, 1.0, steps_per_second=1e5))
    console.report(train_row(1000, 2.0, steps_per_second=1e5))
    console.finish(RESULT, Path("runs/1"))
    assert lines()[1:] == [
        "100.0%  10.0M/10.0M steps   100k steps/s  eta 0:00:00",
        "status        completed",
        "env steps     9,876,543",
        "updates       1,000",
        "episodes      50,123",
        "train time    1:02:34",
        "compile time  4.3 s",
        "speed         182k steps/s",
        "final return  198.2",
        "policy lag    1.0 updates, at most 2",
        "folder        runs/1",
    ]


def test_plain_announces_a_phase_once_and_every_evaluation(clock):
    console, lines = plain(clock)
    evaluation = {"episode_return": 198.2, "episode_return_std": 3.14159, "episodes": 128}
    console.phase("compiling")
    console.phase("training")
    for env_steps in (1_230_000, 2_460_000):
        console.phase("evaluating")
        console.evaluation(Row("evaluation", env_steps, 1, 1.0, evaluation))
    assert lines() == [
        "compiling ...",
        "evaluating ...",
        "evaluation at 1.23M steps: return 198.2 +- 3.14 over 128 episodes",
        "evaluation at 2.46M steps: return 198.2 +- 3.14 over 128 episodes",
    ]


def test_a_run_that_failed_early_still_has_a_result(clock):
    console, lines = plain(clock)
    console.finish(dict.fromkeys(RESULT) | {"status": "failed"}, Path("runs/1"))
    assert lines() == ["status        failed", "folder        runs/1"]


class Terminal(StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("console", "file", "term", "kind"),
    [
        ("auto", Terminal(), "xterm", Live),
        ("auto", Terminal(), "dumb", Plain),
        ("auto", StringIO(), "xterm", Plain),
        ("live", StringIO(), "xterm", Live),
        ("plain", Terminal(), "xterm", Plain),
        ("none", Terminal(), "xterm", Silent),
    ],
)
def test_the_terminal_decides_unless_the_user_does(monkeypatch, console, file, term, kind):
    monkeypatch.setenv("TERM", term)
    assert type(make_console(LoggerConfig(console=console), file=file)) is kind


def test_only_one_process_speaks():
    assert type(make_console(LoggerConfig(console="live"), is_writer=False, file=StringIO())) is Silent


def test_progress_keeps_what_a_row_does_not_say():
    progress = Progress(PLAN).report(train_row(1, 1.0, steps_per_second=100.0, episode_return=5.0))
    progress = progress.report(train_row(2, 2.0, steps_per_second=300.0))
    assert progress.values["episode_return"] == 5.0
    assert progress.returns == (5.0,)
    assert progress.mean_steps_per_second == 200.0  # (0.5 x 100 + 0.5 x 300) / 1
    assert progress.report(train_row(3, 3.0, steps_per_second=1.0, episode_return=float("nan"))).returns == (5.0,)


def test_progress_keeps_the_best_evaluation():
    progress = Progress(PLAN)
    for episode_return in (-7.0, -3.0, -5.0):
        progress = progress.evaluation(Row("evaluation", 1, 1, 1.0, {"episode_return": episode_return}))
    assert progress.best_evaluation == -3.0


def test_a_resumed_run_expects_its_end_from_its_own_pace():
    progress = Progress(PLAN).report(train_row(600, 1.0, steps_per_second=1.0))
    assert progress.eta_seconds is None
    progress = progress.report(train_row(700, 11.0, steps_per_second=1.0))
    assert progress.eta_seconds == pytest.approx(30.0)  # 300 updates at 10 s / 100


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999"),
        (999.6, "1.00k"),
        (1_234, "1.23k"),
        (182_345, "182k"),
        (10_000_000, "10.0M"),
        (2**31, "2.15B"),
        (1.5e12, "1.50T"),
        (-12_345, "-12.3k"),
    ],
)
def test_human(count, text):
    assert human(count) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.000"),
        (0.95123, "0.9512"),
        (195.0, "195.0"),
        (-1234.6, "-1235"),
        (-12_345.0, "-12.3k"),
        (1.2e-5, "1.20e-05"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
    ],
)
def test_number(value, text):
    assert number(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00:00"), (59.6, "0:01:00"), (37_384.0, "10:23:04")])
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_the_console_loads_nothing_before_it_is_used():
    program = "import sys, podracer.console; print([m for m in ('jax', 'rich') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "[]\n"
