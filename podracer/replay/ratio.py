"""The ratio of learning to acting: how many batches are sampled for what is inserted."""

from typing import NamedTuple

import jax.numpy as jnp

from podracer.parallel import collectives
from podracer.replay.base import ReplaySpec
from podracer.types import Array, Trajectory, valid_transitions

# `learning_starts` is compared with a 32-bit count, which stays at this.
MOST_COUNTED = 2**30


class Credit(NamedTuple):
    """What was inserted and not yet learnt from."""

    inserted: Array  # [1] int32 valid transitions on all devices, at most 2³⁰
    updates: Array  # [1] f32 updates that are due


def updates_per_insert(spec: ReplaySpec, samples_per_insert: float | None, replay_ratio: float | None) -> float:
    """Resolves the two ways to ask for a ratio to updates for each valid transition.

    Args:
      spec: its own ratio holds where none is asked for.
      samples_per_insert: sampled transitions for each inserted one.
      replay_ratio: updates for each inserted transition.

    Raises:
      ValueError: a ratio is not positive, or the two contradict each other.
    """
    for name, value in {"samples_per_insert": samples_per_insert, "replay_ratio": replay_ratio}.items():
        if value is not None and not value > 0:
            raise ValueError(f"replay.{name}={value} is not positive; leave it out for the agent's own ratio")
    samples_per_update = spec.batch_size * spec.transitions_per_sequence
    if samples_per_insert is None and replay_ratio is None:
        samples_per_insert = spec.samples_per_insert
    if samples_per_insert is None:
        return replay_ratio
    ratio = samples_per_insert / samples_per_update
    if replay_ratio is not None and abs(replay_ratio - ratio) > 1e-6 * ratio:
        raise ValueError(
            f"replay.replay_ratio={replay_ratio} updates a transition are {replay_ratio * samples_per_update:g} "
            f"samples an insert (agent.batch_size={spec.batch_size} x {spec.transitions_per_sequence}), which "
            f"contradicts replay.samples_per_insert={samples_per_insert}; give one of the two"
        )
    return ratio


def no_credit() -> Credit:
    return Credit(jnp.zeros((1,), jnp.int32), jnp.zeros((1,), jnp.float32))


def insert(credit: Credit, trajectory: Trajectory, ratio: float, learning_starts: int, axis_name: str | None) -> Credit:
    """Counts the valid transitions of a trajectory, of all devices; the first `learning_starts` earn no update."""
    timestep = trajectory.steps.timestep
    valid = jnp.sum(valid_transitions(timestep.step_type, timestep.discount), dtype=jnp.int32)
    valid = collectives.psum(valid, axis_name)
    earning = jnp.maximum(valid - jnp.maximum(learning_starts - credit.inserted, 0), 0)
    inserted = jnp.minimum(credit.inserted + valid, MOST_COUNTED)
    return Credit(inserted, credit.updates + ratio * earning.astype(jnp.float32))


def take(credit: Credit, can_sample: Array, axis_name: str | None) -> tuple[Credit, Array]:
    """Spends the whole updates that are due, if all devices can sample; `[]` int32, the same on every device."""
    stuck = collectives.psum((~can_sample).astype(jnp.int32), axis_name)
    updates = jnp.where(stuck == 0, jnp.floor(credit.updates), 0.0)
    return credit._replace(updates=credit.updates - updates), updates[0].astype(jnp.int32)
