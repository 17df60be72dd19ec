"""Randomness is addressed, not threaded: every draw has a key made of (run, role, shard, time).

A shard is a group of environments that acts together: a device under Anakin, an actor thread under
Sebulba. Thread timing, chunk sizes and evaluation cannot change a key, and both runners use the same.
"""

import enum

import jax
import numpy as np

from podracer.threefry import THREEFRY
from podracer.types import Array, Key


class Role(enum.IntEnum):
    """What a key is used for; the numbers are part of what makes a run reproducible."""

    INIT_LEARNER = 0
    INIT_ACTOR = 1
    ENV_RESET = 2
    ENV_STEP = 3
    ACT = 4
    LEARN = 5


def run_key(seed: int) -> Key:
    """`[]` typed key. Draws are those of `jax.random.key(seed)`; keys made without `impl` are of another type."""
    return jax.random.key(seed, impl=THREEFRY)


def shard_key(key: Key, role: Role, shard: Array | int) -> Key:
    """The key of a role in a shard; fold the global timestep or the update number into it."""
    # Without the barrier XLA derives the key again in every kernel that draws with it: a third more to compile.
    return jax.lax.optimization_barrier(jax.random.fold_in(jax.random.fold_in(key, int(role)), shard))


# Seeds of host environments are 31-bit: 1 bit of role, 15 of run seed, 15 of environment index.
_INDEX_BITS, _SEED_BITS = 15, 15


_START = 0x9E3779B1


def restart_seeds(seeds: np.ndarray) -> np.ndarray:
    """Other seeds for the same environments, as far apart as these: `[B]` int64 in [0, 2³¹)."""
    return (seeds + _START) % (1 << 31)


def host_seeds(seed: int, env_indices: np.ndarray, *, evaluation: bool = False, start: int = 0) -> np.ndarray:
    """Draws the seeds of host environments.

    Different (seed, evaluation, index) with seed and index below 2¹⁵ never share a seed of the same start,
    and neighbouring seeds are not neighbours (EnvPool gives environment i of a pool `seed + i`).

    Args:
      seed: of the run, or of the evaluation.
      env_indices: `[B]` global indices of the environments.
      start: 0 where a run begins; another number where environments start again in the middle of one,
        so that they do not repeat its first episodes.

    Returns:
      `[B]` int64 in [0, 2³¹).
    """
    address = (int(evaluation) << (_SEED_BITS + _INDEX_BITS)) + ((seed % (1 << _SEED_BITS)) << _INDEX_BITS)
    # An odd number times the start: the starts of one environment never share a seed either.
    address += _START * start
    x = (np.asarray(env_indices, np.uint64) + np.uint64(address % (1 << 31))) % np.uint64(1 << 31)
    # Odd multiplications and xor-shifts are bijections of the 31-bit integers.
    for multiplier in (0x5BD1E995, 0x27D4EB2F):
        x = (x * np.uint64(multiplier)) % np.uint64(1 << 31)
        x = x ^ (x >> np.uint64(15))
    return x.astype(np.int64)
