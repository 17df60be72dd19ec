"""A calibration for people (a table, and overrides to paste) and for programs (JSON)."""

import os
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from podracer.calibration.calibrate import Calibrated, Calibration
from podracer.console import human

if TYPE_CHECKING:
    from rich.table import Table


# With fewer of the machine's processors than this share, others disturb what is measured.
_BUSY = 0.8


def to_json(calibration: Calibration, overrides: Sequence[str]) -> dict[str, Any]:
    """Turns a calibration into what `json.dumps` takes.

    Args:
      calibration: what was found.
      overrides: that it began with.
    """
    best, same_batch = calibration.best(), calibration.best(same_batch=True)
    return {
        "processors": calibration.processors,
        "load_average": os.getloadavg()[0],
        "left_out": calibration.left_out,
        "candidates": [_candidate_json(item, calibration) for item in calibration.calibrated],
        "proposed": {
            "fastest": proposal(best, calibration, overrides),
            "fastest_of_same_batch": proposal(same_batch, calibration, overrides),
        },
    }


def proposal(item: Calibrated, calibration: Calibration, overrides: Sequence[str]) -> list[str]:
    """The overrides of `podracer train` that make a candidate of what was asked for."""
    changes = item.candidate.changes(calibration.base)
    kept = [override for override in overrides if override.lstrip("+").partition("=")[0] not in changes]
    return [*kept, *(f"{key}={value}" for key, value in changes.items())]


def to_table(calibration: Calibration) -> "Table":
    """The candidates, the fastest first."""
    from rich.table import Table

    first = calibration.calibrated[0]
    is_sebulba = first.plan.runner == "sebulba"
    table = Table(
        title=f"milliseconds of an update, predicted: {first.plan.runner}, {calibration.processors:.1f} processors",
        title_justify="left",
    )
    splits = first.candidate.learner_devices is not None
    headings = ["environments", "unroll", *(["threads"] if is_sebulba else [])]
    headings += [["devices"], ["actor/learner devices"]][is_sebulba] if splits else []
    headings += ["batch", "environment", "acting", "learning", *(["processors"] if is_sebulba else [])]
    for heading in (*headings, "steps/s"):
        table.add_column(heading, justify="right")
    table.add_column("bottleneck", no_wrap=True)
    best = calibration.best()
    for item in sorted(calibration.calibrated, key=lambda item: -item.prediction.steps_per_second):
        candidate, prediction = item.candidate, item.prediction
        cells = [f"{candidate.num_envs:,}", f"{candidate.unroll_length:,}"]
        cells += [str(candidate.threads_per_device)] if is_sebulba else []
        devices = [str(n) for n in (candidate.actor_devices, candidate.learner_devices) if n is not None]
        cells += ["/".join(devices)] if splits else []
        cells += [f"{item.plan.env_steps_per_update:,}"]
        shown = ("environment", "acting", "learning", *(["processors"] if is_sebulba else []))
        cells += [f"{1000 * prediction.seconds[name]:.3g}" for name in shown]
        cells += [human(prediction.steps_per_second), _bottleneck(item)]
        table.add_row(*cells, style="bold" if item is best else "")
    return table


def to_text(calibration: Calibration, overrides: Sequence[str]) -> str:
    """What is proposed, as commands."""
    best, same_batch = calibration.best(), calibration.best(same_batch=True)
    base = calibration.calibrated[0]
    lines = [f"as it is: {_speed(base)}; {_bottleneck(base)} is the bottleneck"]
    if best is base:
        lines.append("nothing that was tried is notably faster")
    else:
        lines.append(f"fastest: {_speed(best)}, {_bottleneck(best)} is the bottleneck")
        lines.append(f"  {command(proposal(best, calibration, overrides))}")
        if not best.candidate.has_batch_of(base.candidate):
            lines.append("  (the batch is another, and with it what is learnt from as many steps)")
    if same_batch is not best:
        if same_batch is base:
            lines.append("with the batch as it is: nothing that was tried is notably faster")
        else:
            lines.append(f"fastest with the batch as it is: {_speed(same_batch)}")
            lines.append(f"  {command(proposal(same_batch, calibration, overrides))}")
    cores = base.plan.topology.cores_per_host
    if calibration.processors < _BUSY * cores:
        lines.append(
            f"other processes leave this one {calibration.processors:.1f} of {cores} processors: the figures hold for "
            "as long as they do; calibrate again when the machine is quiet"
        )
    if calibration.left_out:
        lines.append(f"{calibration.left_out} candidates were left out for want of time; --seconds gives more")
    return "\n".join(lines)


def command(overrides: Sequence[str]) -> str:
    """The command that trains with some overrides, as a shell takes it."""
    return shlex.join(["podracer", "train", *overrides])


def _speed(item: Calibrated) -> str:
    return f"{human(item.prediction.steps_per_second)} steps/s"


def _bottleneck(item: Calibrated) -> str:
    prediction = item.prediction
    return prediction.bottleneck + (" (processors)" if prediction.limit == "processors" else "")


def _candidate_json(item: Calibrated, calibration: Calibration) -> dict[str, Any]:
    plan, prediction = item.plan, item.prediction
    return {
        "changes": item.candidate.changes(calibration.base),
        "num_envs": plan.num_envs,
        "unroll_length": plan.unroll_length,
        "env_steps_per_update": plan.env_steps_per_update,
        "threads_per_device": plan.threads_per_device if plan.runner == "sebulba" else None,
        "actor_ids": list(plan.actor_ids),
        "learner_ids": list(plan.learner_ids),
        "seconds": prediction.seconds,
        "steps_per_second": prediction.steps_per_second,
        "steps_per_processor_second": prediction.steps_per_processor_second,
        "bottleneck": prediction.bottleneck,
        "limit": prediction.limit,
    }
