"""Runs studies with several seeds, keeps every seed's curves and speed as JSON, draws them.

    python experiments/learning.py --studies cartpole,catch --seeds 5

Every seed is a process of its own, and the variants take turns, as other load on the machine comes and goes. A seed
that a result file holds already, for the same overrides, is not run again; after a change of a preset, `--fresh` does.
"""

import argparse
import concurrent.futures
import contextlib
import json
import multiprocessing
import os
import shlex
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import podracer
from experiments import speeds
from experiments.plot import draw
from experiments.studies import STUDIES, Study, Variant
from podracer.analysis import comparison
from podracer.build import build
from podracer.calibration.steady import steady
from podracer.calibration.steady import summarise as summarise_pieces
from podracer.logging import write_json

RESULTS = Path(__file__).parent / "results"
# Points that a curve of training returns is thinned to.
_MAX_POINTS = 100
# What the speed of a run is measured in.
_PIECES, _PIECE_SECONDS = 3, 1.0
# What is kept of a run's provenance.
_PROVENANCE = ("command", "started", "commit", "has_local_changes", "python", "system", "devices", "versions")


def run_study(name: str, study: Study, out: Path, *, num_seeds: int, only: str = "", fresh: bool = False) -> None:
    """Runs what is missing of a study; its file is written after every run, its figure at the end.

    Args:
      name: of the study, and of its files.
      study: what to run.
      out: folder of the files.
      num_seeds: of every variant: 0, 1, ...
      only: a part of the labels of the variants to run; the others keep the runs that they have.
      fresh: whether to forget the runs in the file.
    """
    path = out / f"{name}.json"
    known = {} if fresh or not path.exists() else known_runs(json.loads(path.read_text(encoding="utf-8")))
    result = describe(name, study, known)
    write_json(path, result)
    for seed in range(num_seeds):
        for variant, described in zip(study.variants, result["variants"]):
            if seed in (run["seed"] for run in described["runs"]) or only not in variant.label:
                continue
            run = run_seed(study, variant, seed)
            described["runs"].append(run)
            print(f"{name}: {variant.label}, seed {seed}: {run['value']} in {run['wall_seconds']:.0f} s", flush=True)
            write_json(path, result)
    draw(result, out / f"{name}.png")
    if study.varied:
        print("\n".join(speeds.table(result)))


