"""Steps per second of whole runs, beside the floors of their parts and beside rejax.

python benchmarks/throughput.py --peer-venv ~/.cache/podracer/rejax
python benchmarks/throughput.py --cases ppo-anakin-cartpole-64,catch-notebook --repeats 5 --seconds 4
"""

import argparse
import contextlib
import os
import shlex
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.cases import CASES, LEARNER_CASES, Case
from benchmarks.floors import floors, learner_cost
from benchmarks.peers import Peer, PeerError, make_environment
from podracer.build import Run, build
from podracer.calibration.steady import steady, summarise
from podracer.config import load_config
from podracer.logging import write_json
from podracer.provenance import provenance

RESULTS = Path(__file__).parent / "results"


def measure_case(case: Case, repeats: int, seconds: float, peer_python: Path | None) -> dict[str, Any]:
    """Measures one run, in turns with its peer where it has one, then its floors."""
    run = _build(case)
    result: dict[str, Any] = _describe(case, run)
    peer, ours, theirs = None, [], []
    with contextlib.ExitStack() as stack:
        training = stack.enter_context(steady(run, warm_up_seconds=seconds / 2))
        if case.peer and peer_python is not None:
            try:
                peer = Peer(peer_python, run.plan.num_envs)
                stack.callback(peer.close)
                peer.train(seconds / 2)
            except PeerError as error:
                result["peer"] = {"error": str(error)}
                peer = None
        for _ in range(repeats):
            ours.append(training.train(seconds))
            if peer is not None:
                theirs.append(peer.train(seconds))
        result["compile_seconds"] = training.compile_seconds
    result |= summarise(ours)
    result["floors"] = floors(run, seconds / 2)
    result["fraction_of_combined_floor"] = result["steps_per_second"] / result["floors"]["combined"]
    if peer is not None:
        summary = summarise(theirs)
        ratios = [a.steps_per_second / b.steps_per_second for a, b in zip(ours, theirs)]
        result["peer"] = {
            "name": "rejax",
            "versions": peer.versions,
            "compile_seconds": peer.compile_seconds,
            **summary,
            "ratio": statistics.median(ratios),  # of neighbours in time
            "cpu_ratio": result["steps_per_cpu_second"] / summary["steps_per_cpu_second"],
        }
    return result


def measure_learner(case: Case, seconds: float) -> dict[str, Any]:
    """Compares a run's learner inside of a loop with its gradient outside of one."""
    run = _build(case)
    return {**_describe(case, run), **learner_cost(run, seconds)}


def to_tables(results: dict[str, dict[str, Any]]) -> list[Table]:
    """The results as tables for a terminal."""
    throughput = _table(
        "thousands of environment steps a second",
        ("steps/s", "min", "max", "env", "acting", "gradient", "combined", "reached", "rejax", "ratio", "compile"),
    )
    learner = _table("µs a sample's gradient", ("inside a loop", "outside", "ratio"))
    for name, result in results.items():
        if name in LEARNER_CASES:
            learner.add_row(name, *(f"{result[key]:.2f}" for key in ("inside_us", "outside_us", "ratio")))
            continue
        peer = result.get("peer", {})
        throughput.add_row(
            name,
            *(_thousands(result[f"steps_per_second{suffix}"]) for suffix in ("", "_min", "_max")),
            *(_thousands(result["floors"][part]) for part in ("environment", "acting", "gradient", "combined")),
            f"{result['fraction_of_combined_floor']:.0%}",
            _thousands(peer["steps_per_second"]) if "ratio" in peer else "failed" if peer else "",
            f"{peer['ratio']:.2f}" if "ratio" in peer else "",
            f"{result['compile_seconds']:.1f} s",
        )
    return [table for table in (throughput, learner) if table.row_count]


def _table(title: str, headings: Sequence[str]) -> Table:
    table = Table(title=title)
    table.add_column("case", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _thousands(rate: float) -> str:
    return f"{rate / 1000:.{1 if rate < 1e6 else 0}f}"


def main(arguments: Sequence[str] | None = None) -> None:
    known = [*CASES, *LEARNER_CASES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(known), help="names, separated by commas; by default all of them")
    parser.add_argument("--repeats", type=int, default=3, help="pieces that a run is measured in")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a piece")
    parser.add_argument("--peer-venv", type=Path, help="folder of rejax's virtual environment; made if it is not there")
    parser.add_argument("--out", type=Path, default=RESULTS / "throughput.json")
    options = parser.parse_args(arguments)
    names = options.cases.split(",")
    if unknown := set(names) - set(known):
        parser.error(f"there is no case {', '.join(sorted(unknown))}, but {', '.join(known)}")

    console = Console()
    if not console.is_terminal:
        console.width = 160
    document: dict[str, Any] = {**provenance(), "load_average_before": os.getloadavg(), "cases": {}}
    peer_python = None
    if options.peer_venv is not None:
        try:
            peer_python = make_environment(options.peer_venv)
        except PeerError as error:
            document["peer_error"] = str(error)
            print(f"rejax cannot be installed: {error}")
    for name in names:
        if name in CASES:
            result = measure_case(CASES[name], options.repeats, options.seconds, peer_python)
        else:
            result = measure_learner(LEARNER_CASES[name], options.seconds)
        document["cases"][name] = result
        document["load_average_after"] = os.getloadavg()
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(options.out, document)
        console.print(f"{name}: {result.get('steps_per_second') or result['ratio']:,.2f}")
    console.print(*to_tables(document["cases"]))


def _build(case: Case) -> Run:
    return build(load_config(case.overrides))


def _describe(case: Case, run: Run) -> dict[str, Any]:
    return {
        "overrides": shlex.join(case.overrides),
        "runner": run.plan.runner,
        "num_envs": run.plan.num_envs,
        "unroll_length": run.plan.unroll_length,
    }


if __name__ == "__main__":
    main()
