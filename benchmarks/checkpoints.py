"""What saving costs a run, and how soon a run that is resumed ends its next update.

    python benchmarks/checkpoints.py

*Saving*: seconds that training stands still for a checkpoint, beside the whole processor time of writing it, as a
share of the default period. *Replay*: the same for a store of 100,000 transitions, beside a bare copy of its arrays
to the host. *Resume*: from the start of a process to the end of its next update, as in `startup.py`.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.startup import until, whole
from podracer.build import build
from podracer.checkpoint import CheckpointConfig, Checkpoints
from podracer.config import load_config
from podracer.logging import write_json
from podracer.provenance import provenance
from podracer.runner import Due, Report
from podracer.types import ArrayTree

RESULTS = Path(__file__).parent / "results"
_PLAIN = ("evaluation.num_episodes=0", "logger=quiet")
_PPO = ("agent=ppo", "env=gymnax/cartpole", "env.num_envs=64", "agent.unroll_length=128", *_PLAIN)
_REPLAY = ("agent=dqn", "env=gymnax/breakout", "env.num_envs=8", "replay.capacity=100_000", *_PLAIN)
CASES = {
    "ppo-anakin": (*_PPO, "total_env_steps=8192"),
    "ppo-sebulba": (*_PPO, "total_env_steps=8192", "runner=sebulba", "runner.mode=lockstep"),
    "dqn-anakin-100k-transitions": (*_REPLAY, "total_env_steps=100_000"),
}
_IMPORTS = (sys.executable, "-c", "import jax, gymnax, orbax.checkpoint; jax.devices()")
_TRAIN = (sys.executable, "-m", "podracer.cli", "train")


def saving(overrides: Sequence[str], repeats: int) -> dict[str, Any]:
    """Saves a run's state some times; medians, in seconds."""
    run = build(load_config(list(overrides)))
    reports = run.runner.run(run.runner.init(), lambda done: Due(done + 1, snapshot=True, state=True))
    report = next(reports)
    copied = [_timed(lambda: _copy(report.state)) for _ in range(repeats)]
    saves = [_save(report) for _ in range(repeats + 1)][1:]  # the first imports Orbax
    megabytes = sum(leaf.nbytes for leaf in jax.tree.leaves(_copy(report.state))) / 1e6
    reports.close()
    period = CheckpointConfig().period_seconds
    columns = (copied, *zip(*saves, strict=True))
    names = ("bare_copy_seconds", "stopped_seconds", "written_seconds", "cpu_seconds")
    medians = {name: statistics.median(column) for name, column in zip(names, columns, strict=True)}
    share = max(medians["stopped_seconds"], medians["cpu_seconds"]) / period
    return {"overrides": list(overrides), "megabytes": megabytes, **medians, "share_of_default_period": share}


def _save(report: Report) -> tuple[float, float, float]:
    """Seconds until training may go on, until the checkpoint is complete, and of processor time."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder), CheckpointConfig())
        cpu = time.process_time()
        stopped = _timed(lambda: checkpoints.save(report.updates, report.snapshot, report.state, {}))
        rest = _timed(checkpoints.close)
        return stopped, stopped + rest, time.process_time() - cpu


def resuming(repeats: int) -> dict[str, Any]:
    """Runs one update, and then another in a new process; medians of seconds beyond the imports."""
    took: dict[str, list[Any]] = {"imports": [], "next_update": []}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder, "run")
            updates = (f"total_env_steps={8192 * count}" for count in (1, 2, 3))
            until((*_TRAIN, *_PPO, next(updates), f"hydra.run.dir={run}"), folder, lambda: False)
            # Twice, as the first has to compile what restores.
            until((*_TRAIN, f"resume={run}", next(updates)), folder, lambda: False)
            rows = _rows(run)
            took["imports"].append(whole(_IMPORTS, folder))
            again = (*_TRAIN, f"resume={run}", next(updates))
            took["next_update"].append(until(again, folder, lambda run=run, rows=rows: _rows(run) > rows)[0])
    median = {name: [statistics.median(column) for column in zip(*all_, strict=True)] for name, all_ in took.items()}
    wall, cpu = (ours - theirs for ours, theirs in zip(median["next_update"], median["imports"], strict=True))
    seconds = {name: [one._asdict() for one in all_] for name, all_ in took.items()}
    return {"beyond_imports_seconds": {"wall": wall, "cpu": cpu}, "seconds": seconds}


def _copy(tree: ArrayTree) -> ArrayTree:
    """On a CPU a mere `device_get` copies nothing."""
    is_key = lambda leaf: hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)  # noqa: E731
    return jax.tree.map(lambda leaf: np.array(jax.random.key_data(leaf) if is_key(leaf) else leaf), tree)


def _timed(function: Callable[[], Any]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def _rows(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "checkpoints.json")
    options = parser.parse_args(arguments)
    results = {name: saving(overrides, options.repeats) for name, overrides in CASES.items()}
    resumed = resuming(options.repeats)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    record = {**provenance(), "load_average": os.getloadavg(), "saving": results, "resuming": resumed}
    write_json(options.out, record)
    columns = ("megabytes", "bare_copy_seconds", "stopped_seconds", "written_seconds", "cpu_seconds")
    table = Table("state", *(name.replace("_", " ") for name in columns), "share of the default period")
    for name, result in results.items():
        share = f"{result['share_of_default_period']:.3%}"
        table.add_row(name, *(f"{result[column]:.3f}" for column in columns), share)
    Console().print(table)
    print("resumed, beyond imports, to the end of the next update:", resumed["beyond_imports_seconds"])


if __name__ == "__main__":
    main()
