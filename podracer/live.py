"""The live panel of a run: how far it is, how fast, how good, and where its time goes."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import rich.live
from rich.console import Console as Terminal
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from podracer.console import Progress, duration, human, number, result_entries
from podracer.logging import Row

if TYPE_CHECKING:
    from podracer.parallel.mesh import Plan

# What the threads of a runner do; their timings are means over the threads.
ACTIVITIES = {
    "env_seconds": "environment",
    "act_seconds": "acting",
    "actor_wait_seconds": "actors wait",
    "learn_seconds": "learning",
    "learner_wait_seconds": "learner waits",
}

_WIDTH = 110  # wider panels are harder to read
_BAR_WIDTH = 16
_MAX_METRICS = 9
_STATUS_STYLES = {
    "completed": "bold green",
    "interrupted": "bold yellow",
    "pruned": "bold yellow",
    "failed": "bold red",
}


class Live:
    """A panel that redraws itself four times a second below whatever is printed meanwhile.

    A thread of its own draws it, so what is drawn is replaced as a whole and never changed in place.
    """

    def __init__(
        self,
        file: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        width: int | None = None,
    ):
        self._terminal = Terminal(file=file, force_terminal=True, width=width, highlight=False)
        self._clock = clock
        self._spinner = Spinner("dots", style="cyan")
        self._live: rich.live.Live | None = None
        self._is_running = True
        self._phase = ("starting", clock())  # its name, and when it began

    def start(self, plan: "Plan", title: str) -> None:
        self._title = title
        self._began = self._clock()
        self._progress = Progress(plan)
        self._live = rich.live.Live(console=self._terminal, get_renderable=self._panel, refresh_per_second=4)
        self._live.start(refresh=True)

    def phase(self, name: str) -> None:
        if name != self._phase[0]:
            self._phase = (name, self._clock())

    def report(self, row: Row) -> None:
        self.phase("training")
        self._progress = self._progress.report(row)

    def evaluation(self, row: Row) -> None:
        self.phase("training")
        self._progress = self._progress.evaluation(row)

    def finish(self, result: Mapping[str, Any], folder: Path | None) -> None:
        self.phase(str(result["status"]))
        self.close()
        table = _grid(2)
        for name, text in result_entries(result, folder):
            style = _STATUS_STYLES.get(text, "") if name == "status" else ""
            table.add_row(Text(name, "dim"), Text(text, style, overflow="fold"))
        self._terminal.print(Panel(table, title="result", title_align="left", expand=False, border_style="dim"))

    def close(self) -> None:
        self._is_running = False
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _panel(self) -> RenderableType:
        progress = self._progress
        parts = [self._head(progress)]
        if progress.last:
            figures, bars = _figures(progress), _time_bars(progress.values)
            parts += ["", _columns(figures, bars) if bars else figures, *_metrics(progress.values)]
        # In a full line the terminal's own "^C" would wrap, and the panel would be redrawn a line too low.
        width = min(self._terminal.width - len("^C"), _WIDTH)
        title = Text(self._title, "bold")
        return Panel(Group(*parts), title=title, title_align="left", width=width, border_style="cyan")

    def _head(self, progress: Progress) -> RenderableType:
        now, (name, began) = self._clock(), self._phase
        phase = Text(name, _STATUS_STYLES.get(name, "cyan"))
        if self._is_running and name != "training":
            phase.append(f", {now - began:.0f} s", "dim")
        status = _grid(2)
        status.add_row(self._spinner if self._is_running else " ", phase)
        if not progress.last:
            return status
        eta = "-:--:--" if progress.eta_seconds is None else duration(progress.eta_seconds)
        counts = f"{progress.steps_text} steps   {progress.updates:,}/{progress.plan.updates:,} updates"
        head = Table.grid(expand=True, padding=(0, 2))
        head.add_column(ratio=1)
        head.add_column(justify="right")
        head.add_row(status, Text(counts, no_wrap=True))
        bar = ProgressBar(total=1.0, completed=progress.fraction, complete_style="cyan", finished_style="green")
        clocks = f"{100 * progress.fraction:5.1f}%   {duration(now - self._began)} gone   {eta} left"
        head.add_row(bar, Text(clocks, no_wrap=True))
        return head


def _figures(progress: Progress) -> RenderableType:
    """How fast and how good the run is."""
    values = progress.values
    table = _grid(3)

    def add(name: str, value: str, note: str = "") -> None:
        table.add_row(Text(name, "dim"), Text(value, "bold"), Text(note, "dim"))

    add("steps/s", human(values["steps_per_second"]), f"mean {human(progress.mean_steps_per_second)}")
    if progress.returns:
        add("return", number(progress.returns[-1]), _sparkline(progress.returns))
    if "episode_length" in values:
        add("length", number(values["episode_length"]), "steps")
    if progress.best_evaluation is not None:
        add("evaluation", number(progress.best_evaluation), "best")
    if "policy_lag_mean" in values:
        add("policy lag", f"{values['policy_lag_mean']:.1f}", f"updates, at most {values['policy_lag_max']:g}")
    return table


def _time_bars(values: Mapping[str, float]) -> RenderableType | None:
    """Each activity's share of the time; they run side by side, so the shares need not add up to 1."""
    present = [key for key in ACTIVITIES if key in values]
    if not present:
        return None
    table = _grid(3)
    for key in present:
        share = values[key] / max(values["train_seconds"], 1e-9)
        bar = ProgressBar(total=1.0, completed=min(share, 1.0), width=_BAR_WIDTH, complete_style="magenta")
        table.add_row(Text(ACTIVITIES[key], "dim"), bar, f"{100 * share:3.0f}%")
    return table


def _metrics(values: Mapping[str, float]) -> list[RenderableType]:
    """What the agent itself measures: losses, entropy, ..."""
    shown_elsewhere = ("episode", "steps_per_second", "policy_lag")
    names = [key for key in values if not key.startswith(shown_elsewhere) and not key.endswith("_seconds")]
    if not names:
        return []
    table = Table.grid(expand=True, padding=(0, 2))
    for _ in range(3):
        table.add_column(ratio=1)
    cells = [_named(name, number(values[name])) for name in names[:_MAX_METRICS]]
    for first in range(0, len(cells), 3):
        table.add_row(*cells[first : first + 3])
    return ["", table]


def _named(name: str, value: str) -> RenderableType:
    cell = Table.grid(expand=True, padding=(0, 1))
    cell.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    cell.add_column(justify="right", no_wrap=True)
    cell.add_row(Text(name, "dim"), value)
    return cell


def _columns(left: RenderableType, right: RenderableType) -> RenderableType:
    table = Table.grid(expand=True, padding=(0, 2))
    table.add_column(ratio=1)
    table.add_column()
    table.add_row(left, right)
    return table


def _grid(num_columns: int) -> Table:
    table = Table.grid(padding=(0, 1))
    for _ in range(num_columns):
        table.add_column()
    return table


def _sparkline(values: Sequence[float]) -> str:
    """A curve in one line of text, from the lowest of its values to the highest."""
    blocks = "▁▂▃▄▅▆▇█"
    low, high = min(values), max(values)
    scale = (len(blocks) - 1) / ((high - low) or 1.0)
    return "".join(blocks[round((value - low) * scale)] for value in values)
