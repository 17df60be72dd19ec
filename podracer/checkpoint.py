"""What a run leaves on disk to go on from, or to act with: checkpoints by Orbax, complete or not there.

    RUN_FOLDER/checkpoints/UPDATES/policy   the actors' parameters
                                   state    everything else that the run's future depends on
                                   meta     counters, as JSON

A checkpoint is written beside its place and renamed, so a process that is killed leaves the one before.
"""

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax

from podracer.trees import Arrays, from_arrays, to_arrays
from podracer.types import ArrayTree, PolicySnapshot

# Raised with every change of what a checkpoint contains or means.
FORMAT = 1

# Orbax counts the saves of a process and waits for one by its number: no two may begin at a time.
_BEGINNING = threading.Lock()

_FOLDER = "checkpoints"
_POLICY, _STATE, _META = "policy", "state", "meta"


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When a run is saved, beside its evaluations and its end. See `podracer train resume=...`."""

    enabled: bool = True
    """Whether the whole run is saved, to be resumed; False saves the actors' parameters only."""
    period_seconds: float | None = 600.0
    """Most seconds of wall time between two checkpoints; None is no such limit."""
    period_env_steps: int | None = None
    """Most environment steps between two checkpoints; None is no such limit."""
    keep_latest: int = 1
    """How many of the newest checkpoints are kept."""
    keep_best: int = 1
    """How many of those with the best evaluation return are kept beside; 0 keeps none."""

    def __post_init__(self):
        for name, least in {"keep_latest": 1, "keep_best": 0}.items():
            if getattr(self, name) < least:
                raise ValueError(f"checkpoint.{name}={getattr(self, name)} is too small; use at least {least}")
        for name in ("period_seconds", "period_env_steps"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"checkpoint.{name}={value} is not positive; use null for no limit")


class Saved(NamedTuple):
    """A checkpoint that was read."""

    updates: int
    policy: Arrays
    state: Arrays | None  # None where it was not asked for
    meta: Mapping[str, Any]


class Checkpoints:
    """Writes the checkpoints of a run, in the background, and deletes what need not be kept."""

    def __init__(self, folder: Path, config: CheckpointConfig, best: Sequence[tuple[float, int]] = ()):
        """Touches no file yet.

        Args:
          folder: of the run.
          config: what is kept.
          best: the best returns of a run that goes on, and the updates of their checkpoints.
        """
        self._folder = folder
        self._config = config
        self._best = [(float(value), int(updates)) for value, updates in best]
        self._latest: list[int] = []
        self._manager = None

    def save(
        self,
        updates: int,
        policy: PolicySnapshot,
        state: ArrayTree | None,
        meta: Mapping[str, Any],
        episode_return: float | None = None,
    ) -> None:
        """Copies everything to the host, and has it written while training goes on.

        Args:
          updates: done so far.
          policy: the actors' parameters after them.
          state: of the runner after them; None saves the parameters alone.
          meta: plain values.
          episode_return: of an evaluation of these parameters, if there was one.

        Raises:
          Exception: what Orbax raises where the disk is full or cannot be written, for this checkpoint or the
            one before, which is written in the background. Checkpoints that were complete stay so.
        """
        import orbax.checkpoint as ocp  # two seconds, needed only here

        if self._manager is None:
            self._manager = _make_manager(self._folder, self._is_kept)
        if episode_return is not None:
            self.rate(updates, episode_return)
        self._latest = [*self._latest, updates][-self._config.keep_latest :]
        meta = {**meta, "format": FORMAT, "updates": updates, "best": self._best}
        items = {_POLICY: ocp.args.StandardSave(to_arrays(policy)), _META: ocp.args.JsonSave(meta)}
        if state is not None:
            items[_STATE] = ocp.args.StandardSave(to_arrays(state))
        with self._explained(), _BEGINNING:
            self._manager.save(updates, args=ocp.args.Composite(**items), force=True)

    def rate(self, updates: int, episode_return: float) -> None:
        """Notes what an evaluation of a checkpoint returned: the best are kept."""
        if math.isfinite(episode_return):
            # Of equal returns the later: it has seen more.
            best = {*self._best, (episode_return, updates)}
            self._best = sorted(best, reverse=True)[: self._config.keep_best]

    def close(self) -> None:
        """Waits until the last checkpoint is complete; raises as `save` does."""
        if self._manager is not None:
            with self._explained():
                self._manager.wait_until_finished()
            self._manager.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            error.add_note(
                f"a checkpoint could not be written to {_path(self._folder)}; the newest complete one is "
                f"{latest(self._folder) or 'none'}"
            )
            raise

    def _is_kept(self, updates: int) -> bool:
        return updates in self._latest or updates in [best for _, best in self._best]


