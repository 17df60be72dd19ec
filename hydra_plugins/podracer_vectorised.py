"""`hydra/launcher=vectorised`: the runs of a sweep as one program. Hydra looks for launchers in this package."""

from collections.abc import Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

ConfigStore.instance().store(
    group="hydra/launcher",
    name="vectorised",
    node={"_target_": f"{__name__}.VectorisedLauncher", "max_together": None, "batching": "auto"},
    provider="podracer",
)


class VectorisedLauncher(Launcher):
    """Trains together what differs in seed and traceable hyper-parameters alone; see `podracer.vectorised`."""

    def __init__(self, max_together: int | None = None, batching: str = "auto"):
        """See `podracer.train_together`.

        Args:
          max_together: runs in one program at most, for want of memory; None is all.
          batching: auto, vmap or loop.
        """
        self._max_together, self._batching = max_together, batching

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        del task_function  # it trains one run
        self._context, self._config = hydra_context, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from podracer.vectorised import launch

        jobs: Any = enumerate(job_overrides, initial_job_idx)
        return launch(self._context, self._config, list(jobs), self._max_together, self._batching)
