"""Wall-clock seconds of a sweep over seeds: in one program, by Hydra's basic launcher, and as commands of their own.

python benchmarks/sweeps.py
python benchmarks/sweeps.py --seeds 4 --ways vectorised,basic
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from podracer.logging import write_json
from podracer.provenance import provenance

RESULTS = Path(__file__).parent / "results"
_RUN = [
    "experiment=ppo",
    "runner=anakin",
    "env=gymnax/cartpole",
    "env.num_envs=4",
    "total_env_steps=1e5",
    "mesh.learner=1",
]
_WAYS = ("vectorised", "basic", "commands")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--ways", default=",".join(_WAYS), help="some of: %(default)s")
    arguments = parser.parse_args()
    ways = arguments.ways.split(",")
    with tempfile.TemporaryDirectory() as folder:
        seconds = {way: _seconds(way, arguments.seeds, Path(folder) / way) for way in ways}
    table = Table("way", "seconds", "of the vectorised")
    for way, taken in seconds.items():
        table.add_row(way, f"{taken:.1f}", f"{taken / seconds['vectorised']:.2f}" if "vectorised" in seconds else "")
    Console().print(table)
    if ways == list(_WAYS):
        record = {**provenance(), "overrides": _RUN, "seeds": arguments.seeds, "seconds": seconds}
        write_json(RESULTS / "sweeps.json", record)


def _seconds(way: str, seeds: int, folder: Path) -> float:
    """Seconds of all runs of a way, from starting the first process until the last has ended."""
    sweep = ["-m", f"hydra.sweep.dir={folder}", f"seed=range({seeds})"]
    commands = {
        "vectorised": [[*sweep, "hydra/launcher=vectorised"]],
        "basic": [sweep],
        "commands": [[f"seed={seed}", f"hydra.run.dir={folder}/{seed}"] for seed in range(seeds)],
    }[way]
    began = time.perf_counter()
    for command in commands:
        subprocess.run(
            [sys.executable, "-m", "podracer.cli", "train", *command, *_RUN], check=True, stdout=subprocess.DEVNULL
        )
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