def latest(folder: Path) -> int | None:
    """The updates behind the newest complete checkpoint of a run; None if there is none."""
    steps = _complete(folder)
    return steps[-1] if steps else None


def load(folder: Path, which: int | str = "latest", *, with_state: bool = False) -> Saved:
    """Reads a checkpoint of a run.

    Args:
      folder: of the run.
      which: `latest`, `best`, or a number of updates.
      with_state: whether to read the whole state; the actors' parameters are always read.

    Raises:
      FileNotFoundError: there is no such checkpoint.
      ValueError: it is of a format that this version does not read, or has no state.
    """
    import orbax.checkpoint as ocp

    steps = _complete(folder)
    if not steps:
        raise FileNotFoundError(f"{folder} holds no checkpoint; one is written with every evaluation and at the end")
    updates = steps[-1] if isinstance(which, str) else which
    if updates not in steps:
        raise FileNotFoundError(f"{folder} holds no checkpoint {which}; there are {', '.join(map(str, steps))}")
    meta = _read(folder, updates, **{_META: ocp.args.JsonRestore()})[_META]
    _check_format(meta, folder, updates)
    if which == "best" and meta["best"]:
        return load(folder, meta["best"][0][1], with_state=with_state)
    items = {_POLICY: ocp.args.StandardRestore()}
    if with_state:
        if not (_path(folder) / str(updates) / _STATE).exists():
            raise ValueError(
                f"checkpoint {updates} of {folder} holds parameters only (checkpoint.enabled=false), so the run "
                "cannot go on from it"
            )
        items[_STATE] = ocp.args.StandardRestore()
    read = _read(folder, updates, **items)
    return Saved(updates, read[_POLICY], read[_STATE] if with_state else None, meta)


def restore_policy(folder: Path, example: PolicySnapshot, which: int | str = "latest") -> PolicySnapshot:
    """Reads the actors' parameters of a checkpoint, onto the first device whatever they were trained on.

    Args:
      folder: of the run.
      example: shapes and dtypes, as `jax.eval_shape` gives them.
      which: as of `load`.

    Raises:
      FileNotFoundError: if the run has left none.
      ValueError: if what it left has another structure or format.
    """
    return policy_from(load(folder, which).policy, example)


def policy_from(arrays: Arrays, example: PolicySnapshot) -> PolicySnapshot:
    """Puts the actors' parameters of a checkpoint that was read onto the first device; see `restore_policy`."""
    return jax.device_put(from_arrays(arrays, example), jax.local_devices()[0])


def _path(folder: Path) -> Path:
    return (folder / _FOLDER).resolve()


def _complete(folder: Path) -> list[int]:
    """The updates of the complete checkpoints, in order: those under way have other names."""
    path = _path(folder)
    return sorted(int(step.name) for step in path.iterdir() if step.name.isdigit()) if path.exists() else []


def _read(folder: Path, updates: int, **items: Any) -> Any:
    import orbax.checkpoint as ocp

    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        return checkpointer.restore(_path(folder) / str(updates), args=ocp.args.Composite(**items))


def _check_format(meta: Mapping[str, Any], folder: Path, updates: int) -> None:
    if meta.get("format") != FORMAT:
        raise ValueError(
            f"checkpoint {updates} of {folder} has format {meta.get('format')}, and this version of podracer reads "
            f"format {FORMAT}; use the version that wrote it (provenance.json)"
        )


def _make_manager(folder: Path, is_kept: Callable[[int], bool]) -> Any:
    import orbax.checkpoint as ocp

    class Keep:
        def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
            return [is_kept(checkpoint.step) for checkpoint in checkpoints]

    options = ocp.CheckpointManagerOptions(preservation_policy=Keep())
    return ocp.CheckpointManager(_path(folder), options=options, item_names=(_POLICY, _STATE, _META))
