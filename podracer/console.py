"""What a run says on the terminal: a live panel (`podracer.live`), plain lines, or nothing."""

import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from podracer.logging import LoggerConfig, Row

if TYPE_CHECKING:
    from podracer.parallel.mesh import Plan


class Console(Protocol):
    """Shows a run to whoever watches it. Called from one thread, in the order of these methods."""

    def start(self, plan: "Plan", title: str) -> None:
        """Begins to show a run; the title says agent, environment, runner and devices."""
        ...

    def phase(self, name: str) -> None:
        """Says what the run does from now on, "compiling the training program"; a report ends it."""
        ...

    def report(self, row: Row) -> None:
        """Shows a row of training metrics, named as `podracer.logging.train_values` names them."""
        ...

    def evaluation(self, row: Row) -> None:
        """Shows an evaluation: `episode_return`, and `episode_return_std` and `episodes` if given."""
        ...

    def finish(self, result: Mapping[str, Any], folder: Path | None) -> None:
        """Shows the result of a run, in the keys of `result.json` (and `final_return_std`), and closes."""
        ...

    def close(self) -> None:
        """Leaves the terminal as it was found; may be called at any time, also twice."""
        ...


def make_console(config: LoggerConfig, *, is_writer: bool = True, file: TextIO | None = None) -> Console:
    """Makes the console that `logger.console` asks for.

    Args:
      config: which one.
      is_writer: True in the one process of a run that speaks; the others are silent.
      file: where to print; standard output if None.
    """
    kind = config.console if is_writer else "none"
    if kind == "auto":
        kind = "live" if _is_live_terminal(file or sys.stdout) else "plain"
    if kind == "none":
        return Silent()
    if kind == "plain":
        return Plain(config.console_period_seconds, file)
    from podracer.live import Live

    return Live(file)


class Silent:
    """Shows nothing."""

    def start(self, plan: "Plan", title: str) -> None:
        del plan, title

    def phase(self, name: str) -> None:
        del name

    def report(self, row: Row) -> None:
        del row

    def evaluation(self, row: Row) -> None:
        del row

    def finish(self, result: Mapping[str, Any], folder: Path | None) -> None:
        del result, folder

    def close(self) -> None:
        pass


class Plain:
    """One aligned line every few seconds, in ASCII: for logs, pipes and batch systems."""

    def __init__(self, period_seconds: float, file: TextIO | None = None, clock: Callable[[], float] = time.monotonic):
        self._period_seconds = period_seconds
        self._file = file
        self._clock = clock
        self._last_seconds = -float("inf")
        self._unshown = False
        self._phases: set[str] = {"training"}

    def start(self, plan: "Plan", title: str) -> None:
        self._progress = Progress(plan)
        self._print(title)

    def phase(self, name: str) -> None:
        if name not in self._phases:  # a phase that comes again and again is announced once
            self._phases.add(name)
            self._print(f"{name} ...")

    def report(self, row: Row) -> None:
        self._progress = self._progress.report(row)
        self._unshown = True
        if self._clock() - self._last_seconds >= self._period_seconds:
            self._show()

    def evaluation(self, row: Row) -> None:
        self._progress = self._progress.evaluation(row)
        self._print(f"evaluation at {human(row.env_steps)} steps: {evaluation_text(row.values)}")

    def finish(self, result: Mapping[str, Any], folder: Path | None) -> None:
        if self._unshown:
            self._show()
        for name, text in result_entries(result, folder):
            self._print(f"{name:<14}{text}")

    def close(self) -> None:
        pass

    def _show(self) -> None:
        progress, values = self._progress, self._progress.values
        parts = [f"{100 * progress.fraction:5.1f}%", f"{progress.steps_text:>11} steps"]
        parts.append(f"{human(values['steps_per_second']):>5} steps/s")
        if "episode_return" in values:
            parts.append(f"return {number(values['episode_return']):>6}")
        if "episode_length" in values:
            parts.append(f"length {number(values['episode_length']):>5}")
        if "policy_lag_mean" in values:
            parts.append(f"lag {values['policy_lag_mean']:.1f}")
        if progress.eta_seconds is not None:
            parts.append(f"eta {duration(progress.eta_seconds)}")
        self._print("  ".join(parts))
        self._last_seconds, self._unshown = self._clock(), False

    def _print(self, text: str) -> None:
        print(text, file=self._file, flush=True)


