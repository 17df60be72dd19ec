"""Text files that grow by a line at a time and are cut back where a run goes on from a checkpoint."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path


def rewrite(path: Path, change: Callable[[Iterator[str]], Iterable[str]]) -> None:
    """Replaces the lines of a file in one stroke: a reader finds all of the new ones, or the old ones.

    Args:
      path: the file; nothing happens where there is none.
      change: from its complete lines, each with its line end, to the new ones. A last line without
        an end, which a killed process leaves, is not among them.
    """
    if not path.exists():
        return
    partial = path.with_name(f".{path.name}.partial")
    with (
        open(path, encoding="utf-8", errors="replace", newline="") as old,
        open(partial, "w", encoding="utf-8", newline="") as new,
    ):
        new.writelines(change(line for line in old if line.endswith("\n")))
        new.flush()
        os.fsync(new.fileno())
    os.replace(partial, path)
