"""`hydra/sweeper=optuna`: a sweep that looks for the best hyper-parameters. Hydra finds sweepers in here."""

from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

_SETTINGS: dict[str, Any] = {
    "n_trials": 20,
    "batch_size": 1,
    "direction": "maximize",
    "sampler": "TPESampler",
    "sampler_kwargs": {},
    "pruner": None,
    "pruner_kwargs": {},
    "seed": None,
    "storage": None,
    "study_name": "podracer",
    "params": {},
}


def _node() -> DictConfig:
    node = OmegaConf.create({"_target_": f"{__name__}.OptunaSweeper", **_SETTINGS})
    for name in ("sampler_kwargs", "pruner_kwargs", "params"):
        # Hydra forbids new keys everywhere; in here they are Optuna's and the user's.
        node[name] = OmegaConf.create({}, flags={"struct": False})
    return node


ConfigStore.instance().store(group="hydra/sweeper", name="optuna", node=_node(), provider="podracer")


class OptunaSweeper(Sweeper):
    """Lets Optuna propose the runs of a sweep; see `podracer.study`."""

    def __init__(self, **settings: Any):
        """Starts nothing yet.

        Args:
          settings: fields of `podracer.study.Settings`, and `params`: overrides that the sweep has in any case.
        """
        self._params = settings.pop("params") or {}
        self._settings = {
            name: OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
            for name, value in settings.items()
        }

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            config=config, hydra_context=hydra_context, task_function=task_function
        )

    def sweep(self, arguments: list[str]) -> None:
        from podracer.study import Search, Settings, optimise

        overrides = [*(f"{key}={value}" for key, value in self._params.items()), *arguments]
        search = Search(self.launcher, self.validate_batch_is_legal, self.config)
        optimise(Settings(**self._settings), search, overrides)
