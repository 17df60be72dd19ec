"""The run loop, outside of the runners and once for both: log, evaluate, stop, keep the result."""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from podracer.advice import advise
from podracer.checkpoint import CheckpointConfig, Saved
from podracer.faults import FaultsConfig, NonFiniteError
from podracer.interrupts import Interrupts
from podracer.logging import Logger, Row, train_values
from podracer.parallel.mesh import Plan
from podracer.replay.recorder import Recorder
from podracer.runner import Due, Episodes, Report, Runner, merge_episodes, no_episodes
from podracer.runners.evaluator import Evaluate, EvaluationConfig, EvaluationResult
from podracer.runners.workers import Stopped, Workers, call_in_worker
from podracer.saving import Saving
from podracer.types import PolicySnapshot

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
    wall_seconds: float = 0.0  # up to the last report
    seconds: dict[str, float] = field(default_factory=dict)  # by activity, as rows name them

    def to_plain(self) -> dict[str, Any]:
        return {**vars(self), "episodes": list(self.episodes)}

    @staticmethod
    def from_plain(values: Mapping[str, Any]) -> "Progress":
        return Progress(**{**values, "episodes": Episodes(*values["episodes"])})


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
        checkpoint: CheckpointConfig | None = None,
        faults: FaultsConfig | None = None,
        saved: Saved | None = None,
        recorder: Recorder | None = None,
        saved_policy: Callable[[], PolicySnapshot] | None = None,
    ):
        """Starts nothing yet.

        Args:
          runner: what trains.
          plan: of the run.
          evaluate: None where nothing is evaluated.
          evaluation: when.
          logger: where rows go.
          console: what the terminal shows.
          folder: of the run; None keeps nothing on disk.
          profile: whether a trace is written.
          checkpoint: when to save the run; None is the default.
          faults: what is done about updates that are not finite; None is the default.
          saved: a checkpoint to go on from; None begins.
          recorder: what the runner's store records with; None where nothing is recorded.
          saved_policy: reads what the checkpoint acts with.
        """
        self._runner = runner
        self._plan = plan
        self._evaluate = evaluate
        self._evaluations = evaluation_updates(plan.updates, evaluation)
        self._trace = _Trace(folder / "profile" if profile and folder is not None else None, plan.updates)
        self._logger = logger
        self._console = console
        self._saved = saved
        self._saving = Saving(plan, checkpoint or CheckpointConfig(), folder, saved)
        self._faults = faults or FaultsConfig()
        self._recorder = recorder
        self._saved_policy = saved_policy
        self._interrupts = Interrupts()
        self.progress = Progress() if saved is None else Progress.from_plain(saved.meta["progress"])
        if self.progress.updates < plan.updates:
            self.progress.final_return = None  # of a run whose budget has grown, it is yet to come
        self._started = time.monotonic() - self.progress.wall_seconds

    def run(self) -> None:
        """Trains to the end of the budget.

        Raises:
          KeyboardInterrupt: a signal came. The update in hand was finished and saved if it ended in time.
        """
        self._console.phase("compiling")
        recorder = self._recorder or contextlib.nullcontext()
        with self._interrupts, contextlib.closing(self._saving), recorder:
            state = call_in_worker("init", lambda workers: self._start())
            self._make_up_evaluation()
            with contextlib.closing(self._trace), contextlib.closing(self._runner.run(state, self._due)) as reports:
                del state  # it is donated
                for report in reports:
                    self._interrupts.has_work = True
                    self._handle(report)
                    if self._interrupts.requested and report.snapshot is not None:
                        raise KeyboardInterrupt

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
            "wall_seconds": self._wall_seconds(),
            "advice": advice.text if (advice := advise(self._plan, progress.seconds)) else None,
        }

    def _start(self) -> Any:
        saved, self._saved = self._saved, None  # a replay may be large
        return self._runner.init() if saved is None else self._runner.restore(saved.state)

    def _wall_seconds(self) -> float:
        return time.monotonic() - self._started

    def _due(self, updates: int) -> Due:
        if self._interrupts.requested or self._saving.is_overdue():
            return Due(updates + 1, snapshot=True, state=self._saving.keeps_state)
        # A snapshot makes the runner pause, so that a trace begins and ends between updates.
        saves = [*self._evaluations, *self._saving.next_after(updates)]
        end = min(n for n in saves + self._trace.updates if n > updates)
        return Due(end, snapshot=True, state=end in saves and self._saving.keeps_state)

    def _handle(self, report: Report) -> None:
        if self._recorder is not None:
            self._recorder.check()
        values = train_values(report, report.env_steps - self.progress.env_steps)
        first = self.progress.updates + 1
        self._account(report)
        row = Row("train", report.env_steps, report.updates, self.progress.wall_seconds, values)
        self._console.phase("training")
        self._console.report(row)
        self._logger.write(row)
        skipped = report.counters.get("skipped_updates", 0)
        if skipped and self._faults.nonfinite == "stop":
            raise NonFiniteError(
                f"{skipped} of the updates {first} to {report.updates} gave parameters that are NaN or infinite, and "
                "were not made; debug=true finds where the first NaN came from, and faults.nonfinite=skip goes on"
            )
        self._trace.end_at(report.updates)
        if report.snapshot is not None:
            self._evaluate_and_save(report)
        self._trace.begin_at(report.updates)

    def _evaluate_and_save(self, report: Report) -> None:
        is_evaluated, episode_return = report.updates in self._evaluations, None
        try:
            if is_evaluated and self._evaluate is not None:
                episode_return = self._run_evaluation(report.snapshot)
        finally:  # what was to be evaluated is kept, also if that fails
            self._interrupts.arrived()
            if self._recorder is not None and report.state is not None:
                self._recorder.flush()  # a run that goes on from here finds all that came before
            if is_evaluated or report.state is not None or self._interrupts.requested:
                self._saving.save(report, self.progress.to_plain(), episode_return)

    def _account(self, report: Report) -> None:
        progress, seconds = self.progress, report.timings["train_seconds"]
        if progress.updates:  # the first chunk warms up: caches, transfers, chunk sizes
            progress.steady_seconds += seconds
            progress.steady_env_steps += report.env_steps - progress.env_steps
        progress.train_seconds += seconds
        for name, value in report.timings.items():
            progress.seconds[name] = progress.seconds.get(name, 0.0) + value
        progress.compile_seconds += report.timings.get("compile_seconds", 0.0)
        progress.policy_lag_sum += report.metrics.get("policy_lag_mean", 0.0) * (report.updates - progress.updates)
        progress.policy_lag_max = max(progress.policy_lag_max, report.metrics.get("policy_lag_max", 0.0))
        progress.episodes = merge_episodes(progress.episodes, report.episodes)
        progress.updates, progress.env_steps = report.updates, report.env_steps
        progress.wall_seconds = self._wall_seconds()

    def _make_up_evaluation(self) -> None:
        """Evaluates what the run goes on with, if a signal had interrupted that."""
        if self._saved_policy is None or self._evaluate is None or self.progress.updates not in self._evaluations:
            return
        mean = self._saving.logged_return(self.progress.updates)
        if mean is None:
            mean = self._run_evaluation(self._saved_policy())
        else:
            self._note_return(mean)
        if mean is not None:
            self._saving.rate(self.progress.updates, mean)

    def _run_evaluation(self, policy: PolicySnapshot) -> float | None:
        """Returns the mean return; None if the run was asked to stop meanwhile."""
        self._console.phase("evaluating")
        started = time.monotonic()

        def evaluate(workers: Workers) -> EvaluationResult:
            result = self._evaluate(policy, lambda: workers.stopping or self._interrupts.requested)
            if self._interrupts.requested:
                raise Stopped  # it may be of fewer episodes
            return result

        try:
            values = evaluation_values(call_in_worker("evaluator", evaluate))
        except Stopped:
            return None
        values["evaluation_seconds"] = time.monotonic() - started
        self._note_return(values["episode_return"])
        row = Row("evaluation", self.progress.env_steps, self.progress.updates, self._wall_seconds(), values)
        self._console.evaluation(row)
        self._logger.write(row)
        return values["episode_return"]

    def _note_return(self, mean: float) -> None:
        progress = self.progress
        if not np.isnan(mean) and (progress.best_return is None or mean > progress.best_return):
            progress.best_return = mean
        if progress.updates == self._evaluations[-1]:
            progress.final_return = mean


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
