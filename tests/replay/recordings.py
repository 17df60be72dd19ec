"""Recordings made by hand."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from podracer.replay.recorder import Recorder
from podracer.types import Trajectory


def record(folder: Path, shards: Sequence[Sequence[Trajectory]], *, first: int = 0, chunk_bytes: int = 1000) -> None:
    """Writes the unrolls of each shard."""
    recorder = Recorder(folder, len(shards), chunk_bytes)
    recorder.claim(resumes=first > 0)
    with recorder:
        for shard, unrolls in enumerate(shards):
            for index, unroll in enumerate(unrolls, first):
                recorder.put(np.int32(shard), np.array([index], np.int32), unroll)
