"""Breaks runs on purpose, one fault a process, and notes what the user sees, how soon it ends, and what is left.

    python experiments/faults.py                  # all; some minutes
    python experiments/faults.py --only raises,nan

Kills (SIGKILL) are the soak's: `soak.py`.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from rich.console import Console
from rich.table import Table

from podracer import checkpoint
from podracer.logging import write_json

RESULTS = Path(__file__).parent / "results"
_ROOT = Path(__file__).parents[1]
_SMALL = ["agent.unroll_length=16", "agent.num_minibatches=2", "network=mlp", "network.hidden_sizes=[32]"]
_SMALL += ["env.num_envs=8", "logger=plain", "evaluation.num_episodes=8", "evaluation.num_evaluations=0"]
_SMALL += ["checkpoint.period_env_steps=2048", "total_env_steps=1e9"]
_JAX = ["env=catch", *_SMALL]
_HOST = ["runner=sebulba", "env=custom_host", "env.make=experiments.faults:Breaking", *_SMALL]
_FILE_SIZE = 60_000


class Breaking(gymnasium.Env):
    """Episodes of 20 steps; the first environment breaks at its step `at`."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, index: int, fault: str = "", at: int = 1500, marker: str = ""):
        """Args: fault: raises, not_a_number, shape or hangs; marker: a file that is made when it breaks."""
        self._breaks = fault if index == 0 else ""
        self._at, self._marker, self._steps = at, marker, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action):
        self._steps += 1
        observation = self._observe()
        if self._breaks and self._steps == self._at:
            Path(self._marker).touch()
            match self._breaks:
                case "raises":
                    raise RuntimeError("the simulator has crashed")
                case "not_a_number":
                    observation[2] = np.nan
                case "shape":
                    observation = observation[:3]
                case "hangs":
                    time.sleep(10_000)
        return observation, 1.0, self._steps % 20 == 0, False, {}

    def _observe(self):
        return self.np_random.uniform(-1, 1, 4).astype(np.float32)


class Fault(NamedTuple):
    """How a run is broken."""

    overrides: list[str]
    signals: tuple[signal.Signals, ...] = ()  # sent half a second apart
    reached: Callable[[Path, str], bool] = lambda run, output: _rows(run) >= 30  # when they are sent


def _host(fault: str, *more: str) -> Fault:
    return Fault([*_HOST, f"+env.kwargs.fault={fault}", "+env.kwargs.marker=MARKER", *more])


_EVALUATING = ["evaluation.num_evaluations=10", "evaluation.num_episodes=100_000", "total_env_steps=1e6"]
FAULTS = {
    "SIGINT, training, Anakin": Fault(_JAX, (signal.SIGINT,)),
    "SIGTERM, training, Sebulba": Fault([*_JAX, "runner=sebulba"], (signal.SIGTERM,)),
    "SIGINT, compiling": Fault(_JAX, (signal.SIGINT,), lambda run, output: "compiling" in output),
    "SIGINT, evaluating": Fault([*_JAX, *_EVALUATING], (signal.SIGINT,), lambda run, output: "evaluating" in output),
    "SIGINT twice": Fault(_JAX, (signal.SIGINT, signal.SIGINT)),
    "environment raises": _host("raises"),
    "environment gives NaN": _host("not_a_number"),
    "environment changes its shape": _host("shape"),
    "environment hangs": _host("hangs", "faults.step_timeout_seconds=5"),
    "environment raises, restart": _host("raises", "faults.environment=restart", "total_env_steps=20_000"),
    "loss not finite": Fault([*_JAX, "agent.learning_rate=1e38"]),
    "disk full": Fault([*_JAX, "network.hidden_sizes=[256]"]),
    "logger fails": Fault([*_JAX, "logger.mlflow=true", "logger.mlflow_uri=NOWHERE", "total_env_steps=20_000"]),
}


def inject(name: str, folder: Path) -> dict[str, Any]:
    """Starts a run, breaks it, and describes its end."""
    fault, run, marker, output = FAULTS[name], folder / "run", folder / "marker", folder / "output"
    (folder / "file").touch()
    places = {"MARKER": str(marker), "NOWHERE": f"sqlite:///{folder}/file/no-folder.db"}
    overrides = [_filled(text, places) for text in fault.overrides]
    command = [sys.executable, "-m", "podracer.cli", "train", *overrides, f"hydra.run.dir={run}"]
    if name == "disk full":  # no file may grow beyond so many bytes
        command = ["bash", "-c", f"ulimit -f {_FILE_SIZE // 1024}; trap '' XFSZ; exec \"$@\"", "bash", *command]
    with open(output, "w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=_ROOT)
    broken = None
    while process.poll() is None:
        time.sleep(0.02)
        if broken is None and fault.signals and fault.reached(run, output.read_text()):
            broken = time.time()
            for number in fault.signals:
                process.send_signal(number)
                time.sleep(0.5 * (number is not fault.signals[-1]))
    ended = time.time()
    if marker.exists():
        broken = marker.stat().st_mtime
    result = json.loads((run / "result.json").read_text()) if (run / "result.json").exists() else {}
    return {
        "fault": name,
        "seconds_to_exit": None if broken is None else ended - broken,
        "exit_status": process.returncode,
        "seen": _seen(output.read_text()),
        "result": {key: result.get(key) for key in ("status", "updates")},
        "checkpoint": checkpoint.latest(run),
        "can_be_read": checkpoint.latest(run) is not None and bool(checkpoint.load(run).policy),
    }


def _filled(text: str, places: dict[str, str]) -> str:
    for name, value in places.items():
        text = text.replace(name, value)
    return text


def _seen(output: str) -> list[str]:
    """The last lines that tell of an error or of an interruption."""
    told = [line for line in output.splitlines() if line and not line.startswith((" ", "Traceback"))]
    return [line for line in told if "podracer:" in line or "Error" in line or "Hung" in line or "Fault" in line][-4:]


def _rows(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    parser.add_argument("--out", type=Path, default=RESULTS / "faults.json")
    options = parser.parse_args()
    # What a shell starts in the background ignores SIGINT, and so would the runs that are to hear it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    results = []
    for name in FAULTS:
        if any(part in name for part in options.only.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                results.append(inject(name, Path(folder)))
            print(json.dumps(results[-1]), flush=True)
    write_json(options.out, results)
    table = Table("fault", "seconds to exit", "exit status", "what the user sees", "status, updates", "checkpoint")
    for row in results:
        seconds = "-" if row["seconds_to_exit"] is None else f"{row['seconds_to_exit']:.1f}"
        left = ", ".join(map(str, row["result"].values()))
        table.add_row(
            row["fault"], seconds, str(row["exit_status"]), "\n".join(row["seen"]), left, str(row["checkpoint"])
        )
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
