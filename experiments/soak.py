"""Kills a run at random instants, resumes it each time, and compares its end with that of an undisturbed run.

    python experiments/soak.py                                  # 50 kills of Anakin and of Sebulba
    python experiments/soak.py --kills 3 --runners anakin

The end has to be the same: every row of metrics once, the result, and the parameters, bit for bit. Times differ.
"""

import argparse
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from podracer import checkpoint
from podracer.logging import write_json
from podracer.provenance import provenance

RESULTS = Path(__file__).parent / "results"

_RUN = [
    "env=catch",
    "env.num_envs=16",
    "agent.unroll_length=16",
    "agent.num_minibatches=2",
    "network.hidden_sizes=[32]",
    "evaluation.num_episodes=8",
    "evaluation.num_evaluations=8",
    "checkpoint.period_env_steps=8192",
    "logger=quiet",
]
RUNNERS = {
    "anakin": ["runner=anakin", "runner.updates_per_call=8"],
    "sebulba": ["runner=sebulba", "runner.updates_per_report=8"],
}


def soak(runner: str, kills: int, total_env_steps: int, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Kills and resumes a run, and compares its end with that of an undisturbed one.

    Args:
      runner: `anakin` or `sebulba`.
      kills: how often it is killed, unless it completes before.
      total_env_steps: of the run.
      folder: for both runs, empty.
      seed: of the instants.

    Returns:
      How often it was killed, the updates that were saved each time, and what differs at the end.
    """
    command = ["train", *_RUN, *RUNNERS[runner], f"total_env_steps={total_env_steps}"]
    whole, cut = folder / "whole", folder / "cut"
    undisturbed, started = _start([*command, f"hydra.run.dir={whole}"]), time.monotonic()
    while not checkpoint.latest(whole) and undisturbed.poll() is None:
        time.sleep(0.05)
    until_saved, instants = time.monotonic() - started, random.Random(seed)
    undisturbed.wait()
    reached = []
    for kill in range(kills):
        process = _start([*command, f"hydra.run.dir={cut}", "resume=auto"])
        if kill % 2:  # whatever it is doing: starting, compiling, training, saving
            _wait(process, instants.uniform(0.2, 1.2) * until_saved)
        else:  # soon after it has got further than the one before
            saved = checkpoint.latest(cut)
            while process.poll() is None and checkpoint.latest(cut) == saved:
                time.sleep(0.02)
            _wait(process, instants.uniform(0.0, 0.2))
        if process.poll() is not None:
            break  # it completed
        process.send_signal(signal.SIGKILL)
        process.wait()
        reached.append(checkpoint.latest(cut) or 0)
        if not reached[-1] and cut.exists():
            cut.rename(folder / f"killed-{kill}")  # nothing was saved yet: it begins again
    code = _start([*command, f"hydra.run.dir={cut}", "resume=auto"]).wait()
    return {"kills": len(reached), "reached": reached, "exit_status": code, **compare(whole, cut)}


def compare(whole: Path, cut: Path) -> dict[str, Any]:
    """What differs between two runs that should have ended alike."""
    first, second = (checkpoint.load(run, with_state=True) for run in (whole, cut))
    rows = [_rows(run) for run in (whole, cut)]
    results = [_timeless(json.loads((run / "result.json").read_text())) for run in (whole, cut)]
    return {
        "updates": [first.updates, second.updates],
        "differing_arrays": [
            name
            for name in first.state
            if not np.array_equal(first.state[name], second.state.get(name), equal_nan=True)
        ],
        "differing_results": [name for name in results[0] if results[0][name] != results[1].get(name)],
        "missing_or_differing_rows": sum(row not in rows[1] for row in rows[0]),
        "more_rows": len(rows[1]) - len(rows[0]),
    }


def _start(arguments: list[str]) -> subprocess.Popen:
    command = [sys.executable, "-m", "podracer.cli", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _wait(process: subprocess.Popen, seconds: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def _rows(folder: Path) -> list[dict[str, Any]]:
    return [_timeless(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _timeless(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not key.endswith(("seconds", "steps_per_second", "advice"))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--runners", default=",".join(RUNNERS))
    parser.add_argument("--total-env-steps", type=int, default=5_000_000)
    parser.add_argument("--out", type=Path, default=RESULTS / "soak.json")
    options = parser.parse_args()
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    for runner in options.runners.split(","):
        with tempfile.TemporaryDirectory() as folder:
            result = soak(runner, options.kills, options.total_env_steps, Path(folder))
        results[runner] = {"commit": provenance().get("commit"), "total_env_steps": options.total_env_steps, **result}
        print(runner, json.dumps(results[runner]), flush=True)
        write_json(options.out, results)


if __name__ == "__main__":
    main()
