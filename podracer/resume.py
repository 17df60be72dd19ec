"""Going on with a run: which of its settings may change, and what is written down about it."""

import datetime
import itertools
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from podracer.composition import check_overrides, compose, parse_overrides
from podracer.config import Config, config_from_mapping, config_to_mapping, read_config
from podracer.conversion import ConfigError, flattened
from podracer.logging import write_json, write_text

# Nothing that decides how a step is made. What the rest of the budget is, schedules see.
MAY_CHANGE = frozenset(
    {
        "total_env_steps",
        "debug",
        "profile",
        "fail_fast",
        "objective",
        "resume",
        "logger",
        "evaluation",
        "checkpoint",
        "faults",
        "mesh",
        "topology",
    }
)

# What a run writes into its folder; anything else in there is the user's.
_FILES_OF_A_RUN = ("config.yaml", "plan.json", "provenance.json", "result.json", "metrics*", "events.*", "checkpoints")
_FILES_OF_A_RUN += ("profile", "wandb", "mlruns", "mlflow*")


def changed_config(folder: Path, overrides: Sequence[str]) -> Config:
    """The configuration of a run with a few settings changed.

    Args:
      folder: of the run.
      overrides: as on the command line; `hydra....` and `resume` are passed over.

    Raises:
      ConfigError: a setting is not known or may not change, or the folder is not that of a run.
    """
    overrides = [text for text in overrides if not text.lstrip("+~").startswith(("hydra.", "hydra/", "resume="))]
    check_overrides(overrides)
    config = config_to_mapping(read_config(folder / "config.yaml"))
    for override in parse_overrides(overrides):
        key = override.key_or_group
        if "." not in key and isinstance(config.get(key), dict):
            config[key] = compose([override.input_line])[key]  # another option of a group
        else:
            _set(config, key.split("."), override.value())
    return checked(folder, config_from_mapping(config))


def checked(folder: Path, config: Config) -> Config:
    """Returns the configuration if the run in the folder can go on with it.

    Raises:
      ConfigError: listing the settings that would have to stay as they are.
    """
    changed = changes(read_config(folder / "config.yaml"), config)
    refused = {key: values for key, values in changed.items() if key.split(".")[0] not in MAY_CHANGE}
    if refused:
        lines = "\n".join(f"  {key}: {before!r} in the run, {now!r} now" for key, (before, now) in refused.items())
        raise ConfigError(
            f"the run in {folder} cannot go on with other settings than its own:\n{lines}\n"
            f"those that may change: {', '.join(sorted(MAY_CHANGE - {'resume'}))}"
        )
    return config


def completed(folder: Path, config: Config) -> dict[str, Any] | None:
    """The result of a run that has done what is asked for; None if there is something left to do.

    Raises:
      ConfigError: the run in the folder has other settings.
    """
    try:
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    done = read_config(folder / "config.yaml")
    is_done = result.get("status") == "completed" and done.total_env_steps >= checked(folder, config).total_env_steps
    return result if is_done else None


def set_aside(folder: Path, config: Config) -> None:
    """Moves what a run left that died before its first checkpoint into `died-N`, so that it can begin again.

    Raises:
      ConfigError: the run in the folder has other settings.
    """
    # Only of a folder that a run has claimed: another's is left to `record_run` to refuse.
    if not (folder / "config.yaml").is_file():
        return
    checked(folder, config)
    number = next(number for number in itertools.count(1) if not (folder / f"died-{number}").exists())
    left = [path for pattern in _FILES_OF_A_RUN for path in folder.glob(pattern)]
    (folder / f"died-{number}").mkdir()
    for path in left:
        path.rename(folder / f"died-{number}" / path.name)


def changes(before: Config, now: Config) -> dict[str, tuple[Any, Any]]:
    """The settings that differ, by their dotted keys."""
    first, second = (dict(flattened(config_to_mapping(config))) for config in (before, now))
    return {
        key: (first.get(key), second.get(key))
        for key in [*first, *(key for key in second if key not in first)]
        if first.get(key) != second.get(key) and key != "resume"
    }


def record(folder: Path, config: Config, command: Sequence[str], updates: int) -> None:
    """Writes down that a run goes on: its settings as they are now, and when, where and from which update."""
    changed = changes(read_config(folder / "config.yaml"), config)
    if changed:
        write_text(folder / "config.yaml", yaml.safe_dump(config_to_mapping(config), sort_keys=False))
    provenance = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
    provenance.setdefault("resumed", []).append(
        {
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "command": shlex.join(command),
            "updates": updates,
            "changed": {key: list(values) for key, values in changed.items()},
        }
    )
    write_json(folder / "provenance.json", provenance)


def _set(config: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        config = config.setdefault(name, {})
    config[path[-1]] = value
