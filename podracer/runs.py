"""The runs below a folder, from the files that they leave; needs no JAX and reads no whole metrics file."""

import datetime
import itertools
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

if TYPE_CHECKING:
    from rich.table import Table

# A run without a result that has written nothing for as long has died; rows come every few seconds.
QUIET_SECONDS = 300.0

# What is read of metrics.jsonl: about a hundred rows.
_TAIL_BYTES = 64 * 1024

# The C parser is eight times as fast.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Run(NamedTuple):
    """A run as its folder shows it; None where there is nothing to tell."""

    folder: Path
    agent: str
    env: str
    runner: str
    seed: int
    status: str  # of result.json: completed, interrupted, pruned, failed; without one: running or died
    env_steps: int | None
    final_return: float | None  # of the final evaluation
    latest_return: float | None  # of the latest evaluation, or of training where none was made
    best_return: float | None  # of the best evaluation
    started: float  # seconds since the epoch


def find_runs(folder: Path) -> list[Run]:
    """Lists the runs below a folder, or the one that it is, by the time of their start.

    Raises:
      FileNotFoundError: there is no such folder.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder; runs are kept in runs/ and multirun/ unless you say otherwise")
    return sorted(_walk(folder), key=lambda run: (run.started, str(run.folder)))


def to_json(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The runs as JSON has them, with `age_seconds` since their start."""
    now = time.time()
    return [{**run._asdict(), "folder": str(run.folder), "age_seconds": now - run.started} for run in runs]


def to_table(runs: Sequence[Run], root: Path) -> "Table":
    """The runs as a table, their folders relative to `root`."""
    from rich.markup import escape
    from rich.table import Table

    from podracer.console import human, number

    def shown(value: float | None, show: Any) -> str:
        return "-" if value is None else show(value)

    table = Table("run", "agent", "env", "runner", header_style="bold", box=None, pad_edge=False)
    table.columns[0].overflow = "fold"
    for name in ("seed", "status", "env steps", "return", "best", "age"):
        table.add_column(name, justify="left" if name == "status" else "right", no_wrap=True)
    colours = {"completed": "green", "running": "cyan", "failed": "red", "died": "red"}
    for run in runs:
        path = os.path.relpath(run.folder, root)
        colour = colours.get(run.status, "yellow")
        table.add_row(
            *map(escape, (path, run.agent, run.env, run.runner, str(run.seed))),
            f"[{colour}]{escape(run.status)}[/]",
            shown(run.env_steps, human),
            shown(run.latest_return, number),
            shown(run.best_return, number),
            age(time.time() - run.started),
        )
    return table


def age(seconds: float) -> str:
    """A time span in its greatest unit: 42 s, 17 min, 5.2 h, 3.1 d."""
    if seconds < 60:
        return f"{max(seconds, 0):.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 86400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} d"


def _walk(folder: Path) -> Iterator[Run]:
    for current, folders, files in os.walk(folder):
        run = _read(Path(current)) if "config.yaml" in files else None
        if run is not None:
            yield run
        # A run's own subfolders hold checkpoints and no runs.
        folders[:] = [] if run is not None else [name for name in folders if not name.startswith(".")]


def _read(folder: Path) -> Run | None:
    """Reads a run's folder; None if its `config.yaml` is that of something else."""
    try:
        config = yaml.load((folder / "config.yaml").read_text(encoding="utf-8"), Loader=_Loader)
        env, seed = config["env"], config["seed"]
        environment = env["make"] or "/".join(filter(None, (env["suite"], env["id"])))
        agent = config["agent"]["make"] if config["agent"]["name"] == "custom" else config["agent"]["name"]
        runner = config["runner"]["name"]
    except (OSError, ValueError, yaml.YAMLError, LookupError, TypeError):
        return None
    configured, logged = _modified(folder / "config.yaml"), _modified(folder / "metrics.jsonl")
    result = _read_mapping(folder / "result.json")
    if _modified(folder / "result.json") < logged:
        result = {}  # the run goes on from a checkpoint; this result is of the process before
    final_return = result.get("final_return")
    tail = _read_tail(folder / "metrics.jsonl") if final_return is None else _Tail()
    is_quiet = time.time() - max(configured, logged) > QUIET_SECONDS
    return Run(
        folder=folder,
        agent=str(agent),
        env=str(environment),
        runner=str(runner),
        seed=seed,
        status=str(result.get("status", "died" if is_quiet else "running")),
        env_steps=result.get("env_steps", tail.env_steps),
        final_return=final_return,
        latest_return=tail.latest_return if final_return is None else final_return,
        best_return=result.get("best_return", tail.best_return),
        started=_started(folder) or configured,
    )


class _Tail(NamedTuple):
    """What the end of a run's metrics says."""

    env_steps: int | None = None
    latest_return: float | None = None
    best_return: float | None = None  # known only where the tail is the whole


def _read_tail(path: Path) -> _Tail:
    lines, is_whole = _last_lines(path)
    # Few of the lines are parsed: that is what a thousand runs take their time for.
    evaluations = list(_rows(line for line in lines if b'"evaluation"' in line))
    newest = [*_rows(reversed(lines), 1), *evaluations[-1:]]
    returns = [row["episode_return"] for row in evaluations if row.get("episode_return") is not None]
    trained = (row["episode_return"] for row in _rows(reversed(lines)) if row.get("episode_return") is not None)
    return _Tail(
        env_steps=max((row.get("env_steps", 0) for row in newest), default=None),
        latest_return=returns[-1] if returns else next(trained, None),
        best_return=max(returns) if is_whole and returns else None,
    )


def _rows(lines: Iterable[bytes], count: int | None = None) -> Iterator[dict[str, Any]]:
    """The first rows among lines, as many as are asked for; lines that are incomplete are left out."""
    parsed = filter(None, map(_parse, lines))
    return itertools.islice(parsed, count)


def _last_lines(path: Path) -> tuple[list[bytes], bool]:
    """The last lines of a file, and whether they are all of them."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _TAIL_BYTES, 0))
            return file.read().splitlines(), size <= _TAIL_BYTES
    except OSError:
        return [], False


def _parse(text: bytes) -> dict[str, Any]:
    """A JSON object; empty where it is damaged."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _read_mapping(path: Path) -> dict[str, Any]:
    """A file that is one JSON object; empty where there is none, or where it is damaged."""
    try:
        return _parse(path.read_bytes())
    except OSError:
        return {}


def _started(folder: Path) -> float | None:
    try:
        return datetime.datetime.fromisoformat(_read_mapping(folder / "provenance.json")["started"]).timestamp()
    except (LookupError, TypeError, ValueError):
        return None


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
