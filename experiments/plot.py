"""Figures of studies: every seed thin, their mean bold, the threshold dashed.

Blue is what the threshold is for: evaluation, or training, which is grey otherwise. A study of speed has panels of
speeds, every seed a dot and their median a line or a bar, beside one of training returns, a colour a variant.

python experiments/plot.py experiments/results/cartpole.json
"""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments import speeds

_GRID_POINTS = 200


def mean_curve(curves: Sequence[tuple[Sequence[float], Sequence[float]]], num_points: int = _GRID_POINTS):
    """Averages curves at common steps.

    Seeds log at steps of their own, so they are interpolated linearly onto one grid; it spans only
    what all of them cover, so that every point is a mean of all seeds.

    Args:
      curves: (steps, values) of every seed, steps ascending.
      num_points: of the grid.

    Returns:
      `[num_points]` steps and `[num_points]` means; empty where the seeds have no steps in common.
    """
    curves = [(np.asarray(x, float), np.asarray(y, float)) for x, y in curves]
    if not curves or any(len(x) == 0 for x, _ in curves):
        return np.empty(0), np.empty(0)
    start, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    if start > end:
        return np.empty(0), np.empty(0)
    grid = np.linspace(start, end, num_points)
    return grid, np.mean([np.interp(grid, x, y) for x, y in curves], axis=0)


def plot_study(result: dict[str, Any], path: Path) -> None:
    """Draws a study's figure, one panel a variant.

    Args:
      result: as `learning.py` writes it.
      path: of the PNG.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    variants = result["variants"]
    columns = min(result["columns"], len(variants))
    rows = math.ceil(len(variants) / columns)
    size = (4.2 * columns, 2.9 * rows + 0.5)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, sharex=True, sharey=True)
    for axis in axes.flat[len(variants) :]:
        axis.remove()
    kind = "evaluation" if result["measure"] == "final" else "training"
    for axis, variant in zip(axes.flat, variants):
        _draw(axis, variant, kind, result["threshold"])
    for axis in axes[-1]:
        axis.set_xlabel("environment steps")
    for axis in axes[:, 0]:
        axis.set_ylabel("return")
    colours = "blue: training" if kind == "training" else "blue: greedy evaluation, grey: training"
    figure.suptitle(f"{result['title']}\n{colours}", fontsize=11)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw(axis, variant: dict[str, Any], kind: str, threshold: float | None) -> None:
    """One panel: nothing is drawn past the shortest seed's end but that seed's own thin line."""
    curves = [(run[kind]["env_steps"], run[kind]["episode_return"]) for run in variant["runs"]]
    if kind != "training":
        for run in variant["runs"]:
            axis.plot(run["training"]["env_steps"], run["training"]["episode_return"], color="0.75", linewidth=0.6)
    for x, y in curves:
        axis.plot(x, y, color="tab:blue", linewidth=0.8, alpha=0.6)
    if len(curves) > 1:
        axis.plot(*mean_curve(curves), color="tab:blue", linewidth=2.4)
    if threshold is not None:
        axis.axhline(threshold, color="0.3", linestyle="--", linewidth=1.0)
    count = len(curves)
    axis.set_title(f"{variant['label']} ({count} seed{'' if count == 1 else 's'})", fontsize=10)
    axis.ticklabel_format(axis="x", style="sci", scilimits=(0, 0))
    axis.grid(alpha=0.3)


def draw(result: dict[str, Any], path: Path) -> None:
    """Draws the figure of a study, as `learning.py` writes it, of learning or of speed."""
    (plot_speeds if result.get("varied") else plot_study)(result, path)


def plot_speeds(result: dict[str, Any], path: Path) -> None:
    """Draws the figure of a study of speed: steps per second beside training returns against steps.

    Args:
      result: as `learning.py` writes it.
      path: of the PNG.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(15.0, 4.6), layout="constrained")
    variants = [variant for variant in result["variants"] if variant["runs"]]
    colours = plt.get_cmap("turbo")(np.linspace(0.05, 0.95, len(variants)))
    _draw_speeds(left, variants, colours, result["varied"], "second")
    _draw_speeds(middle, variants, colours, result["varied"], "cpu_second")
    middle.set_ylabel("environment steps a second of processor")
    for variant, colour in zip(variants, colours):
        curves = [(run["training"]["env_steps"], run["training"]["episode_return"]) for run in variant["runs"]]
        for x, y in curves:
            right.plot(x, y, color=colour, linewidth=0.5, alpha=0.5)
        right.plot(*mean_curve(curves), color=colour, linewidth=2.0, label=variant["label"])
    if result["threshold"] is not None:
        right.axhline(result["threshold"], color="0.3", linestyle="--", linewidth=1.0)
    right.set(xlabel="environment steps", ylabel="return of training episodes")
    right.ticklabel_format(axis="x", style="sci", scilimits=(0, 0))
    right.grid(alpha=0.3)
    right.legend(fontsize=8)
    figure.suptitle(result["title"], fontsize=11)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_speeds(axis, variants: Sequence[dict[str, Any]], colours, varied: str, unit: str) -> None:
    """A line a series over what is a number, a bar a variant otherwise."""
    is_number = all(variant["at"] is not None for variant in variants)
    places = [variant["at"] if is_number else place for place, variant in enumerate(variants)]
    medians = [float(np.median(speeds.rates(variant, unit))) for variant in variants]
    for place, variant, colour in zip(places, variants, colours):
        rates = speeds.rates(variant, unit)
        axis.scatter([place] * len(rates), rates, color=[colour], s=22, zorder=3)
    if is_number:
        for series, style in zip(dict.fromkeys(variant["series"] for variant in variants), ("-", "--", ":")):
            line = sorted((places[i], medians[i]) for i, variant in enumerate(variants) if variant["series"] == series)
            axis.plot(*zip(*line), style, color="0.4", label=series)
        axis.set_xscale("log", base=2)
        axis.set_xticks(places, [f"{place:g}" for place in places])
        axis.set_xlabel(varied)
        axis.legend(fontsize=8)
    else:
        axis.bar(places, medians, color=colours, alpha=0.35)
        axis.set_xticks(places, [variant["label"] for variant in variants], rotation=20, ha="right", fontsize=8)
    axis.set_ylim(bottom=0)
    axis.set_ylabel("environment steps a second")
    axis.grid(alpha=0.3, axis="y")


def main() -> None:
    parser = argparse.ArgumentParser(description="Draws the figures of result files, beside them.")
    parser.add_argument("results", type=Path, nargs="+", metavar="RESULT.json")
    for path in parser.parse_args().results:
        draw(json.loads(path.read_text(encoding="utf-8")), path.with_suffix(".png"))


if __name__ == "__main__":
    main()
