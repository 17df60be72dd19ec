"""Curves of groups of runs as a figure: an estimate and its interval, one panel an environment."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from podracer.analysis.curves import Logged
from podracer.analysis.statistics import STATISTICS, Estimate, align, estimate, smooth

X_LABELS = {
    "env_steps": "environment steps",
    "wall_seconds": "seconds",
    "updates": "updates",
    "agent_updates": "updates of the agent",
    "usd": "US dollars",
}
# Characters that fit above a panel.
_TITLE_WIDTH = 66


@dataclass(frozen=True, kw_only=True)
class Style:
    """What is drawn of each run, and what of all of them."""

    x: str = "env_steps"
    y: str = "episode_return"
    kind: str = "evaluation"
    statistic: str = "iqm"
    smoothing: int = 1  # points that each one is averaged over
    confidence: float = 0.95
    resamples: int = 2000
    usd_per_hour: float | None = None


class Line(NamedTuple):
    """The estimate of a group in one environment."""

    x: np.ndarray  # [P]
    estimate: Estimate  # [P] each
    num_runs: int
    num_without: int  # runs that have no such metric


def lines(groups: Mapping[str, Sequence[Logged]], style: Style) -> dict[str, dict[str, Line]]:
    """Estimates the curve of every group in every environment.

    Returns:
      `{environment: {group: line}}`; a group whose runs have no point in common is left out.
    """
    result: dict[str, dict[str, Line]] = {}
    for label, runs in groups.items():
        for env in sorted({logged.run.env for logged in runs}):
            curves = [
                logged.curve(style.y, kind=style.kind, x=style.x, usd_per_hour=style.usd_per_hour)
                for logged in runs
                if logged.run.env == env
            ]
            there = [(curve.x, smooth(curve.y, style.smoothing)) for curve in curves if curve.x.size]
            grid, values = align(there) if there else (np.empty(0), np.empty(0))
            if not grid.size:
                continue
            estimated = estimate(
                [values], STATISTICS[style.statistic], confidence=style.confidence, resamples=style.resamples
            )
            result.setdefault(env, {})[label] = Line(grid, estimated, len(there), len(curves) - len(there))
    return dict(sorted(result.items()))


def draw(drawn: Mapping[str, Mapping[str, Line]], style: Style, out: Path | TextIO) -> None:
    """Draws the panels into an image file, whose suffix says which kind, or as SVG into a text stream."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    columns = min(3, len(drawn))
    rows = math.ceil(len(drawn) / columns)
    figure, axes = plt.subplots(rows, columns, figsize=(5.0 * columns, 3.6 * rows + 0.4), squeeze=False)
    for axis in axes.flat[len(drawn) :]:
        axis.remove()
    labels = list(dict.fromkeys(label for panel in drawn.values() for label in panel))
    colours = {label: f"C{index % 10}" for index, label in enumerate(labels)}
    for axis, (env, panel) in zip(axes.flat, drawn.items()):
        _draw_panel(axis, panel, colours)
        axis.set_title(env, fontsize=10)
        axis.set_xlabel(X_LABELS[style.x])
        axis.set_ylabel(style.y.replace("_", " "))
    figure.suptitle(textwrap.fill(describe(style), _TITLE_WIDTH * columns), fontsize=9)
    figure.tight_layout()
    figure.savefig(out, dpi=110, format=None if isinstance(out, Path) else "svg")
    plt.close(figure)


def describe(style: Style) -> str:
    """Says in a line what the figure shows, so that nobody has to guess."""
    what = {"iqm": "interquartile mean", "mean": "mean", "median": "median"}[style.statistic]
    smoothed = "not smoothed" if style.smoothing == 1 else f"each run averaged over {style.smoothing} points"
    return f"{what} over runs ({style.kind}), {style.confidence:.0%} bootstrap intervals, {smoothed}"


def _draw_panel(axis: Any, panel: Mapping[str, Line], colours: Mapping[str, str]) -> None:
    for label, line in panel.items():
        count = f"{line.num_runs} run{'' if line.num_runs == 1 else 's'}"
        axis.plot(line.x, line.estimate.value, color=colours[label], linewidth=1.8, label=f"{label} ({count})")
        if line.estimate.low is not None:
            axis.fill_between(
                line.x, line.estimate.low, line.estimate.high, color=colours[label], alpha=0.2, linewidth=0
            )
    axis.ticklabel_format(axis="x", style="sci", scilimits=(-2, 4))
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
