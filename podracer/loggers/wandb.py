"""Weights & Biases."""

import secrets
from pathlib import Path

import wandb

from podracer.loggers.tracked import Told, parameters, run_name
from podracer.logging import LoggerConfig, Row, stamped_numbers

_EXIT_CODES = {"completed": 0, "interrupted": 255, "pruned": 0}  # W&B shows 255 as killed and other codes as failed

# What is not uploaded by then stays in the run's folder, for `wandb sync`; an interrupted run has to end.
_FINISH_TIMEOUT_SECONDS = 10.0

# Its own setting for how long W&B keeps rows in memory is 15 s. Not every version has it.
_FLUSH_SETTING, _FLUSH_SECONDS = "x_transaction_log_flush_interval", 1.0

# After which a row is taken to have arrived on disk, or at the server.
_OFFLINE_ARRIVAL_SECONDS, _ONLINE_ARRIVAL_SECONDS = 2.0, 30.0


class Wandb:
    """One W&B run, keys `train/...` and `evaluation/...` over `env_steps`.

    W&B throws rows away whose step is below the one before, so its own step merely counts rows. The
    identity of the run is kept in `wandb.json`. Rows go to a process of W&B's own, which loses the
    latest if the run is killed. A resumed run tells those again with the step that they had, of which
    W&B keeps one.
    """

    def __init__(self, config: LoggerConfig, folder: Path, resume_env_steps: int | None = None):
        """Starts a W&B run, or goes on with the one of this folder from `resume_env_steps`."""
        is_resumed = resume_env_steps is not None
        self._told = Told(folder / "wandb.json", resume=is_resumed)
        self._run = wandb.init(
            dir=folder,
            id=self._told.run_id or secrets.token_hex(6),
            resume="allow" if self._told.run_id else None,
            name=run_name(folder),
            project=config.wandb_project,
            entity=config.wandb_entity,
            group=config.wandb_group,
            mode=None if config.wandb_mode == "auto" else config.wandb_mode,
            config=parameters(folder),
            allow_val_change=True,
            reinit="create_new",  # runs of one process do not meet
            settings=_settings(),
        )
        arrival_seconds = _OFFLINE_ARRIVAL_SECONDS if self._run.offline else _ONLINE_ARRIVAL_SECONDS
        self._told.begin(self._run.id, arrival_seconds)
        for kind in ("train", "evaluation"):
            self._run.define_metric(f"{kind}/*", step_metric="env_steps")
        if is_resumed:
            self._run.config.update({"resumed_at_env_steps": resume_env_steps}, allow_val_change=True)

    def write(self, row: Row) -> None:
        if self._told.has(row):
            return
        values = stamped_numbers(row)
        named = {key if key == "env_steps" else f"{row.kind}/{key}": value for key, value in values.items()}
        self._run.log(named, step=self._told.rows, commit=True)
        self._told.add(row)

    def close(self, status: str) -> None:
        self._run.summary["status"] = status
        self._run.finish(exit_code=_EXIT_CODES.get(status, 1))
        self._told.end()


def _settings() -> wandb.Settings:
    flush = {_FLUSH_SETTING: _FLUSH_SECONDS} if _FLUSH_SETTING in wandb.Settings.model_fields else {}
    return wandb.Settings(console="off", finish_timeout=_FINISH_TIMEOUT_SECONDS, **flush)
