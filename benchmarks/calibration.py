"""What `podracer plan --calibrate` predicts of the presets, beside what their runs measure.

python benchmarks/calibration.py
python benchmarks/calibration.py --cases ppo-sebulba-cartpole,sac-anakin-pendulum --repeats 5
"""

import argparse
import os
import shlex
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.cases import CALIBRATION_CASES, Case
from podracer import runtime
from podracer.build import build
from podracer.calibration.calibrate import Meter, measurable
from podracer.calibration.steady import steady
from podracer.config import load_config
from podracer.logging import write_json
from podracer.provenance import provenance

RESULTS = Path(__file__).parent / "results"
# What a prediction may be off by, of what is measured.
TOLERANCE = 0.25
MEDIANS = ("predicted", "measured", "error", "processor_error")


def measure_case(case: Case, repeats: int, seconds: float) -> dict[str, Any]:
    """Predicts and measures a run in turns, so that both meet the same load.

    Args:
      case: the run.
      repeats: predictions, each compared with the measurements before and after it.
      seconds: of a measurement; each part of a prediction is measured for half of that.
    """
    config = load_config(case.overrides)
    pairs = []
    with steady(build(config), warm_up_seconds=seconds / 2) as training:
        before = training.train(seconds)
        for _ in range(repeats):
            meter, run = Meter(seconds / 2), build(measurable(config))
            meter.measure(run)
            prediction = meter.predict(run)
            after = training.train(seconds)
            env_steps = before.env_steps + after.env_steps
            measured = env_steps / (before.seconds + after.seconds)
            per_processor_second = env_steps / (before.cpu_seconds + after.cpu_seconds)
            before = after
            pairs.append(
                {
                    "predicted": prediction.steps_per_second,
                    "measured": measured,
                    "error": prediction.steps_per_second / measured - 1,
                    "processor_error": prediction.steps_per_processor_second / per_processor_second - 1,
                    "bottleneck": prediction.bottleneck,
                    "limit": prediction.limit,
                    "seconds": prediction.seconds,
                    "processors": meter.processors,
                    "load_average": os.getloadavg()[0],
                }
            )
    return {"overrides": shlex.join(case.overrides), **summarise(pairs), "pairs": pairs}


def summarise(pairs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the pairs, and the error of the pair that is farthest off."""
    middle = {key: statistics.median(pair[key] for pair in pairs) for key in MEDIANS}
    worst = max((pair["error"] for pair in pairs), key=abs)
    return {**middle, "worst_error": worst, "within": abs(middle["error"]) <= TOLERANCE}


def to_table(results: dict[str, dict[str, Any]]) -> Table:
    """The results as a table for a terminal."""
    table = Table(title="thousands of environment steps a second; the median of neighbouring pairs")
    table.add_column("case", no_wrap=True)
    for heading in ("predicted", "measured", "error", "worst pair", "of processor time", "bottleneck"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, result in results.items():
        rates = (f"{result[key] / 1000:.2f}" for key in ("predicted", "measured"))
        mark = "" if result["within"] else " !"
        errors = f"{result['error']:+.0%}{mark}", f"{result['worst_error']:+.0%}", f"{result['processor_error']:+.0%}"
        table.add_row(name, *rates, *errors, result["pairs"][-1]["bottleneck"])
    within = sum(result["within"] for result in results.values())
    table.caption = f"{within} of {len(results)} within {TOLERANCE:.0%}"
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CALIBRATION_CASES), help="names, separated by commas")
    parser.add_argument("--repeats", type=int, default=3, help="pairs of a prediction and a measurement")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a measurement")
    parser.add_argument("--out", type=Path, default=RESULTS / "calibration.json")
    options = parser.parse_args(arguments)
    names = options.cases.split(",")
    if unknown := set(names) - set(CALIBRATION_CASES):
        parser.error(f"there is no case {', '.join(sorted(unknown))}, but {', '.join(CALIBRATION_CASES)}")
    runtime.enable_compile_cache()
    console = Console()
    if not console.is_terminal:
        console.width = 160
    document: dict[str, Any] = {**provenance(), "load_average_before": os.getloadavg(), "cases": {}}
    for name in names:
        result = document["cases"][name] = measure_case(CALIBRATION_CASES[name], options.repeats, options.seconds)
        document["load_average_after"] = os.getloadavg()
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(options.out, document)
        console.print(f"{name}: {result['error']:+.0%}")
    console.print(to_table(document["cases"]))


if __name__ == "__main__":
    main()
