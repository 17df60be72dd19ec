"""`podracer plot` and `podracer compare`: curves, scores and a report of the runs in some folders."""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from podracer.analysis import export, plotting, report
from podracer.analysis.curves import KINDS, X_AXES, Logged, check_x, differing_keys, group, read_runs, scores
from podracer.analysis.plotting import Style
from podracer.analysis.statistics import STATISTICS, estimate
from podracer.conversion import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

_GROUPED_BY = "agent.name,runner.name"


def plot(arguments: Sequence[str]) -> int:
    """Runs the command; returns the exit status."""
    options = _plot_parser().parse_args(arguments)
    check_x(options.x, options.usd_per_hour)
    runs = _read(options.folders)
    groups = group(runs, [key for key in options.group_by.split(",") if key])
    style = dataclasses.replace(_style(options), x=options.x, y=options.y, kind=options.kind)
    drawn = plotting.lines(groups, style)
    if not drawn:
        metrics = sorted(
            {name for logged in runs for row in logged.rows if row["kind"] == options.kind for name in row}
        )
        print(
            f"podracer: none of {len(runs)} runs has {options.y!r} in its {options.kind} rows; there are "
            f"{', '.join(metrics) or 'no such rows'}",
            file=sys.stderr,
        )
        return 2
    plotting.draw(drawn, style, options.out)
    _print_scores(groups, style)
    _tell_of_mixtures(groups)
    print(f"{options.out}: {plotting.describe(style)}")
    if options.rliable:
        export.write_rliable(groups, options.rliable)
        print(f"{options.rliable}: final returns for rliable")
    if options.marl_eval:
        export.write_marl_eval(groups, options.marl_eval)
        print(f"{options.marl_eval}: evaluations for marl-eval")
    return 0


def compare(arguments: Sequence[str], train: Callable[[list[str]], int]) -> int:
    """Runs the command; returns the exit status.

    Args:
      arguments: folders of runs, and overrides of runs that are to be made first.
      train: `podracer train`, which makes them.
    """
    options = _compare_parser().parse_args(arguments)
    overrides = [text for text in options.what if "=" in text]
    folders = [Path(text) for text in options.what if "=" not in text]
    status = 0
    if overrides:
        # The same command again makes only the runs that are missing.
        made = options.out / "runs"
        status = train(["-m", *overrides, f"hydra.sweep.dir={made}", "resume=auto"])
        folders.append(made)
    if not folders:
        raise ConfigError(
            "there is nothing to compare: give folders of runs, or overrides such as agent=ppo,pqn seed=0,1,2"
        )
    groups = group(_read(folders), [key for key in options.group_by.split(",") if key])
    for path in report.write(groups, options.out, _style(options), options.threshold):
        print(path)
    _tell_of_mixtures(groups)
    return status


def score_table(groups: Mapping[str, Sequence[Logged]], style: Style) -> "Table":
    """The final returns of every group in every environment."""
    from rich.table import Table

    table = Table("environment", "group", header_style="bold", box=None, pad_edge=False)
    for name in ("runs", f"final return ({style.statistic})", "interval", "least", "greatest"):
        table.add_column(name, justify="right", no_wrap=True)
    returns = scores(groups)
    for env in sorted({env for by_env in returns.values() for env in by_env}):
        for label, by_env in returns.items():
            if env not in by_env:
                continue
            values = by_env[env]
            result = estimate([values], STATISTICS[style.statistic], confidence=style.confidence)
            interval = "-" if result.low is None else f"{result.low:.4g} to {result.high:.4g}"
            row = (str(len(values)), f"{result.value:.4g}", interval, f"{min(values):.4g}", f"{max(values):.4g}")
            table.add_row(env, label, *row)
    return table


def _print_scores(groups: Mapping[str, Sequence[Logged]], style: Style) -> None:
    from rich.console import Console

    table = score_table(groups, style)
    if table.row_count:
        Console(width=None if sys.stdout.isatty() else 10_000).print(table)


def _tell_of_mixtures(groups: Mapping[str, Sequence[Logged]]) -> None:
    """Says where a line is of runs that differ in more than their seeds."""
    for label, runs in groups.items():
        for env in sorted({logged.run.env for logged in runs}):
            of_env = [logged for logged in runs if logged.run.env == env]
            if keys := differing_keys(of_env):
                shown = ", ".join(keys[:4]) + (f" and {len(keys) - 4} more" if len(keys) > 4 else "")
                print(f"podracer: {label} on {env} mixes runs that differ in {shown}: --group-by tells them apart")


def _read(folders: Sequence[Path]) -> list[Logged]:
    try:
        return read_runs(folders)
    except FileNotFoundError as error:
        raise ConfigError(str(error)) from error


def _style(options: argparse.Namespace) -> Style:
    return Style(
        statistic=options.statistic,
        smoothing=options.smooth,
        confidence=options.confidence,
        resamples=options.resamples,
        usd_per_hour=options.usd_per_hour,
    )


def _plot_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "podracer plot",
        description="Draws the learning curves of all runs in and below some folders, one panel an environment, "
        "and prints their final returns.",
    )
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=Path("plot.png"), help="PNG, PDF or SVG (default: plot.png)")
    parser.add_argument("--x", default="env_steps", help=f"{', '.join(X_AXES)} (default: env_steps)")
    parser.add_argument("--y", default="episode_return", metavar="METRIC", help="default: episode_return")
    parser.add_argument("--kind", choices=KINDS, default="evaluation", help="rows of evaluations, or of training")
    parser.add_argument("--rliable", type=Path, metavar="FILE.npz", help="write final returns in rliable's form, too")
    parser.add_argument(
        "--marl-eval", type=Path, metavar="FILE.json", help="write evaluations in marl-eval's form, too"
    )
    _add_style(parser)
    return parser


def _compare_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "podracer compare",
        description="Reports on the runs in and below some folders: Markdown, figures, and one HTML page. With "
        "overrides, such as agent=ppo,pqn runner=anakin,sebulba seed=0,1,2, makes the runs first, in OUT/runs.",
    )
    parser.add_argument("what", nargs="+", metavar="FOLDER | KEY=VALUE,...")
    parser.add_argument("--out", type=Path, default=Path("comparison"), help="folder (default: comparison)")
    parser.add_argument("--threshold", type=float, metavar="RETURN", help="that counts as solved")
    _add_style(parser)
    return parser


def _add_style(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--group-by",
        default=_GROUPED_BY,
        metavar="KEYS",
        help=f"settings, with commas between (default: {_GROUPED_BY})",
    )
    parser.add_argument("--statistic", choices=list(STATISTICS), default="iqm", help="over runs (default: iqm)")
    parser.add_argument("--smooth", type=_positive, default=1, metavar="N", help="average over N points (default: 1)")
    parser.add_argument("--confidence", type=_share, default=0.95, metavar="P", help="of intervals (default: 0.95)")
    parser.add_argument("--resamples", type=_positive, default=2000, metavar="N", help="of the bootstrap")
    parser.add_argument("--usd-per-hour", type=float, metavar="PRICE", help="of the machine, for costs")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not positive")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not between 0 and 1")
    return value
