"""MLflow."""

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import mlflow
from mlflow.entities import Metric, Param

from podracer.conversion import flattened
from podracer.loggers.tracked import Told, parameters, run_name
from podracer.logging import LoggerConfig, Row, stamped_numbers

_STATUSES = {"completed": "FINISHED", "interrupted": "KILLED", "pruned": "KILLED"}
_PARAMETERS_PER_CALL = 100  # a limit of MLflow's, as is the next
_PARAMETER_LENGTH = 6000

# A run waits for the server; MLflow itself would for minutes before it gives up. What the user has set is left.
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}


class MLflow:
    """One MLflow run, metrics `train/...` and `evaluation/...` with `env_steps` as their step.

    It uses MLflow's client and leaves its global active run alone. The identity of the run is kept in `mlflow.json`.
    """

    def __init__(self, config: LoggerConfig, folder: Path, resume_env_steps: int | None = None):
        """Starts an MLflow run, or goes on with the one of this folder from `resume_env_steps`."""
        uri = config.mlflow_uri or (folder.resolve() / "mlruns").as_uri()
        if urlparse(uri).scheme in ("", "file"):
            # MLflow refuses its own file store otherwise, in favour of a database.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        for variable, value in _PATIENCE.items():
            os.environ.setdefault(variable, value)
        self._client = mlflow.MlflowClient(uri)
        self._told = Told(folder / "mlflow.json", resume=resume_env_steps is not None)
        if self._told.run_id is None:
            self._told.begin(self._create(config.mlflow_experiment, run_name(folder)))
        else:
            self._client.update_run(self._told.run_id, status="RUNNING")
        self._log_parameters(parameters(folder))
        if resume_env_steps is not None:
            self._client.set_tag(self._told.run_id, "resumed_at_env_steps", resume_env_steps)

    def write(self, row: Row) -> None:
        if self._told.has(row):
            return
        milliseconds = int(time.time() * 1000)
        metrics = [
            Metric(_name(f"{row.kind}/{key}"), value, milliseconds, int(row.env_steps))
            for key, value in stamped_numbers(row).items()
        ]
        self._client.log_batch(self._told.run_id, metrics=metrics)
        self._told.add(row)

    def close(self, status: str) -> None:
        self._client.set_terminated(self._told.run_id, _STATUSES.get(status, "FAILED"))

    def _create(self, experiment: str, name: str) -> str:
        found = self._client.get_experiment_by_name(experiment)
        identity = self._client.create_experiment(experiment) if found is None else found.experiment_id
        return self._client.create_run(identity, run_name=name).info.run_id

    def _log_parameters(self, tree: Mapping[str, Any]) -> None:
        """Logs the configuration. MLflow keeps a parameter for ever, so one that was changed since is a tag."""
        known = self._client.get_run(self._told.run_id).data.params
        current = {_name(key): str(value)[:_PARAMETER_LENGTH] for key, value in flattened(tree)}
        new = [Param(key, value) for key, value in current.items() if key not in known]
        for start in range(0, len(new), _PARAMETERS_PER_CALL):
            self._client.log_batch(self._told.run_id, params=new[start : start + _PARAMETERS_PER_CALL])
        for key, value in current.items():
            if known.get(key, value) != value:
                self._client.set_tag(self._told.run_id, f"changed.{key}", value)


def _name(key: str) -> str:
    """A key in the characters that MLflow allows."""
    return re.sub(r"[^\w\-./: ]", "_", key, flags=re.ASCII)
