"""`hydra/launcher=ray`: the runs of a sweep as tasks of Ray, on this machine or on a cluster."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

_SETTINGS = {"address": None, "num_cpus": 1, "num_gpus": 0, "resources": {}}
_NODE = {"_target_": f"{__name__}.RayLauncher", **_SETTINGS}
ConfigStore.instance().store(group="hydra/launcher", name="ray", node=_NODE, provider="podracer")


class RayLauncher(Launcher):
    """Each run is a task, in a process of its own, with as many cores and GPUs as it asks for."""

    def __init__(self, address: str | None, num_cpus: float, num_gpus: float, resources: Mapping[str, float]):
        """Starts Ray on this machine later, unless there is an address of a cluster; for the rest see `ray.remote`."""
        self._address = address
        self._wanted = {"num_cpus": num_cpus, "num_gpus": num_gpus, "resources": dict(resources)}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._context, self._task, self._config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from podracer import jobs
        from podracer.conversion import ConfigError

        try:
            import ray
        except ImportError as error:
            raise ConfigError('hydra/launcher=ray needs Ray: pip install "podracer[ray]"') from error
        folder = Path(self._config.hydra.sweep.dir).absolute()
        with open_dict(self._config):  # a task may have another working directory
            self._config.hydra.sweep.dir = str(folder)
        if not ray.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            ray.init(self._address, **({} if self._address else {"include_dashboard": False}))
        inherited = {name: value for name, value in os.environ.items() if name.startswith("PODRACER_")}
        # What a process holds, on accelerators above all, ends with its run.
        remote = ray.remote(max_calls=1, max_retries=0, **self._wanted)(_run)
        common = ray.put((inherited, self._wanted, Singleton.get_state(), self._context, self._config, self._task))
        tasks = [remote.remote(common, overrides, n) for n, overrides in enumerate(job_overrides, initial_job_idx)]
        returns = []
        for task, overrides in zip(tasks, job_overrides):
            try:
                returns.append(ray.get(task))
            except ray.exceptions.RayError as error:  # its process died
                jobs.fail(overrides, folder, error)
                returns.append(JobReturn(overrides=overrides, status=JobStatus.FAILED, _return_value=error))
        return returns


def _run(common: tuple[dict[str, str], dict[str, Any], Any, Any, Any, Any], *job: Any) -> JobReturn:
    from podracer import sharing
    from podracer.sweeps import run_numbered

    inherited, wanted, singletons, *sweep = common
    os.environ |= inherited
    locks = Path(tempfile.gettempdir(), f"podracer-places-{os.getuid()}")
    locks.mkdir(exist_ok=True)
    processes = len(os.sched_getaffinity(0)) // max(1, wanted["num_cpus"])
    sharing.take_share(locks, max(1, int(processes)), with_gpus=False)  # Ray has chosen them
    sharing.divide_gpu_memory(1 / (wanted["num_gpus"] or 1))
    Singleton.set_state(singletons)
    setup_globals()
    return run_numbered(*sweep, *job)
