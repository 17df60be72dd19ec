"""Where a run comes from: its configuration, versions, commit, devices and command, in its folder."""

import datetime
import os
import platform
import shlex
import socket
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from podracer.config import Config, save_config
from podracer.conversion import ConfigError
from podracer.logging import write_json

_PACKAGES = (
    "podracer", "jax", "jaxlib", "flax", "optax", "chex", "distrax", "numpy", "hydra-core", "omegaconf",
    "orbax-checkpoint", "gymnax", "envpool", "gymnasium", "ale-py",
)  # fmt: skip


def record_run(config: Config, folder: Path, command: Sequence[str]) -> None:
    """Claims a folder for a run: writes `config.yaml` and `provenance.json`. Starts the JAX backend.

    Args:
      config: of the run.
      folder: of the run; it is made if it is not there.
      command: what starts the same run again.

    Raises:
      ConfigError: the folder is not empty; so two runs never share one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # What `podracer.resume.set_aside` has moved away may stay.
    if any(not path.name.startswith("died-") for path in folder.iterdir()):
        raise ConfigError(f"{folder} is not empty: another run has it; choose another folder by hydra.run.dir=...")
    save_config(config, folder / "config.yaml")
    write_json(folder / "provenance.json", {"command": shlex.join(command), **provenance()})


def provenance() -> dict[str, Any]:
    """What is known of this process and the code in it; `commit` only in a checkout."""
    return {
        "folder": os.getcwd(),
        "host": socket.gethostname(),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "versions": _versions(),
        "devices": [f"{device.platform}:{device.id} {device.device_kind}" for device in jax.devices()],
        "processes": jax.process_count(),
        **_commit(Path(__file__).resolve().parents[1]),
    }


def _versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue  # an extra that is not installed
    return versions


def _commit(checkout: Path) -> dict[str, Any]:
    """The commit of the code that runs, and whether files differ from it; nothing where it is no checkout."""
    if not (checkout / ".git").exists():
        return {}

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(checkout), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "has_local_changes": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return {}  # git is not installed, or there is no commit yet
