import _thread
import json
import signal
import threading
import time
import traceback
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.checkpoint import CheckpointConfig, Checkpoints
from podracer.console import Silent
from podracer.faults import FaultsConfig, NonFiniteError
from podracer.loggers.jsonl import JsonLines
from podracer.loop import Loop, evaluation_updates
from podracer.runner import Episodes, Report, no_episodes
from podracer.runners.evaluator import EvaluationConfig, EvaluationResult
from podracer.types import PolicySnapshot
from tests.runners.doubles import run_threads


class FakeRunner:
    """Makes `updates` updates of 10 environment steps, in chunks of at most `chunk`."""

    def __init__(self, updates, chunk=4):
        self.plan = SimpleNamespace(runner="anakin", updates=updates, env_steps_per_update=10)
        self.closed = False
        self.chunks = []
        self._chunk = chunk

    def init(self):
        return "state"

    def run(self, state, due):
        updates = 0
        try:
            while updates < self.plan.updates:
                upcoming = due(updates)
                end = min(upcoming.updates, self.plan.updates)
                made = min(self._chunk, end - updates)
                updates += made
                self.chunks.append(made)
                snapshot = PolicySnapshot({"w": jnp.ones(2)}, jnp.float32(0), jnp.int32(updates))
                metrics = {"policy_lag_mean": float(made), "policy_lag_max": float(updates)}
                episodes = Episodes(made, 2.0 * made, 3 * made, 1.0, 3.0) if made > 1 else no_episodes()
                timings = {"train_seconds": made / 10, "compile_seconds": 1.0 if updates == made else 0.0}
                is_due = upcoming.snapshot and updates == end
                state = {"x": np.arange(2)} if upcoming.state and updates == end else None
                yield Report(updates, 10 * updates, metrics, episodes, timings, {}, snapshot if is_due else None, state)
        finally:
            self.closed = True


class Rows:
    def __init__(self):
        self.rows = []

    def write(self, row):
        self.rows.append(row)

    def close(self, status):
        pass

    def updates(self, kind):
        return [row.updates for row in self.rows if row.kind == kind]


def make_loop(
    runner, *, evaluate=None, evaluation=None, logger=None, folder=None, profile=False, checkpoint=None, faults=None
):
    evaluation = evaluation or EvaluationConfig(num_episodes=0)
    return Loop(
        runner, runner.plan, evaluate, evaluation, logger or Rows(), Silent(), folder, profile, checkpoint, faults
    )


def rising(snapshot, stopping):
    """An evaluation whose returns are 0 and 2 updates, but for 10 more after update 4."""
    updates = float(snapshot.version)
    bonus = 10.0 if updates == 4 else 0.0
    return EvaluationResult(np.array([0.0, 2 * updates]) + bonus, np.array([5, 7]), 0)


@pytest.mark.parametrize(
    ("updates", "evaluations", "expected"),
    [
        (10, 3, [4, 7, 10]),
        (10, 0, [10]),
        (10, 1, [10]),
        (10, 10, list(range(1, 11))),
        (3, 10, [1, 2, 3]),
        (1, 5, [1]),
    ],
)
def test_B08_every_update_is_made_whatever_the_evaluations(updates, evaluations, expected):
    config = EvaluationConfig(num_evaluations=evaluations)
    assert evaluation_updates(updates, config) == expected
    runner, logger = FakeRunner(updates), Rows()
    make_loop(runner, evaluate=rising, evaluation=config, logger=logger).run()
    assert sum(runner.chunks) == updates and runner.closed
    assert logger.updates("evaluation") == expected
    assert logger.updates("train")[-1] == updates


def test_B08_no_episodes_is_no_evaluation():
    runner, logger = FakeRunner(10), Rows()
    loop = make_loop(runner, evaluation=EvaluationConfig(num_episodes=0), logger=logger)
    loop.run()
    assert logger.updates("evaluation") == [] and runner.chunks == [4, 4, 2]
    result = loop.result("completed")
    assert result["final_return"] is None and result["best_return"] is None


def test_the_result_sums_the_run_up():
    runner = FakeRunner(10)
    loop = make_loop(runner, evaluate=rising, evaluation=EvaluationConfig(num_evaluations=3))
    loop.run()
    result = loop.result("completed")
    # Chunks of 4, 3 and 3 updates; means at updates 4, 7 and 10: 4 + 10, 7, 10.
    assert (result["best_return"], result["final_return"]) == (14.0, 10.0)
    assert (result["updates"], result["env_steps"], result["episodes"]) == (10, 100, 10)
    assert result["train_seconds"] == pytest.approx(1.0) and result["compile_seconds"] == 1.0
    # 60 steps in 0.6 s after the first chunk.
    assert result["steps_per_second"] == pytest.approx(100.0)
    # (4 x 4 + 3 x 3 + 3 x 3) / 10.
    assert (result["policy_lag_mean"], result["policy_lag_max"]) == (pytest.approx(3.4), 10.0)
    assert result["status"] == "completed"


