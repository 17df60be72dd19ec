"""What sweepers and launchers share: the start of a sweep, before there are processes that inherit what it settles,
and how one of its jobs is run."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, run_job
from hydra.experimental.callback import Callback
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from podracer import jobs, sharing


class SweepStart(Callback):
    """Hydra's callback; configs/config.yaml names it."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        del kwargs
        jobs.keep_records_in(Path(config.hydra.sweep.dir))
        processes = processes_of(config)
        if processes is not None:
            os.environ[sharing.PROCESSES] = str(processes)


def run_numbered(
    context: HydraContext, config: DictConfig, task: TaskFunction, overrides: Sequence[str], number: int
) -> JobReturn:
    """Composes a job of a sweep and runs it, as Hydra's own launcher does."""
    sweep = context.config_loader.load_sweep_config(config, list(overrides))
    with open_dict(sweep):
        sweep.hydra.job.id = sweep.hydra.job.num = number
    return run_job(
        hydra_context=context,
        task_function=task,
        config=sweep,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )


def processes_of(config: DictConfig) -> int | None:
    """Says how many processes of a launcher train on this machine at a time.

    Args:
      config: the sweep's, as Hydra composes it.

    Returns:
      None where a launcher shares out the machine itself, or starts no process.
    """
    if config.hydra.runtime.choices.get("hydra/launcher") != "joblib":
        return None
    from joblib import effective_n_jobs

    return max(1, min(effective_n_jobs(config.hydra.launcher.n_jobs), _largest_batch(config)))


def _largest_batch(config: DictConfig) -> int:
    """How many runs a sweeper hands to its launcher at a time."""
    sweeper = config.hydra.sweeper
    if "batch_size" in sweeper:
        return sweeper.batch_size
    varied = [f"{key}={value}" for key, value in (sweeper.params or {}).items()]
    overrides = OverridesParser.create().parse_overrides([*varied, *config.hydra.overrides.task])
    return len(BasicSweeper.split_arguments(overrides, sweeper.get("max_batch_size"))[0])
