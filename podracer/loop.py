"""The run loop, outside of the runners and once for both: log, evaluate, stop, keep the result."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from podracer.advice import advise
from podracer.checkpoint import CheckpointConfig, Saved
from podracer.driving import Pruned, Single, drive
from podracer.faults import FaultsConfig, NonFiniteError
from podracer.interrupts import Interrupts
from podracer.logging import Logger, Row, train_values
from podracer.parallel.mesh import Plan
from podracer.progress import Progress
from podracer.replay.recorder import Recorder
from podracer.runner import Due, Report, Runner, merge_episodes
from podracer.runners.evaluator import Evaluate, EvaluationConfig, EvaluationResult
from podracer.runners.workers import Stopped, Workers, call_in_worker
from podracer.saving import Saving
from podracer.tracing import Trace
from podracer.trees import Arrays
from podracer.types import PolicySnapshot

Watch = Callable[[int, float], bool]
"""Is told the number of an evaluation, from 1 on, and its mean return; says whether the run goes on."""


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
        interrupts: Interrupts | None = None,
        watch: Watch | None = None,
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
          interrupts: one for all runs that are trained together; None is one of its own.
          watch: None lets the run go on to its end.
        """
        self._runner = runner
        self._plan = plan
        self._evaluate = evaluate
        self._evaluations = evaluation_updates(plan.updates, evaluation)
        self._trace = Trace(folder / "profile" if profile and folder is not None else None, plan.updates)
        self._logger = logger
        self._console = console
        self._saved = saved
        self._saving = Saving(plan, checkpoint or CheckpointConfig(), folder, saved)
        self._faults = faults or FaultsConfig()
        self._recorder = recorder
        self._saved_policy = saved_policy
        self._watch = watch
        self._is_pruned = False
        self.interrupts = interrupts or Interrupts()
        self.progress = Progress() if saved is None else Progress.from_plain(saved.meta["progress"])
        if self.progress.updates < plan.updates:
            self.progress.final_return = None  # of a run whose budget has grown, it is yet to come
        self._started = time.monotonic() - self.progress.wall_seconds

    def run(self) -> None:
        """Trains to the end of the budget; see `drive`."""
        drive([self], Single(self._runner))

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Keeps open what a run writes to while it is trained."""
        self._console.phase("compiling")
        recorder = self._recorder or contextlib.nullcontext()
        with contextlib.closing(self._saving), recorder, contextlib.closing(self._trace):
            yield

    def take_saved(self) -> Arrays | None:
        """What the run goes on from, once, as a replay may be large; None where it begins."""
        saved, self._saved = self._saved, None
        return None if saved is None else saved.state

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

    def _wall_seconds(self) -> float:
        return time.monotonic() - self._started

    def due(self, updates: int) -> Due:
        """What falls due next after a number of updates."""
        if self.interrupts.requested or self._saving.is_overdue():
            return Due(updates + 1, snapshot=True, state=self._saving.keeps_state)
        # A snapshot makes the runner pause, so that a trace begins and ends between updates.
        saves = [*self._evaluations, *self._saving.next_after(updates)]
        end = min(n for n in saves + self._trace.updates if n > updates)
        return Due(end, snapshot=True, state=end in saves and self._saving.keeps_state)

    def handle(self, report: Report) -> None:
        """Logs a report, and evaluates and saves what it carries."""
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
            self._end_if_pruned()
        self._trace.begin_at(report.updates)

    def _evaluate_and_save(self, report: Report) -> None:
        is_evaluated, episode_return = report.updates in self._evaluations, None
        try:
            if is_evaluated and self._evaluate is not None:
                episode_return = self._run_evaluation(report.snapshot)
        finally:  # what was to be evaluated is kept, also if that fails
            self.interrupts.arrived()
            if self._recorder is not None and report.state is not None:
                self._recorder.flush()  # a run that goes on from here finds all that came before
            if is_evaluated or report.state is not None or self.interrupts.requested:
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

    def make_up_evaluation(self) -> None:
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
        self._end_if_pruned()

    def _run_evaluation(self, policy: PolicySnapshot) -> float | None:
        """Returns the mean return; None if the run was asked to stop meanwhile."""
        self._console.phase("evaluating")
        started = time.monotonic()

        def evaluate(workers: Workers) -> EvaluationResult:
            result = self._evaluate(policy, lambda: workers.stopping or self.interrupts.requested)
            if self.interrupts.requested:
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
        elif self._watch is not None:
            self._is_pruned = not self._watch(self._evaluations.index(progress.updates) + 1, mean)

    def _end_if_pruned(self) -> None:
        """Ends the run once it is saved.

        Raises:
          Pruned: after the evaluation at which `watch` had seen enough.
        """
        if self._is_pruned:
            raise Pruned


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
