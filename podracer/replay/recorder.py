"""Writes the trajectories of a run to disk, by a thread: training waits only for a disk that is slower than it."""

import queue
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from podracer.replay import recording
from podracer.trees import Arrays, to_arrays
from podracer.types import Array, Trajectory

# Unrolls that wait for the thread.
_QUEUE_SIZE = 64


@dataclass(frozen=True, kw_only=True)
class RecordingConfig:
    """Where the trajectories of a run are written. See `replay=dataset`."""

    folder: str | None = None
    """Folder of the recording, empty or not there yet; null records nothing."""
    chunk_mebibytes: float = 16.0
    """Size of a file of a learner device. A run that is killed loses the file in hand, any other end completes it."""

    def __post_init__(self):
        if not self.chunk_mebibytes > 0:
            raise ValueError(f"recording.chunk_mebibytes={self.chunk_mebibytes} is not positive; use 16")


class Recorder:
    """Within its `with` block, writes unrolls to a folder. What fails, `check` and `flush` raise, and not `put`."""

    def __init__(self, folder: Path, num_shards: int, chunk_bytes: int):
        """Touches no file yet."""
        self._folder, self._num_shards, self._chunk_bytes = folder, num_shards, chunk_bytes
        self._queue: queue.Queue[tuple[int, int, Arrays] | None] = queue.Queue(_QUEUE_SIZE)
        self._pending: dict[int, tuple[int, list[Arrays]]] = {}  # of each shard the first index, and unrolls
        self._failure: BaseException | None = None
        self._thread = threading.Thread(name="recorder", target=self._run, daemon=True)

    def claim(self, *, resumes: bool) -> None:
        """Makes the folder.

        Raises:
          ValueError: something is in it, and the run does not go on with that.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        if not resumes and any(self._folder.iterdir()):
            raise ValueError(f"recording.folder={self._folder} is not empty; choose another folder")

    def __enter__(self) -> "Recorder":
        self._thread.start()
        return self

    def __exit__(self, *error) -> None:
        try:
            self.flush()
        finally:
            self._queue.put(None)
            self._thread.join()

    def put(self, shard: Array, index: Array, trajectory: Trajectory) -> np.ndarray:
        """Hands over the unroll of a shard with this index `[1]`, waiting if too many wait; returns the next index."""
        self._queue.put((int(shard), int(index[0]), to_arrays(trajectory)))
        return np.asarray(index + 1)

    def check(self) -> None:
        """Raises what made writing fail, if it did."""
        if self._failure is not None:
            raise self._failure

    def flush(self) -> None:
        """Waits until all that was put is on disk, while nothing more is put; raises as `check` does."""
        self._queue.join()
        if self._failure is None:
            for shard in list(self._pending):
                self._write(shard)
        self.check()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                # After a failure unrolls are dropped, so that the program does not wait for ever.
                if self._failure is None:
                    self._take(*item)
            except BaseException as error:
                error.add_note(f"the recording in {self._folder} cannot be written")
                self._failure = error
            finally:
                self._queue.task_done()

    def _take(self, shard: int, index: int, unroll: Arrays) -> None:
        if shard not in self._pending:
            if not shard:
                recording.write_meta(self._folder, self._num_shards, unroll)
            recording.rewind(self._folder, shard, index)
            self._pending[shard] = index, []
        _, unrolls = self._pending[shard]
        unrolls.append(unroll)
        if len(unrolls) * sum(array.nbytes for array in unroll.values()) >= self._chunk_bytes:
            self._write(shard)

    def _write(self, shard: int) -> None:
        first, unrolls = self._pending[shard]
        if unrolls:
            recording.write_chunk(self._folder, shard, first, unrolls)
            self._pending[shard] = first + len(unrolls), []
