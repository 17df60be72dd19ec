"""The console of runs that are trained together."""

import numpy as np

from podracer.logging import Row
from podracer.shared_console import Shared


class Recorder:
    """A console that keeps what it is told to show."""

    def __init__(self):
        self.shown, self.phases, self.result = [], [], None

    def phase(self, name):
        self.phases.append(name)

    def report(self, row):
        self.shown.append(row)

    def evaluation(self, row):
        self.shown.append(row)

    def finish(self, result, folder):
        self.result = result


def row(updates, env_steps, kind="train", **values):
    return Row(kind, env_steps, updates, 1.0, values)


def test_the_mean_of_a_row_is_shown_once_every_run_has_given_its_own():
    console = Recorder()
    shared = Shared(console)
    seats = [shared.seat(), shared.seat()]
    seats[0].report(row(1, 10, loss=1.0, steps_per_second=100.0))
    assert not console.shown
    seats[1].report(row(1, 20, loss=3.0, steps_per_second=300.0, episode_return=5.0))
    (shown,) = console.shown
    assert (shown.updates, shown.env_steps) == (1, 15)
    assert shown.values == {"loss": 2.0, "steps_per_second": 400.0, "episode_return": 5.0}


def test_rows_wait_no_longer_for_a_run_that_leaves():
    console = Recorder()
    shared = Shared(console)
    seats = [shared.seat() for _ in range(3)]
    for seat, loss in zip(seats[:2], (1.0, 2.0)):
        seat.report(row(1, 10, loss=loss))
        seat.evaluation(row(1, 10, "evaluation", episode_return=loss))
    shared.leave(seats[2])
    assert [(shown.kind, *shown.values.values()) for shown in console.shown] == [("train", 1.5), ("evaluation", 1.5)]
    seats[0].report(row(2, 20, loss=4.0))
    shared.leave(seats[0])  # what it has given is of no run that goes on
    assert len(console.shown) == 2
    seats[1].report(row(2, 20, loss=7.0))
    assert console.shown[2].values == {"loss": 7.0}
    seats[1].phase("evaluating")
    assert console.phases == ["evaluating"]


def test_the_result_adds_steps_and_averages_returns():
    console = Recorder()
    common = {"updates": 4, "episodes": 2, "train_seconds": 3.0, "compile_seconds": 1.0}
    results = [
        {
            **common,
            "status": "completed",
            "env_steps": 10,
            "steps_per_second": 5.0,
            "final_return": 1.0,
            "best_return": 2,
        },
        {
            **common,
            "status": "failed",
            "env_steps": 6,
            "steps_per_second": None,
            "final_return": 3.0,
            "best_return": None,
        },
    ]
    Shared(console).finish(results)
    assert console.result["status"] == "1 of 2 runs completed"
    assert (console.result["env_steps"], console.result["episodes"], console.result["steps_per_second"]) == (16, 4, 5.0)
    np.testing.assert_allclose([console.result["final_return"], console.result["final_return_std"]], [2.0, 1.0])
    assert console.result["best_return"] == 2
