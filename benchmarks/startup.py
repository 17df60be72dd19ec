"""How long the command takes to answer, and to end its first update, with a cold compile cache and a warm one.

python benchmarks/startup.py
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from podracer.logging import write_json

RESULTS = Path(__file__).parent / "results"
_HELP = (sys.executable, "-m", "podracer.cli", "--help")
# Of these only the part beyond the imports is ours to shorten.
_IMPORTS = (sys.executable, "-c", "import jax, gymnax; jax.devices()")
_SLOTS = 64 * 128
_TRAIN = (
    *(sys.executable, "-m", "podracer.cli", "train", "env=gymnax/cartpole", "env.num_envs=64"),
    *("agent.unroll_length=128", f"total_env_steps={_SLOTS}", "evaluation.num_episodes=0", "logger=plain"),
)


def measure(repeats: int) -> dict[str, Any]:
    """Starts the processes, in turns, and takes medians of their seconds."""
    seconds: dict[str, list[float]] = {name: [] for name in ("help", "imports", "cold", "warm")}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            seconds["help"].append(_time(_HELP, folder))
            seconds["imports"].append(_time(_IMPORTS, folder))
            for cache in ("cold", "warm"):
                seconds[cache].append(_time((*_TRAIN, f"hydra.run.dir={folder}/{cache}"), folder))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    beyond = {f"{cache}_beyond_imports": medians[cache] - medians["imports"] for cache in ("cold", "warm")}
    return {"command": " ".join(_TRAIN[1:]), "median_seconds": {**medians, **beyond}, "seconds": seconds}


def _time(command: Sequence[str], folder: str) -> float:
    environ = {**os.environ, "JAX_COMPILATION_CACHE_DIR": f"{folder}/jax"}
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environ)
    return time.perf_counter() - started


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS / "startup.json")
    options = parser.parse_args(arguments)
    result = measure(options.repeats)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(options.out, {**result, "load_average": os.getloadavg()})
    table = Table("what", "seconds", title="from start to end of a process; training makes one update")
    for name, value in result["median_seconds"].items():
        table.add_row(name.replace("_", " "), f"{value:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
