"""The run loop, outside of the runners and once for both: log, evaluate, stop, keep the result."""

import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from podracer import checkpoint
from podracer.logging import Logger, Row, train_values
from podracer.parallel.mesh import Plan
from podracer.runner import Due, Episodes, Report, Runner, merge_episodes, no_episodes
from podracer.runners.evaluator import Evaluate, EvaluationConfig, EvaluationResult
from podracer.runners.workers import Workers, call_in_worker

# The updates between which `profile=true` records a trace.
PROFILED_UPDATES = (10, 15)


@dataclass
class Progress:
    """What is known of a run so far."""

    updates: int = 0
    env_steps: int = 0
    episodes: Episodes = field(default_factory=no_episodes)
    train_seconds: float = 0.0
    compile_seconds: float = 0.0
    steady_seconds: float = 0.0  # of the chunks after the first
    steady_env_steps: int = 0
    best_return: float | None = None
    final_return: float | None = None
    policy_lag_sum: float = 0.0
    policy_lag_max: float = 0.0


class Loop:
    """Consumes a runner's reports."""

    def __init__(
        self,
        runner: Runner,
        plan: Plan,
        evaluate: Evaluate | None,
        evaluation: EvaluationConfig,
        logger: Logger,
        console: Any,
        folder: Path | None,
        profile: bool = False,
    ):
        self._runner = runner
        self._evaluate = evaluate
        self._evaluations = evaluation_updates(plan.updates, evaluation)
        self._trace = _Trace(folder / "profile" if profile and folder is not None else None, plan.updates)
        self._logger = logger
        self._console = console
        self._folder = folder
        self._started = time.monotonic()
        self.progress = Progress()

    def run(self) -> None:
        """Trains from the start to the end of the budget."""
        self._console.phase("compiling")
        state = call_in_worker("init", lambda workers: self._runner.init())
        with contextlib.closing(self._trace), contextlib.closing(self._runner.run(state, self._due)) as reports:
            del state  # it is donated
            for report in reports:
                self._handle(report)

    def result(self, status: str) -> dict[str, Any]:
        """Summarises the run so far, as `result.json` holds it."""
        progress = self.progress
        env_steps, seconds = progress.steady_env_steps, progress.steady_seconds
        if not seconds:
            env_steps, seconds = progress.env_steps, progress.train_seconds
        return {
            "status": status,
            "env_steps": progress.env_steps,
            "updates": progress.updates,
            "episodes": progress.episodes.count,
            "train_seconds": progress.train_seconds,
            "compile_seconds": progress.compile_seconds,
            "steps_per_second": env_steps / seconds if seconds else None,
            "final_return": progress.final_return,
            "best_return": progress.best_return,
            "policy_lag_mean": progress.policy_lag_sum / max(progress.updates, 1),
            "policy_lag_max": progress.policy_lag_max,
            "wall_seconds": time.monotonic() - self._started,
        }

    def _due(self, updates: int) -> Due:
        # A snapshot makes the runner pause, so that a trace begins and ends between updates.
        return Due(min(n for n in self._evaluations + self._trace.updates if n > updates), snapshot=True)

    def _handle(self, report: Report) -> None:
        values = train_values(report, report.env_steps - self.progress.env_steps)
        self._account(report)
        row = Row("train", report.env_steps, report.updates, time.monotonic() - self._started, values)
        self._console.phase("training")
        self._console.report(row)
        self._logger.write(row)
        self._trace.end_at(report.updates)
        if report.snapshot is not None and report.updates in self._evaluations:
            if self._folder is not None:
                checkpoint.save_policy(self._folder, report.snapshot)
            if self._evaluate is not None:
                self._run_evaluation(report, is_final=report.updates == self._evaluations[-1])
        self._trace.begin_at(report.updates)

    def _account(self, report: Report) -> None:
        progress, seconds = self.progress, report.timings["train_seconds"]
        if progress.updates:  # the first chunk warms up: caches, transfers, chunk sizes
            progress.steady_seconds += seconds
            progress.steady_env_steps += report.env_steps - progress.env_steps
        progress.train_seconds += seconds
        progress.compile_seconds += report.timings.get("compile_seconds", 0.0)
        progress.policy_lag_sum += report.metrics.get("policy_lag_mean", 0.0) * (report.updates - progress.updates)
        progress.policy_lag_max = max(progress.policy_lag_max, report.metrics.get("policy_lag_max", 0.0))
        progress.episodes = merge_episodes(progress.episodes, report.episodes)
        progress.updates, progress.env_steps = report.updates, report.env_steps

    def _run_evaluation(self, report: Report, is_final: bool) -> None:
        self._console.phase("evaluating")
        started = time.monotonic()

        def evaluate(workers: Workers) -> EvaluationResult:
            return self._evaluate(report.snapshot, lambda: workers.stopping)

        values = evaluation_values(call_in_worker("evaluator", evaluate))
        values["evaluation_seconds"] = time.monotonic() - started
        mean = values["episode_return"]
        best = self.progress.best_return
        self.progress.best_return = mean if best is None else max(best, mean)
        if is_final:
            self.progress.final_return = mean
        row = Row("evaluation", report.env_steps, report.updates, time.monotonic() - self._started, values)
        self._console.evaluation(row)
        self._logger.write(row)


class _Trace:
    """A trace of `PROFILED_UPDATES`, or of the last updates of a run that has fewer."""

    def __init__(self, folder: Path | None, total_updates: int):
        """Args: folder: where it is written to; None writes none."""
        self._folder = folder
        self._is_running = False
        self.updates: list[int] = []  # after which it begins and ends
        # There is no moment between updates before the first, so a run of one has no trace.
        if folder is not None and total_updates > 1:
            first, last = PROFILED_UPDATES
            self.updates = [min(first, total_updates - 1), min(last, total_updates)]

    def begin_at(self, updates: int) -> None:
        if updates in self.updates[:1]:
            jax.profiler.start_trace(self._folder)
            self._is_running = True

    def end_at(self, updates: int) -> None:
        if updates in self.updates[1:]:
            self.close()

    def close(self) -> None:
        if self._is_running:
            self._is_running = False
            jax.profiler.stop_trace()


def evaluation_updates(updates: int, config: EvaluationConfig) -> list[int]:
    """The numbers of updates after which to evaluate: evenly spread, the last one at the end of the budget."""
    periods = min(config.num_evaluations if config.num_episodes else 0, updates)
    return sorted({-(-updates * k // periods) for k in range(1, periods + 1)} | {updates})


def evaluation_values(result: EvaluationResult) -> dict[str, float]:
    """Names the figures of an evaluation."""
    return {
        "episode_return": float(np.mean(result.returns)),
        "episode_return_std": float(np.std(result.returns)),
        "episode_return_min": float(np.min(result.returns)),
        "episode_return_max": float(np.max(result.returns)),
        "episode_length": float(np.mean(result.lengths)),
        "episodes": len(result.returns),
        "unfinished_episodes": result.unfinished,
    }
