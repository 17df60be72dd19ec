"""The command in a process of its own: launchers' processes inherit its environment, and some live as long as it."""

import os
import subprocess
import sys
from pathlib import Path

import jax

from tests.contract.tables import ENVS, SMALL

_ROOT = Path(__file__).resolve().parents[1]

# A run of a second.
SHORT = (*SMALL, *ENVS["catch"], "agent=ppo", "total_env_steps=480", "logger=quiet", "evaluation.num_episodes=4")


def environment(folder: Path) -> dict[str, str]:
    """That of the tests, with one compile cache, and a home that is thrown away."""
    return {
        **os.environ,
        "PYTHONPATH": f"{_ROOT}{os.pathsep}{folder}",
        "HOME": str(folder),
        "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,
    }


def start(folder: Path, *arguments: str) -> subprocess.Popen:
    """Starts the command in a folder, as a group of processes of its own."""
    command = [sys.executable, "-m", "podracer.cli", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=folder, env=environment(folder), stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


def finish(process: subprocess.Popen) -> subprocess.CompletedProcess:
    """Waits for the command."""
    out, err = process.communicate(timeout=240)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
