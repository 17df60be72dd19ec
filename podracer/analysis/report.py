"""The report of a comparison: Markdown with figures beside it, and one HTML page that needs nothing else."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from podracer.analysis import comparison, page, plotting
from podracer.analysis.comparison import Duel, Standing
from podracer.analysis.curves import Logged
from podracer.analysis.page import Table
from podracer.analysis.plotting import Style
from podracer.analysis.statistics import Estimate
from podracer.logging import write_text


class Figure(NamedTuple):
    heading: str
    name: str  # of its file, without suffix
    style: Style


def write(
    groups: Mapping[str, Sequence[Logged]], folder: Path, style: Style, threshold: float | None = None
) -> list[Path]:
    """Writes `report.md`, its PNG figures, and `report.html` into a folder.

    Args:
      groups: of runs.
      folder: made if it is not there.
      style: of the figures over environment steps; the others follow it.
      threshold: return that counts as solved.

    Returns:
      What was written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables = make_tables(groups, style, threshold)
    markdown, parts, paths = ["# Comparison", ""], [], []
    for figure in _figures(style):
        drawn = plotting.lines(groups, figure.style)
        if not drawn:
            continue
        path = folder / f"{figure.name}.png"
        plotting.draw(drawn, figure.style, path)
        markdown += [f"## {figure.heading}", "", f"![{figure.heading}]({path.name})", ""]
        parts.append(page.figure_part(figure.heading, drawn, figure.style))
        paths.append(path)
    for table in tables:
        markdown += [f"## {table.heading}", "", *_to_markdown(table), ""]
        parts.append(page.table_part(table))
    write_text(folder / "report.md", "\n".join(markdown))
    write_text(folder / "report.html", page.document("Comparison", parts))
    return [folder / "report.md", folder / "report.html", *paths]


def make_tables(groups: Mapping[str, Sequence[Logged]], style: Style, threshold: float | None) -> list[Table]:
    """All tables, one of each kind for every environment."""
    result = []
    against = comparison.duels(groups, style.statistic, style.resamples)
    for env, found in comparison.standings(groups, style.statistic, threshold).items():
        result.append(_standings_table(env, found, style, threshold))
        if against.get(env):
            result.append(_duels_table(env, against[env], style))
        if any(standing.shares for standing in found):
            result.append(_shares_table(env, found))
    return result


def _figures(style: Style) -> list[Figure]:
    figures = [
        Figure("Return against environment steps", "return_env_steps", style),
        Figure("Return against wall-clock", "return_seconds", dataclasses.replace(style, x="wall_seconds")),
    ]
    if style.usd_per_hour is not None:
        figures.append(Figure("Return against cost", "return_usd", dataclasses.replace(style, x="usd")))
    return figures


def _standings_table(env: str, found: Sequence[Standing], style: Style, threshold: float | None) -> Table:
    columns = ["group", "runs", f"final return ({style.statistic})", f"{style.confidence:.0%} interval", "steps/s"]
    columns += ["policy lag, mean (max)"]
    if threshold is not None:
        columns += [f"steps to {threshold:g}", f"seconds to {threshold:g}"]
    rows = []
    for standing in found:
        runs = f"{standing.num_runs}"
        if standing.num_unfinished:
            runs += f", {standing.num_unfinished} unfinished"
        lag = "-"
        if standing.policy_lag_mean is not None:
            lag = f"{standing.policy_lag_mean:.2f} ({standing.policy_lag_max:.0f})"
        final = standing.final_return
        row = [standing.group, runs, _number(final and float(final.value)), _interval(final)]
        row += [_number(standing.steps_per_second), lag]
        if threshold is not None:
            row += [_reached(standing.env_steps_to_threshold), _reached(standing.seconds_to_threshold)]
        rows.append(row)
    return Table(env, columns, rows)


def _duels_table(env: str, found: Sequence[Duel], style: Style) -> Table:
    rows = [
        [
            duel.better,
            duel.worse,
            _number(float(duel.difference.value)),
            _interval(duel.difference),
            f"{duel.probability:.0%}",
            _verdict(duel),
        ]
        for duel in found
    ]
    columns = [
        "best",
        "against",
        "difference",
        f"{style.confidence:.0%} interval",
        "wins a run against a run",
        "verdict",
    ]
    return Table(f"{env}: who wins", columns, rows)


def _shares_table(env: str, found: Sequence[Standing]) -> Table:
    activities = list(dict.fromkeys(name for standing in found for name in standing.shares))
    rows = [
        [standing.group, *(f"{standing.shares[name]:.0%}" if name in standing.shares else "-" for name in activities)]
        for standing in found
        if standing.shares
    ]
    return Table(f"{env}: share of the time (actors and learner side by side)", ["group", *activities], rows)


def _verdict(duel: Duel) -> str:
    if duel.difference.low is None:
        return "one run says nothing"
    return "better" if duel.difference.low > 0 else "not told apart"


def _interval(value: Estimate | None) -> str:
    return "-" if value is None or value.low is None else f"{value.low:.4g} to {value.high:.4g}"


def _reached(times: Sequence[float | None]) -> str:
    """The median of the runs that got there, and how many did."""
    there = [time for time in times if time is not None]
    return (
        f"{_number(float(np.median(there)))} ({len(there)} of {len(times)})" if there else f"never (0 of {len(times)})"
    )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _to_markdown(table: Table) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(table.columns), line(["---"] * len(table.columns)), *map(line, table.rows)]
