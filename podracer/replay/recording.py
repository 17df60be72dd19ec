"""Trajectories on disk: whole unrolls of a run in chunks that are complete or not there.

    FOLDER/recording.json                  format, numbers of shards and environments, and of each array shape and dtype
           unrolls-SHARD-FIRST-END.npz     unrolls FIRST to END - 1 of a learner device, each array `[END - FIRST, ...]`

The arrays of an unroll are named as in checkpoints: `steps/timestep/reward`, `[T+1, B]`, and `actor_state/...`, `[B]`.
"""

import functools
import itertools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from podracer.trees import Arrays

# Raised with every change of what a recording contains or means.
FORMAT = 1

_META = "recording.json"


class Chunk(NamedTuple):
    """A file of neighbouring unrolls of one shard."""

    shard: int
    first: int
    end: int
    path: Path


@dataclass(frozen=True)
class Recording:
    """What a folder holds: unrolls `first` to `end - 1` of all shards."""

    folder: Path
    num_shards: int
    unroll_length: int
    num_envs: int  # over all shards
    arrays: Mapping[str, tuple[tuple[int, ...], np.dtype]]  # shape and dtype in an unroll of all environments
    chunks: tuple[tuple[Chunk, ...], ...]  # of each shard, in order
    first: int
    end: int

    def unroll(self, index: int) -> dict[str, np.ndarray]:
        """Reads an unroll, all environments side by side."""
        shards = [self._unroll_of(chunks, index) for chunks in self.chunks]
        return {name: np.concatenate([shard[name] for shard in shards], batch_axis(name)) for name in self.arrays}

    def _unroll_of(self, chunks: Sequence[Chunk], index: int) -> dict[str, np.ndarray]:
        (chunk,) = (chunk for chunk in chunks if chunk.first <= index < chunk.end)
        arrays = self._load(chunk.path)
        # A dtype that NumPy has not of itself, such as bfloat16, is saved as raw bytes.
        return {name: arrays[name][index - chunk.first].view(dtype) for name, (_, dtype) in self.arrays.items()}

    @functools.cached_property
    def _load(self) -> Callable[[Path], dict[str, np.ndarray]]:
        """Keeps the file in hand of each shard."""
        return functools.lru_cache(maxsize=self.num_shards)(_load)


def batch_axis(name: str) -> int:
    """The axis of the environments in an array of an unroll."""
    return 1 if name.startswith("steps/") else 0


def open_recording(folder: Path) -> Recording:
    """Finds out what a folder holds, without reading it.

    Raises:
      ValueError: it is no recording of this format, or chunks are missing.
    """
    try:
        meta = json.loads((folder / _META).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{folder} holds no {_META}; record with recording.folder={folder}") from None
    if meta["format"] != FORMAT:
        raise ValueError(f"{folder} has format {meta['format']}, and this version of podracer reads format {FORMAT}")
    shards = [_chunks(folder, shard) for shard in range(meta["num_shards"])]
    for chunks in shards:
        for before, after in itertools.pairwise(chunks):
            if before.end != after.first:
                raise ValueError(f"{folder} lacks unrolls {before.end} to {after.first - 1} of shard {after.shard}")
    # A run that was killed may have written more of one shard than of another.
    first = max((chunks[0].first if chunks else 0 for chunks in shards), default=0)
    end = min((chunks[-1].end if chunks else 0 for chunks in shards), default=0)
    if end <= first:
        raise ValueError(f"{folder} holds no unroll of all {len(shards)} shards; a chunk is written once it is full")
    arrays = {}
    for name, (shape, dtype) in meta["arrays"].items():
        axis = batch_axis(name)
        arrays[name] = (*shape[:axis], shape[axis] * len(shards), *shape[axis + 1 :]), np.dtype(dtype)
    (length, num_envs), _ = arrays["steps/timestep/reward"]
    return Recording(folder, len(shards), length - 1, num_envs, arrays, tuple(shards), first, end)


def write_meta(folder: Path, num_shards: int, unroll: Arrays) -> None:
    """Writes what all unrolls of a recording have in common, from one of a shard."""
    arrays = {name: [list(array.shape), array.dtype.name] for name, array in unroll.items()}
    meta = {"format": FORMAT, "num_shards": num_shards, "arrays": arrays}
    _write(folder / _META, lambda file: file.write(json.dumps(meta, indent=2).encode()))


def write_chunk(folder: Path, shard: int, first: int, unrolls: Sequence[Arrays]) -> None:
    """Writes neighbouring unrolls of a shard."""
    arrays = {name: np.stack([unroll[name] for unroll in unrolls]) for name in unrolls[0]}
    path = folder / f"unrolls-{shard:04}-{first:010}-{first + len(unrolls):010}.npz"
    _write(path, lambda file: np.savez(file, **arrays))


def rewind(folder: Path, shard: int, end: int) -> None:
    """Removes the unrolls of a shard from `end` on: a run that goes on from a checkpoint makes them again.

    Raises:
      ValueError: there are unrolls missing before `end`.
    """
    chunks = _chunks(folder, shard)
    if chunks and chunks[-1].end < end:
        raise ValueError(f"{folder} ends with unroll {chunks[-1].end - 1} of shard {shard}, and the run is at {end}")
    for chunk in chunks:
        if chunk.first < end < chunk.end:
            arrays = _load(chunk.path)
            kept = [{name: array[index] for name, array in arrays.items()} for index in range(end - chunk.first)]
            write_chunk(folder, shard, chunk.first, kept)
        if chunk.end > end:
            chunk.path.unlink()


def _chunks(folder: Path, shard: int) -> list[Chunk]:
    chunks = []
    for path in sorted(folder.glob(f"unrolls-{shard:04}-*.npz")):
        _, _, first, end = path.stem.split("-")
        chunks.append(Chunk(shard, int(first), int(end), path))
    return chunks


def _load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as arrays:
        return dict(arrays)


def _write(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Writes a file in one stroke: a reader finds all of it or nothing."""
    partial = path.with_name(f".{path.name}.partial")
    with open(partial, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
