"""The jobs of `podracer train`: one run, or every run of a sweep, in this process or in those of a launcher.

A job that fails is told of at once by whoever runs it, and again at the end by the command.
"""

import contextlib
import dataclasses
import json
import math
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from podracer import sharing

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from podracer.config import Config
    from podracer.loop import Watch

FAILED, REFUSED = 1, 2

# The folder in which the processes of a command leave a file for each failed job; a launcher's processes inherit it.
# In the folder of a sweep, which other machines see, too, if they are to train there.
_RECORDS = "PODRACER_FAILED_JOBS"

# Errors that this process has told of: Hydra raises them again.
_reported: list[Exception] = []


class Failure(NamedTuple):
    """A job that failed, or one that was not started since another had failed."""

    overrides: list[str]
    folder: str
    error: str  # its type; empty of a job that was not started
    reason: str  # the first line of its message
    is_refusal: bool  # of a setting, before anything ran


class Job(NamedTuple):
    """What is to be done for one run."""

    config: "Config"
    folder: Path  # of the run
    overrides: list[str]
    todo: Literal["begin", "resume", "completed"]
    watch: "Watch | None" = None  # as of `podracer.train`

    @property
    def command(self) -> list[str]:
        """What does it again; a sweep's name says nothing more about one of its runs."""
        return ["podracer", "train", *(text for text in self.overrides if not text.startswith("sweep="))]


class Jobs:
    """The jobs of one command: `with Jobs() as jobs`, then `jobs.summarise`."""

    def __enter__(self) -> "Jobs":
        from podracer.composition import RUN_SUFFIX, run_suffix

        _reported.clear()
        self._folder = tempfile.mkdtemp(prefix="podracer-jobs-")
        self._outer = {name: os.environ.get(name) for name in (_RECORDS, RUN_SUFFIX, sharing.PROCESSES)}
        os.environ.pop(sharing.PROCESSES, None)
        os.environ |= {_RECORDS: self._folder, RUN_SUFFIX: run_suffix()}
        return self

    def __exit__(self, *error: object) -> None:
        records = Path(os.environ[_RECORDS])
        for folder in (records, self._folder):
            shutil.rmtree(folder, ignore_errors=True)
        remove_if_empty(records.parent)
        for name, value in self._outer.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def knows(self, error: Exception) -> bool:
        """Whether an error is that of a job, and so has been told of."""
        told = [(failure.error, failure.reason) for failure in _failures()]  # by other processes: no longer the same
        return any(reported is error for reported in _reported) or (type(error).__name__, _reason(error)) in told

    def summarise(self, *, is_sweep: bool) -> int:
        """Lists what failed in a sweep, and gives the exit status."""
        failures = [failure for failure in _failures() if failure.error]
        skipped = [failure for failure in _failures() if not failure.error]
        if is_sweep and failures:
            print(f"podracer: {len(failures)} runs of the sweep failed:", file=sys.stderr)
            for failure in failures:
                shown = " ".join(failure.overrides)
                print(f"  {shown}  ({failure.folder}): {failure.error}: {failure.reason}", file=sys.stderr)
        if skipped:
            print(f"podracer: {len(skipped)} runs were not started (fail_fast=true):", file=sys.stderr)
            print(*(f"  {' '.join(failure.overrides)}" for failure in skipped), sep="\n", file=sys.stderr)
        if not failures:
            return 0
        return REFUSED if all(failure.is_refusal for failure in failures) else FAILED