def describe(name: str, study: Study, known: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """A study's result so far, with the runs that are known by their variant's overrides."""
    return {
        "study": name,
        "title": study.title,
        "measure": study.measure,
        "threshold": study.threshold,
        "max_seconds": study.max_seconds,
        "columns": study.columns,
        "varied": study.varied,
        "variants": [
            {
                "label": variant.label,
                "at": variant.at,
                "series": variant.series,
                "overrides": overrides,
                "runs": list(known.get(overrides, ())),
            }
            for variant in study.variants
            for overrides in [shlex.join(variant.overrides)]
        ],
    }


def known_runs(result: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The runs of a result file by the overrides of their variant."""
    return {variant["overrides"]: variant["runs"] for variant in result["variants"]}


def run_seed(study: Study, variant: Variant, seed: int) -> dict[str, Any]:
    """Trains once, in a new process, whose devices may be emulated as a variant asks, and reads the run's folder."""
    overrides = [*variant.overrides, f"seed={seed}", "logger=quiet"]
    before = os.getloadavg()[0]
    alone = concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    with tempfile.TemporaryDirectory() as folder, alone:
        out_of_time = alone.submit(_train, overrides, Path(folder), study.max_seconds).result()
        run = summarise(Path(folder), study, seed, out_of_time=out_of_time)
        if study.varied:
            run["speed"] = alone.submit(_measure, overrides).result()
        return {**run, "load_average": [before, os.getloadavg()[0]]}


def _train(overrides: list[str], folder: Path, max_seconds: int | None) -> bool:
    """Trains, and says whether its time was up."""
    config = podracer.load_config(overrides)
    started = time.monotonic()
    with contextlib.suppress(KeyboardInterrupt), time_limit(max_seconds):
        podracer.train(config, folder, ["podracer", "train", *overrides])
    return max_seconds is not None and time.monotonic() - started >= max_seconds


def _measure(overrides: list[str]) -> dict[str, Any]:
    """The speed of a run past its warm-up, by the clock and by processor time, which other load distorts less."""
    run = build(podracer.load_config([*overrides, "total_env_steps=100_000_000_000"]))
    with steady(run, warm_up_seconds=_PIECE_SECONDS) as training:
        return summarise_pieces([training.train(_PIECE_SECONDS) for _ in range(_PIECES)])


@contextlib.contextmanager
def time_limit(seconds: int | None) -> Iterator[None]:
    """Interrupts what runs in it as Ctrl-C does, after a number of seconds; None never does.

    Raises:
      KeyboardInterrupt: from wherever the main thread is.
    """
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(seconds or 0)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def summarise(folder: Path, study: Study, seed: int, *, out_of_time: bool = False) -> dict[str, Any]:
    """Reads the folder of a run: its result, its curves, and whether it reached the threshold.

    Args:
      folder: of the run.
      study: that the run belongs to.
      seed: of the run.
      out_of_time: whether the run was interrupted because the study's time was up.

    Raises:
      RuntimeError: the run failed, or was interrupted before its time was up.
    """
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    if result["status"] != "completed" and not (result["status"] == "interrupted" and out_of_time):
        raise RuntimeError(f"the run of seed {seed} is {result['status']}, so the study ends here")
    provenance = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    training = [row for row in rows if row["kind"] == "train"]
    evaluation = [row for row in rows if row["kind"] == "evaluation"]
    last_tenth = mean_return(training, 0.9 * result["env_steps"])
    value = result["final_return"] if study.measure == "final" else last_tenth
    return {
        "seed": seed,
        "value": value,
        "reached": None if study.threshold is None or value is None else value >= study.threshold,
        "last_tenth_return": last_tenth,
        **result,
        "shares_of_time": comparison.shares(rows),
        "evaluation": {key: [row[key] for row in evaluation] for key in ("env_steps", "episode_return")},
        "training": thinned(training, _MAX_POINTS),
        **{key: provenance[key] for key in _PROVENANCE if key in provenance},
    }


def mean_return(training: list[dict[str, Any]], after_env_steps: float) -> float | None:
    """Averages the returns of the episodes that ended in chunks after a number of steps, each episode once."""
    rows = [row for row in training if row["env_steps"] > after_env_steps and row["episodes"]]
    if not rows:
        return None
    return float(np.average([row["episode_return"] for row in rows], weights=[row["episodes"] for row in rows]))


def thinned(training: list[dict[str, Any]], max_points: int) -> dict[str, list[float]]:
    """Joins chunks of training into at most `max_points` points, at their last step, each episode counted once."""
    rows = [row for row in training if row["episodes"]]
    curve: dict[str, list[float]] = {"env_steps": [], "episode_return": [], "episodes": []}
    for part in np.array_split(np.arange(len(rows)), min(max_points, len(rows)) or 1):
        if len(part):
            curve["env_steps"].append(rows[part[-1]]["env_steps"])
            curve["episode_return"].append(mean_return([rows[i] for i in part], -1.0))
            curve["episodes"].append(sum(rows[i]["episodes"] for i in part))
    return curve


def main(studies: Mapping[str, Study] = STUDIES) -> None:
    parser = argparse.ArgumentParser(description="Runs studies, seed by seed.")
    parser.add_argument("--studies", default=",".join(studies), help=f"some of {', '.join(studies)}; all by default")
    parser.add_argument("--seeds", type=int, help="number of seeds; by default as many as a study has")
    parser.add_argument("--only", default="", metavar="TEXT", help="run the variants with this in their label")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON files and figures")
    parser.add_argument("--fresh", action="store_true", help="run again what is there")
    options = parser.parse_args()
    names = options.studies.split(",")
    unknown = [name for name in names if name not in studies]
    if unknown:
        parser.error(f"there is no study {', '.join(unknown)}; choose from {', '.join(studies)}")
    options.out.mkdir(parents=True, exist_ok=True)
    for name in names:
        study = studies[name]
        num_seeds = options.seeds or study.num_seeds
        run_study(name, study, options.out, num_seeds=num_seeds, only=options.only, fresh=options.fresh)


if __name__ == "__main__":
    main()