def test_a_run_of_one_chunk_has_a_speed():
    loop = make_loop(FakeRunner(4))
    loop.run()
    assert loop.result("completed")["steps_per_second"] == pytest.approx(100.0)


def test_nothing_is_known_before_the_first_report():
    result = make_loop(FakeRunner(4)).result("failed")
    assert (result["updates"], result["env_steps"], result["steps_per_second"]) == (0, 0, None)
    json.dumps(result)


class Broken(Exception):
    pass


def test_B01_a_failing_evaluator_ends_the_runner_and_is_told_once():
    def evaluate(snapshot, stopping):
        raise Broken("evaluator")

    runner, logger = FakeRunner(10), Rows()
    loop = make_loop(runner, evaluate=evaluate, evaluation=EvaluationConfig(num_evaluations=2), logger=logger)
    with pytest.raises(Broken, match="evaluator") as caught:
        loop.run()
    assert runner.closed and run_threads() == []
    assert logger.updates("train") == [4, 5]  # what was measured before is kept
    text = "".join(traceback.format_exception(caught.value))
    assert text.count("Traceback") == 1 and text.count("Broken: evaluator") == 1


def test_B01_a_failing_logger_ends_the_runner():
    class Full(Rows):
        def write(self, row):
            if row.updates == 8:
                raise OSError("no space left on device")
            super().write(row)

    runner = FakeRunner(10)
    with pytest.raises(OSError, match="no space left"):
        make_loop(runner, logger=Full()).run()
    assert runner.closed


def test_B01_what_is_logged_before_a_failure_is_on_disk(tmp_path):
    class Fails(FakeRunner):
        def run(self, state, due):
            for report in super().run(state, due):
                if report.updates == 10:
                    raise Broken("runner")
                yield report

    logger = JsonLines(tmp_path / "metrics.jsonl")
    with pytest.raises(Broken):
        make_loop(Fails(10), logger=logger).run()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["updates"] for row in rows] == [4, 8]


def test_the_main_thread_is_not_the_one_that_evaluates():
    threads = []

    def evaluate(snapshot, stopping):
        threads.append((threading.current_thread().name, stopping()))
        return rising(snapshot, stopping)

    make_loop(FakeRunner(2), evaluate=evaluate, evaluation=EvaluationConfig(num_evaluations=1)).run()
    assert threads == [("evaluator", False)]


def test_an_interrupt_ends_an_evaluation():
    def evaluate(snapshot, stopping):
        _thread.interrupt_main()
        while not stopping():
            time.sleep(0.01)
        return rising(snapshot, stopping)

    runner = FakeRunner(10)
    with pytest.raises(KeyboardInterrupt):
        make_loop(runner, evaluate=evaluate, evaluation=EvaluationConfig(num_evaluations=2)).run()
    assert runner.closed and run_threads() == []


def test_the_parameters_of_every_evaluation_are_saved(tmp_path, monkeypatch):
    saved = []

    def save(self, updates, policy, state, meta, episode_return):
        assert int(policy.version) == updates == meta["progress"]["updates"]
        saved.append((updates, episode_return))

    monkeypatch.setattr(Checkpoints, "save", save)
    make_loop(FakeRunner(10), evaluate=rising, evaluation=EvaluationConfig(num_evaluations=3), folder=tmp_path).run()
    assert saved == [(4, 14.0), (7, 7.0), (10, 10.0)]
    saved.clear()
    make_loop(FakeRunner(10), folder=tmp_path).run()  # final parameters are saved without any evaluation, too
    assert saved == [(10, None)]


