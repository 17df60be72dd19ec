"""How long the command takes to answer, and to end its first update, with a cold compile cache and a warm one.

    python benchmarks/startup.py

Seconds are given twice: by the clock, and of processor time, which is the steadier figure on a shared machine.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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


class Took(NamedTuple):
    """Seconds since a process was started."""

    wall: float
    cpu: float  # of all its threads


def measure(repeats: int) -> dict[str, Any]:
    """Starts the processes, in turns, and takes medians of their seconds."""
    seconds: dict[str, list[Took]] = {}

    def note(name: str, took: Took) -> None:
        seconds.setdefault(name, []).append(took)

    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            note("help", whole(_HELP, folder))
            note("imports", whole(_IMPORTS, folder))
            for cache in ("cold", "warm"):
                run = f"{folder}/{cache}"
                first, end = until((*_TRAIN, f"hydra.run.dir={run}"), folder, lambda run=run: has_row(run))
                note(f"{cache}_first_update", first)
                note(f"{cache}_end", end)
    median = {name: Took(*map(statistics.median, zip(*took, strict=True))) for name, took in seconds.items()}
    for name in [name for name in median if name not in ("help", "imports")]:
        beyond = (ours - theirs for ours, theirs in zip(median[name], median["imports"], strict=True))
        median[f"{name}_beyond_imports"] = Took(*beyond)
    return {
        "command": " ".join(_TRAIN[1:]),
        "median_seconds": {name: took._asdict() for name, took in median.items()},
        "seconds": {name: [took._asdict() for took in all_] for name, all_ in seconds.items()},
    }


def whole(command: Sequence[str], folder: str) -> Took:
    """From the start of a process to its end."""
    return until(command, folder, lambda: False)[1]


def until(command: Sequence[str], folder: str, reached: Callable[[], bool]) -> tuple[Took | None, Took]:
    """From the start of a process to an event, if it comes, and to the end.

    Args:
      command: of the process, which has to succeed.
      folder: for its compile cache.
      reached: asked every few milliseconds whether the event has come.
    """
    environ = {**os.environ, "JAX_COMPILATION_CACHE_DIR": f"{folder}/jax"}
    before, started = _cpu_of_children(), time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environ)
    event = None
    while process.poll() is None:
        if event is None and reached():
            event = Took(time.perf_counter() - started, _cpu_of(process.pid))
        time.sleep(0.005)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return event, Took(time.perf_counter() - started, _cpu_of_children() - before)


def has_row(run: str) -> bool:
    """Whether a run has ended its first update: it writes a row of metrics then."""
    path = Path(run, "metrics.jsonl")
    return path.exists() and path.stat().st_size > 0


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _cpu_of(pid: int) -> float:
    """Processor time of a process that still runs."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS / "startup.json")
    options = parser.parse_args(arguments)
    result = measure(options.repeats)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(options.out, {**result, "load_average": os.getloadavg()})
    table = Table("what", "seconds", "of processor time", title="since the start of the process; medians")
    for name, took in result["median_seconds"].items():
        table.add_row(name.replace("_", " "), *(f"{value:.2f}" for value in took.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