@dataclass(frozen=True)
class Progress:
    """What the rows of a run so far amount to."""

    plan: "Plan"
    first: Row | None = None
    last: Row | None = None
    train_seconds: float = 0.0
    trained_steps: float = 0.0
    values: Mapping[str, float] = field(default_factory=dict)  # a key that is absent from a row keeps its last value
    returns: tuple[float, ...] = ()  # means of the latest chunks in which an episode ended
    best_evaluation: float | None = None

    def report(self, row: Row) -> "Progress":
        seconds, latest = row.values["train_seconds"], row.values.get("episode_return", math.nan)
        return replace(
            self,
            first=self.first or row,
            last=row,
            train_seconds=self.train_seconds + seconds,
            trained_steps=self.trained_steps + seconds * row.values["steps_per_second"],
            values={**self.values, **row.values},
            returns=(*self.returns, latest)[-16:] if math.isfinite(latest) else self.returns,
        )

    def evaluation(self, row: Row) -> "Progress":
        latest = row.values["episode_return"]
        return replace(
            self, best_evaluation=max(latest, latest if self.best_evaluation is None else self.best_evaluation)
        )

    @property
    def updates(self) -> int:
        return self.last.updates if self.last else 0

    @property
    def fraction(self) -> float:
        """Share of the budget done, in [0, 1]. The budget counts slots, of which resets are some."""
        return self.updates / max(self.plan.updates, 1)

    @property
    def steps_text(self) -> str:
        """The budget used and the whole of it, "1.23M/10.0M"."""
        return f"{human(self.fraction * self.plan.total_env_steps)}/{human(self.plan.total_env_steps)}"

    @property
    def mean_steps_per_second(self) -> float:
        return self.trained_steps / max(self.train_seconds, 1e-9)

    @property
    def eta_seconds(self) -> float | None:
        """Time left at the pace since the first report, evaluations included; None before the second."""
        if self.first is None or self.last is None or self.last.updates == self.first.updates:
            return None
        pace = (self.last.wall_seconds - self.first.wall_seconds) / (self.last.updates - self.first.updates)
        return pace * max(self.plan.updates - self.updates, 0)


def result_entries(result: Mapping[str, Any], folder: Path | None) -> Sequence[tuple[str, str]]:
    """The names and texts of a result, without those that it has nothing to tell of."""

    def text(key: str, show: Callable[[Any], str]) -> str:
        return "" if result.get(key) is None else show(result[key])

    spread = text("final_return_std", lambda value: f" +- {value:.3g}")
    largest_lag = text("policy_lag_max", lambda value: f", at most {value:g}")
    entries = [
        ("status", text("status", str)),
        ("env steps", text("env_steps", "{:,}".format)),
        ("updates", text("updates", "{:,}".format)),
        ("episodes", text("episodes", "{:,}".format)),
        ("train time", text("train_seconds", _took)),
        ("compile time", text("compile_seconds", _took)),
        ("speed", text("steps_per_second", lambda value: f"{human(value)} steps/s")),
        ("final return", text("final_return", lambda value: number(value) + spread)),
        ("best return", text("best_return", number)),
        ("policy lag", text("policy_lag_mean", lambda value: f"{value:.1f} updates{largest_lag}")),
        ("advice", text("advice", str)),
        ("folder", "" if folder is None else str(folder)),
    ]
    return [(name, shown) for name, shown in entries if shown]


def evaluation_text(values: Mapping[str, float]) -> str:
    """An evaluation in words, "return 198.2 +- 3.1 over 128 episodes"."""
    text = f"return {number(values['episode_return'])}"
    if "episode_return_std" in values:
        text += f" +- {values['episode_return_std']:.3g}"
    if "episodes" in values:
        text += f" over {values['episodes']:.0f} episodes"
    return text


def human(count: float) -> str:
    """A count in at most five characters: 999, 1.23k, 182k, 10.0M, 2.15B."""
    if abs(count) < 999.5:
        return f"{count:.0f}"
    exponent = 0
    while abs(count) >= 999.5 and exponent < 4:
        count, exponent = count / 1000, exponent + 1
    return f"{count:#.3g}".rstrip(".") + " kMBT"[exponent]


def number(value: float) -> str:
    """A measured value in four digits: 0.9512, 195.0, -12.3k, 1.20e-05."""
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 9999.5:
        return human(value)
    if 0 < abs(value) < 1e-3:
        return f"{value:.2e}"
    return f"{value:#.4g}".rstrip(".")


def duration(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


def _took(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 59.95 else duration(seconds)


def _is_live_terminal(file: TextIO) -> bool:
    """Whether a panel can be drawn over itself: a terminal that moves its cursor and knows Unicode."""
    can_draw = os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    return file.isatty() and can_draw and (file.encoding or "").lower().startswith("utf")
