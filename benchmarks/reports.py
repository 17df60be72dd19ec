"""Wall-clock seconds of `podracer plot` and `podracer compare` on many runs of many rows, as processes of their own.

python benchmarks/reports.py
python benchmarks/reports.py --runs 20 --rows 100 --keep /tmp/runs
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from podracer.config import load_config, save_config
from podracer.logging import write_json
from podracer.provenance import provenance

RESULTS = Path(__file__).parent / "results"
# The most that is allowed, by the defaults below.
LIMITS = {"plot": 10.0, "compare": 20.0}
_AGENTS, _RUNNERS, _ENVS = ("ppo", "impala"), ("anakin", "sebulba"), ("gymnax/cartpole", "catch")
_STEPS_PER_ROW = 1000
_EVALUATED_EVERY = 10  # rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--rows", type=int, default=1000, help="of each run (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="for the runs and the report")
    options = parser.parse_args()
    with _folder(options.keep) as folder:
        for index in range(options.runs):
            write_run(folder / "runs" / f"{index:03d}", index, options.rows)
        record = _measure(folder, options.repeats)
    table = Table("command", "seconds, median (least to greatest)", "limit")
    for command, seconds in record["seconds"].items():
        shown = f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"
        table.add_row(command, shown, f"{LIMITS[command]:.0f}")
    Console().print(table)
    if (options.runs, options.rows) == (parser.get_default("runs"), parser.get_default("rows")):
        write_json(RESULTS / "reports.json", {"runs": options.runs, "rows": options.rows, **record})


def write_run(folder: Path, index: int, rows: int) -> None:
    """Writes what a run leaves: its settings, rows of training and evaluation, its result. The numbers are made up.

    Args:
      folder: of the run, made.
      index: of the run: its agent, runner, environment and seed follow.
      rows: of its metrics, a tenth of them evaluations.
    """
    rng = np.random.default_rng(index)
    kinds = [(agent, runner, env) for env in _ENVS for runner in _RUNNERS for agent in _AGENTS]
    (agent, runner, env), seed = kinds[index % len(kinds)], index // len(kinds)
    folder.mkdir(parents=True)
    config = load_config([f"experiment={agent}", f"runner={runner}", f"env={env}", f"seed={seed}"])
    save_config(config, folder / "config.yaml")
    made = [_row(number, rows, runner, rng) for number in range(1, rows + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")
    result = {"status": "completed", "env_steps": made[-1]["env_steps"], "final_return": made[-1]["episode_return"]}
    write_json(folder / "result.json", result)


def _row(number: int, rows: int, runner: str, rng: np.random.Generator) -> dict[str, Any]:
    env_steps = number * _STEPS_PER_ROW
    rising = 500 * (1 - np.exp(-5 * number / rows))
    row = {"env_steps": env_steps, "updates": env_steps // 10, "wall_seconds": number * 1.1}
    returns = {"episode_return": float(rising + rng.normal(0, 20)), "episode_length": float(rising), "episodes": 128}
    if number % _EVALUATED_EVERY == 0 or number == rows:
        return {"kind": "evaluation", **row, **returns}
    names = ["entropy", "gradient_norm", "learning_rate", "policy_loss", "value_loss", "steps_per_second"]
    times = {"train_seconds": 1.0}
    if runner == "sebulba":
        names += ["policy_lag_mean", "policy_lag_max"]
        times |= {"actor_wait_seconds": 0.1, "act_seconds": 0.5, "env_seconds": 0.4}
        times |= {"learner_wait_seconds": 0.7, "learn_seconds": 0.3}
    return {"kind": "train", **row, **{name: float(rng.uniform()) for name in names}, **times, **returns}


def _measure(folder: Path, repeats: int) -> dict[str, Any]:
    """Times both commands in turns, as other load on the machine comes and goes."""
    commands = {
        "plot": ["plot", str(folder / "runs"), "--out", str(folder / "plot.png")],
        "compare": ["compare", str(folder / "runs"), "--threshold", "450", "--out", str(folder / "report")],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    loads = [os.getloadavg()[0]]
    for _ in range(repeats):
        for name, command in commands.items():
            began = time.perf_counter()
            subprocess.run([sys.executable, "-m", "podracer.cli", *command], check=True, stdout=subprocess.DEVNULL)
            seconds[name].append(time.perf_counter() - began)
            loads.append(os.getloadavg()[0])
    of_whom = {name: value for name, value in provenance().items() if name not in ("folder", "host")}
    return {**of_whom, "load_average": {"least": min(loads), "greatest": max(loads)}, "seconds": seconds}


@contextlib.contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        yield kept
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)


if __name__ == "__main__":
    main()
