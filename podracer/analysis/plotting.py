"""Curves of groups of runs as a figure: an estimate and its interval, one panel an environment."""

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

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
_COLOURS = (
    "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf",
)  # fmt: skip
_DASHES = ("solid", "dashed", "dotted")
# Inches and points of a panel in a page: as wide as a phone's, its smallest letters are 12 pixels high there.
_PAGE_PANEL = (3.8, 2.9)
_PAGE_FONT = 9.5


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


class Stroke(NamedTuple):
    """How the line of a group looks."""

    colour: str
    dashes: str


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


def strokes(drawn: Mapping[str, Mapping[str, Line]]) -> dict[str, Stroke]:
    """How every group is drawn, the same in all panels; thirty look different."""
    labels = list(dict.fromkeys(label for panel in drawn.values() for label in panel))
    # Dashes change with the colours' second round.
    return {
        label: Stroke(_COLOURS[index % len(_COLOURS)], _DASHES[index // len(_COLOURS) % len(_DASHES)])
        for index, label in enumerate(labels)
    }


def draw(drawn: Mapping[str, Mapping[str, Line]], style: Style, out: Path) -> None:
    """Draws the panels into an image file, whose suffix says which kind."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    columns = min(3, len(drawn))
    rows = math.ceil(len(drawn) / columns)
    figure, axes = plt.subplots(rows, columns, figsize=(5.0 * columns, 3.6 * rows + 0.4), squeeze=False)
    for axis in axes.flat[len(drawn) :]:
        axis.remove()
    looks = strokes(drawn)
    for axis, (env, panel) in zip(axes.flat, drawn.items()):
        _draw_panel(axis, panel, looks, style)
        axis.set_title(env, fontsize=10)
        axis.legend(fontsize=8)
    figure.suptitle(textwrap.fill(describe(style), _TITLE_WIDTH * columns), fontsize=9)
    figure.tight_layout()
    figure.savefig(out, dpi=110)
    plt.close(figure)


def to_svg(panel: Mapping[str, Line], looks: Mapping[str, Stroke], style: Style) -> str:
    """Draws one panel as an SVG element, of letters that a browser sets, without title and legend."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with matplotlib.rc_context({"svg.fonttype": "none", "font.size": _PAGE_FONT}):
        figure, axis = plt.subplots(figsize=_PAGE_PANEL, layout="constrained")
        _draw_panel(axis, panel, looks, style)
        axis.locator_params(axis="x", nbins=6)
        svg = io.StringIO()
        figure.savefig(svg, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
        plt.close(figure)
    text = svg.getvalue()
    return text[text.index("<svg") :]  # a document's declarations do not belong into a page


def describe(style: Style) -> str:
    """Says in a line what the figure shows, so that nobody has to guess."""
    what = {"iqm": "interquartile mean", "mean": "mean", "median": "median"}[style.statistic]
    smoothed = "not smoothed" if style.smoothing == 1 else f"each run averaged over {style.smoothing} points"
    return f"{what} over runs ({style.kind}), {style.confidence:.0%} bootstrap intervals, {smoothed}"


def legend(label: str, line: Line) -> str:
    return f"{label} ({line.num_runs} run{'' if line.num_runs == 1 else 's'})"


def _draw_panel(axis: Any, panel: Mapping[str, Line], looks: Mapping[str, Stroke], style: Style) -> None:
    for label, line in panel.items():
        colour, dashes = looks[label]
        axis.plot(line.x, line.estimate.value, linestyle=dashes, color=colour, linewidth=1.8, label=legend(label, line))
        if line.estimate.low is not None:
            axis.fill_between(line.x, line.estimate.low, line.estimate.high, color=colour, alpha=0.2, linewidth=0)
    axis.set_xlabel(X_LABELS[style.x])
    axis.set_ylabel(style.y.replace("_", " "))
    axis.ticklabel_format(axis="x", style="sci", scilimits=(-2, 4))
    axis.grid(alpha=0.3)