def test_a_run_is_saved_when_its_period_in_steps_ends(tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(Checkpoints, "save", lambda self, updates, *rest: saved.append((updates, rest[1] is not None)))
    runner = FakeRunner(10)
    # 10 steps an update: every third update.
    make_loop(runner, folder=tmp_path, checkpoint=CheckpointConfig(period_env_steps=35)).run()
    assert saved == [(3, True), (6, True), (9, True), (10, True)]
    saved.clear()
    config = CheckpointConfig(period_env_steps=35, enabled=False)
    make_loop(FakeRunner(10), folder=tmp_path, checkpoint=config).run()
    assert saved == [(10, False)]


def test_a_run_is_saved_when_its_period_in_seconds_ends(tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(Checkpoints, "save", lambda self, updates, *rest: saved.append(updates))
    make_loop(FakeRunner(5), folder=tmp_path, checkpoint=CheckpointConfig(period_seconds=1e-9)).run()
    assert saved == [1, 2, 3, 4, 5]
    saved.clear()
    make_loop(FakeRunner(5), folder=tmp_path, checkpoint=CheckpointConfig(period_seconds=1e9)).run()
    assert saved == [5]


def test_B04_a_signal_lets_the_update_in_hand_end_and_saves_it(tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(Checkpoints, "save", lambda self, updates, *rest: saved.append((updates, rest[1] is not None)))
    runner, rows = FakeRunner(1000), Rows()
    write = rows.write

    def write_and_signal(row):
        write(row)
        if row.updates == 8:
            signal.raise_signal(signal.SIGTERM)

    rows.write = write_and_signal
    with pytest.raises(KeyboardInterrupt):
        make_loop(runner, logger=rows, folder=tmp_path).run()
    assert saved == [(9, True)] and rows.updates("train")[-1] == 9
    assert runner.closed and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_B04_a_signal_during_an_evaluation_ends_it_and_saves_the_run(tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(Checkpoints, "save", lambda self, updates, *rest: saved.append((updates, rest[-1])))

    def evaluate(policy, stopping):
        _thread.interrupt_main()
        while not stopping():
            time.sleep(0.01)
        return EvaluationResult(np.zeros(1), np.ones(1), 0)

    rows = Rows()
    loop = make_loop(
        FakeRunner(10), evaluate=evaluate, evaluation=EvaluationConfig(num_evaluations=3), logger=rows, folder=tmp_path
    )
    with pytest.raises(KeyboardInterrupt):
        loop.run()
    assert saved == [(4, None)] and rows.updates("evaluation") == []


def test_B04_a_second_signal_ends_a_run_at_once(monkeypatch, tmp_path):
    saved = []
    monkeypatch.setattr(Checkpoints, "save", lambda self, updates, *rest: saved.append(updates))
    rows = Rows()

    def write(row):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    rows.write = write
    with pytest.raises(KeyboardInterrupt):
        make_loop(FakeRunner(1000), logger=rows, folder=tmp_path).run()
    assert saved == []


class Skipping(FakeRunner):
    """Two of its updates 5 to 8 are not finite."""

    def run(self, state, due):
        for report in super().run(state, due):
            yield report._replace(counters={"skipped_updates": 2 if report.updates == 8 else 0})


def test_E11_updates_that_are_not_finite_end_the_run_and_no_checkpoint_follows(tmp_path, monkeypatch):
    saved, rows = [], Rows()
    monkeypatch.setattr(Checkpoints, "save", lambda self, updates, *rest: saved.append(updates))
    config = CheckpointConfig(period_env_steps=40)
    with pytest.raises(NonFiniteError, match=r"^2 of the updates 5 to 8 gave parameters"):
        make_loop(Skipping(20), logger=rows, folder=tmp_path, checkpoint=config).run()
    assert saved == [4] and rows.rows[-1].values["skipped_updates"] == 2


def test_updates_that_are_not_finite_may_be_skipped(tmp_path):
    rows = Rows()
    make_loop(Skipping(20), logger=rows, faults=FaultsConfig(nonfinite="skip")).run()
    assert sum(row.values["skipped_updates"] for row in rows.rows) == 2 and rows.updates("train")[-1] == 20


@pytest.fixture
def traces(monkeypatch):
    events = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: events.append(("start", folder.name)))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: events.append("stop"))
    return events


@pytest.mark.parametrize(
    ("updates", "chunks"), [(30, [4, 4, 2, 4, 1, 4, 4, 4, 3]), (12, [4, 4, 2, 2]), (5, [4, 1]), (2, [1, 1])]
)
def test_a_profile_is_a_trace_of_updates_10_to_15(traces, tmp_path, updates, chunks):
    runner = FakeRunner(updates)
    make_loop(runner, folder=tmp_path, profile=True).run()
    assert runner.chunks == chunks
    assert traces == [("start", "profile"), "stop"]


def test_a_run_of_one_update_has_no_trace(traces, tmp_path):
    make_loop(FakeRunner(1), folder=tmp_path, profile=True).run()
    assert traces == []


def test_a_trace_ends_with_a_run_that_fails(traces, tmp_path):
    class Full(Rows):
        def write(self, row):
            if row.updates > 10:
                raise OSError("full")

    with pytest.raises(OSError, match="full"):
        make_loop(FakeRunner(30), logger=Full(), folder=tmp_path, profile=True).run()
    assert traces == [("start", "profile"), "stop"]