def keep_records_in(folder: Path) -> None:
    """Moves what processes tell each other to the folder of a sweep; a launcher's inherit that when they start."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ[_RECORDS] = tempfile.mkdtemp(prefix=".jobs-", dir=folder.absolute())


def run(composed: "DictConfig") -> float | None:
    """Trains once: what Hydra calls for every run of a sweep.

    Returns:
      The objective, for sweepers that optimise; None if a single run failed.
    """
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    context = HydraConfig.get()
    folder, overrides = Path(context.runtime.output_dir), list(context.overrides.task)
    is_sweep = context.mode == RunMode.MULTIRUN
    if sharing.PROCESSES in os.environ:
        sharing.take_share(Path(os.environ[_RECORDS]), int(os.environ[sharing.PROCESSES]))
    if is_sweep:
        print(f"run {context.job.num} of the sweep: {' '.join(overrides)}", flush=True)
    if is_sweep and composed.fail_fast and skips(overrides, folder):
        return None
    try:
        return finish(prepare(composed))
    except Exception as error:
        fail(overrides, folder, error)
        if is_sweep:
            raise  # a sweeper has to know
        return None
    finally:
        remove_if_empty(folder)  # Hydra has made it; a run that is refused or lies elsewhere has put nothing in it


def prepare(composed: "DictConfig") -> Job:
    """Finds out what is to be done for a job that Hydra has composed; moves what a run left that cannot go on.

    Raises:
      ConfigError: for settings that are refused.
    """
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from podracer.checkpoint import latest
    from podracer.composition import to_mapping
    from podracer.config import config_from_mapping
    from podracer.conversion import ConfigError
    from podracer.resume import changed_config, completed, set_aside
    from podracer.study import watcher

    context = HydraConfig.get()
    folder, overrides = Path(context.runtime.output_dir), list(context.overrides.task)
    config = config_from_mapping(to_mapping(composed))
    sweep = context.runtime.choices.get("sweep")
    if sweep is not None and context.mode == RunMode.RUN:
        raise ConfigError(f"sweep={sweep} is of many runs: podracer train -m sweep={sweep}")
    watch = watcher(context.job.num) if context.mode == RunMode.MULTIRUN else None
    if config.resume is None:
        return Job(config, folder, overrides, "begin", watch)
    if config.resume != "auto":
        folder = Path(config.resume)
        return Job(changed_config(folder, overrides), folder, overrides, "resume", watch)
    # A job that is started again by the same command: it is done, or goes on where it was, or begins.
    config = dataclasses.replace(config, resume=None)
    if completed(folder, config) is not None:
        return Job(config, folder, overrides, "completed")
    if latest(folder) is not None:
        return Job(config, folder, overrides, "resume", watch)
    set_aside(folder, config)
    return Job(config, folder, overrides, "begin", watch)


def finish(job: Job) -> float | None:
    """Does what is to be done for a job by itself, and returns its objective."""
    from podracer.api import resume, train
    from podracer.resume import completed

    watched = {} if job.watch is None else {"watch": job.watch}
    match job.todo:
        case "begin":
            return objective(job, train(job.config, job.folder, job.command, **watched))
        case "resume":
            return objective(job, resume(job.folder, job.config, job.command, **watched))
    print(f"{job.folder} is completed", flush=True)
    return objective(job, completed(job.folder, job.config))


def objective(job: Job, result: Mapping[str, Any]) -> float | None:
    """What a sweeper is told of a run that has ended: None where it was pruned, or made no evaluation."""
    from podracer.loggers.jsonl import read_rows

    if result["status"] != "completed":
        return None
    if job.config.objective != "mean_return":
        return result[job.config.objective]
    rows = [row for row in read_rows(job.folder / "metrics.jsonl") if row.kind == "evaluation"]
    returns = [row.values["episode_return"] for row in rows]
    if not returns or None in returns:
        return None if not returns else math.nan
    return sum(returns) / len(returns)


def fail(overrides: Sequence[str], folder: Path, error: Exception) -> None:
    """Keeps a failed job for the end of the command, and tells of it; of an error that several share, once."""
    from podracer.conversion import ConfigError

    failure = Failure(
        list(overrides), str(folder), type(error).__name__, _reason(error), isinstance(error, ConfigError)
    )
    _record(failure)
    if not any(known is error for known in _reported):
        _reported.append(error)
        report(error)


def skips(overrides: Sequence[str], folder: Path) -> bool:
    """Whether a job of a sweep with `fail_fast` is not to be started, as another has failed; notes it then."""
    if not has_failures():
        return False
    _record(Failure(list(overrides), str(folder), "", "", False))
    remove_if_empty(folder)
    return True


def has_failures() -> bool:
    """Whether a job of this command has failed."""
    return any(failure.error for failure in _failures())


def report(error: Exception) -> int:
    """Prints an error once, a refused setting as its message alone, and gives the exit status."""
    from podracer.conversion import ConfigError

    if isinstance(error, ConfigError):
        print(f"podracer: {error}", file=sys.stderr)
        return REFUSED
    traceback.print_exception(error)
    return FAILED


def remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _reason(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _record(failure: Failure) -> None:
    records = os.environ.get(_RECORDS)
    if records is None:
        return
    # On a machine of its own, a job finds no such folder; there Hydra alone tells the sweeper.
    with contextlib.suppress(OSError):
        number = len(os.listdir(records))
        path = Path(records) / f"{number:06d}-{os.getpid()}.json"
        path.write_text(json.dumps(failure._asdict()), encoding="utf-8")


def _failures() -> list[Failure]:
    """What the jobs of this command have left, in the order in which they ended."""
    records = os.environ.get(_RECORDS)
    paths = sorted(Path(records).glob("*.json")) if records else []
    return [Failure(**json.loads(path.read_text(encoding="utf-8"))) for path in paths]
