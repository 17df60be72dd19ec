"""A sweep as one program: jobs that Hydra has composed are grouped by the program that they share, and each
group is trained together."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

from hydra.core.utils import JobReturn, JobStatus, setup_globals
from hydra.types import HydraContext
from omegaconf import DictConfig

from podracer import jobs
from podracer.checkpoint import latest
from podracer.conversion import ConfigError
from podracer.jobs import Job
from podracer.sweeps import run_numbered
from podracer.training import Batching, Member, is_vectorisable, program_key


def launch(
    context: HydraContext,
    config: DictConfig,
    job_overrides: Sequence[tuple[int, Sequence[str]]],
    max_together: int | None,
    batching: str,
) -> Sequence[JobReturn]:
    """Does the jobs of a sweep for Hydra.

    Args:
      context: of Hydra.
      config: the sweep's.
      job_overrides: the number of each job, and its overrides.
      max_together: runs in one program at most; None is all.
      batching: see `podracer.train_together`.

    Returns:
      What Hydra is told of each job, in their order.
    """
    if max_together is not None and max_together < 1:
        raise ConfigError(f"hydra.launcher.max_together={max_together} is too small; use at least 1, or null")
    if batching not in get_args(Batching):
        raise ConfigError(f"hydra.launcher.batching={batching} is none of {', '.join(get_args(Batching))}")
    setup_globals()
    returns = [_composed(context, config, number, overrides) for number, overrides in job_overrides]
    ready = [index for index, done in enumerate(returns) if done.status == JobStatus.COMPLETED]
    prepared: dict[int, Job] = {index: returns[index].return_value for index in ready}
    for indices in _groups(prepared, max_together):
        group = [prepared[index] for index in indices]
        for index, outcome in zip(indices, _do(group, batching, fail_fast=config.fail_fast)):
            returns[index].return_value = outcome
            if isinstance(outcome, Exception):
                returns[index].status = JobStatus.FAILED
    return returns


def _group_key(job: Job) -> str:
    """Says which jobs are trained together: those with the same."""
    if not _is_vectorisable(job):
        return f"alone {job.folder}"
    return program_key(job.config, latest(job.folder) if job.todo == "resume" else None)


def _is_vectorisable(job: Job) -> bool:
    return job.todo != "completed" and is_vectorisable(job.config)


def _composed(context: HydraContext, config: DictConfig, number: int, overrides: Sequence[str]) -> JobReturn:
    """Composes a job as Hydra's own launcher does; the return value is a `Job`, or what went wrong."""
    done = run_numbered(context, config, jobs.prepare, overrides, number)
    if done.status == JobStatus.FAILED:
        folder = Path(done.hydra_cfg.hydra.runtime.output_dir)
        jobs.fail(list(done.overrides), folder, done._return_value)
        jobs.remove_if_empty(folder)
    return done


def _groups(prepared: dict[int, Job], max_together: int | None) -> Iterator[list[int]]:
    """Groups jobs by their program, in the order of their first."""
    groups: dict[str, list[int]] = {}
    for index, job in prepared.items():
        groups.setdefault(_group_key(job), []).append(index)
    for indices in groups.values():
        size = max_together or len(indices)
        yield from (indices[start : start + size] for start in range(0, len(indices), size))


def _do(group: Sequence[Job], batching: Batching, *, fail_fast: bool) -> Sequence[float | Exception | None]:
    """Does the jobs of a group, and tells of each its final return, or its error."""
    if fail_fast:
        group_skipped = [jobs.skips(job.overrides, job.folder) for job in group]
        if any(group_skipped):
            return [None] * len(group)
    if not _is_vectorisable(group[0]):
        return [_do_alone(group[0])]
    from podracer.api import train_together

    outcomes: dict[int, Exception] = {}

    def failed(index: int, error: Exception) -> None:
        outcomes[index] = error
        jobs.fail(group[index].overrides, group[index].folder, error)

    members = [Member(job.config, job.folder, job.command, job.todo == "resume", job.watch) for job in group]
    plural = "" if len(group) == 1 else "s"
    print(
        f"training {len(group)} run{plural} together:",
        *(f"  {' '.join(job.overrides)}" for job in group),
        sep="\n",
    )
    results: Sequence[dict] = []
    try:
        results = train_together(members, failed, batching)
    except Exception as error:  # of the program, and so of all
        for index in range(len(group)):
            if index not in outcomes:
                failed(index, error)
    for job, result in zip(group, results):
        if result.get("status") == "completed":
            print(f"{' '.join(job.overrides)}: final return {result['final_return']}, {job.folder}", flush=True)
    return [outcomes.get(index) or jobs.objective(job, results[index]) for index, job in enumerate(group)]


def _do_alone(job: Job) -> float | Exception | None:
    print(f"training by itself: {' '.join(job.overrides)}", flush=True)
    try:
        return jobs.finish(job)
    except Exception as error:
        jobs.fail(job.overrides, job.folder, error)
        return error
    finally:
        jobs.remove_if_empty(job.folder)
