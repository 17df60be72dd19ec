"""Steps of the newest past in a ring of rows, one timestep of all environments each.

What is sampled is time-major, but what is stored is not: so the steps of a sequence are neighbours in memory.
A trajectory is written in one piece, so a ring holds a whole number of them. Its last step is left out: the
next trajectory begins with it. A sequence can be read once all of it is written; until then, and after its first
row is overwritten, its start is none. So no sequence crosses the place that is written next.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from podracer.replay import frames
from podracer.replay.base import ReplaySpec
from podracer.types import Array, ArrayTree, Step, StepType, Trajectory, valid_transitions

# Up to here a gather for each row of a sequence, which makes the program longer.
_FEW = 8


class Ring(NamedTuple):
    steps: Step  # [B, C, ...]; of stacked frames the newest
    fills_stack: Array | tuple[()]  # [B, C] bool, where a stack holds nothing but its newest frame; () without stacks
    memory: ArrayTree  # [B, C / T, ...] actors' memory before each unroll; () where no sequence starts with one
    head: Array  # [1] int32 row that is written next
    filled: Array  # [1] int32 rows that hold steps, from head backwards


class Starts(NamedTuple):
    """Rows of which it has become known whether sequences start there."""

    rows: Array  # [K] int32; C where there is none
    is_start: Array  # [K, B] bool


def num_rows(capacity: int, spec: ReplaySpec) -> int:
    """How many rows hold a capacity in transitions: as many whole unrolls, or periods, of all environments as fit.

    Raises:
      ValueError: the capacity is too small for an unroll, or for a sequence.
    """
    unit = math.lcm(spec.unroll_length, spec.sequence_period)
    rows = capacity // (spec.num_envs * unit) * unit
    needed = spec.sequence_length + _rows_before(spec)
    if rows < needed:
        least = -(-needed // unit) * unit * spec.num_envs
        raise ValueError(
            f"replay.capacity={capacity} transitions are too few for sequences of {spec.sequence_length} timesteps of "
            f"env.num_envs={spec.num_envs} environments, stored by {unit} timesteps "
            f"(agent.unroll_length={spec.unroll_length}); use at least {least}"
        )
    return rows


def init(example: Trajectory, rows: int, spec: ReplaySpec) -> Ring:
    """Makes an empty ring of `rows` rows for trajectories of this structure, `[T+1, B, ...]`."""
    stored = jax.eval_shape(lambda steps: frames.unstack(steps, spec.stacked_frames), example.steps)
    steps, fills_stack = jax.tree.map(
        lambda leaf: jnp.zeros((leaf.shape[1], rows, *leaf.shape[2:]), leaf.dtype), stored
    )
    memory = ()
    if _keeps_memory(spec):
        unrolls = rows // spec.unroll_length
        memory = jax.tree.map(
            lambda leaf: jnp.zeros((leaf.shape[0], unrolls, *leaf.shape[1:]), leaf.dtype), example.actor_state
        )
    return Ring(steps, fills_stack, memory, jnp.zeros((1,), jnp.int32), jnp.zeros((1,), jnp.int32))


def add(ring: Ring, trajectory: Trajectory, spec: ReplaySpec) -> Ring:
    """Writes all steps of a trajectory but the last over the oldest ones."""
    length, rows, head = spec.unroll_length, _rows(ring), ring.head[0]

    def write(stored: Array, new: Array, at: Array) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(stored, jnp.swapaxes(new, 0, 1), at, 1)

    new = frames.unstack(jax.tree.map(lambda leaf: leaf[:length], trajectory.steps), spec.stacked_frames)
    steps, fills_stack = jax.tree.map(lambda stored, new: write(stored, new, head), (ring.steps, ring.fills_stack), new)
    memory = ring.memory
    if _keeps_memory(spec):
        memory = jax.tree.map(
            lambda stored, new: write(stored, new[None], head // length), memory, trajectory.actor_state
        )
    return Ring(steps, fills_stack, memory, (ring.head + length) % rows, jnp.minimum(ring.filled + length, rows))


def reshard(ring: Ring, num_devices: int) -> Ring:
    """Spreads the rings of all devices, concatenated, over another number of devices."""
    # Environments are the first axis: only how far each device has come is of another shape.
    return ring._replace(head=ring.head[:1].repeat(num_devices), filled=ring.filled[:1].repeat(num_devices))


def find_starts(ring: Ring, spec: ReplaySpec, length: int) -> Starts:
    """Finds the starts of sequences among the `length` rows of which it is known last.

    Of a trajectory these are T rows: each is looked at when the last row of the sequence is written.
    """
    span, timestep = spec.sequence_length - 1, ring.steps.timestep
    first = ring.head[0] - length - span
    offset = _offsets_of_starts(first, length, spec)  # [K]
    step_type, discount = (_window(leaf, first, length + span) for leaf in (timestep.step_type, timestep.discount))
    valid = valid_transitions(step_type, discount)  # [T+span-1, B]
    is_start = _over_sequences(valid, offset, spec)
    age = length + span - 1 - offset  # rows back from the newest
    is_readable = (offset < length) & (age < ring.filled[0] - _rows_before(spec))
    rows = jnp.where(offset < length, (first + offset) % _rows(ring), _rows(ring))
    return Starts(rows, is_start & is_readable[:, None])


def readable_starts(ring: Ring, spec: ReplaySpec) -> tuple[Array, Array]:
    """`[]` int32 each: the oldest row, by its number among those that may start a sequence that is written whole, and
    how many follow it, itself included.
    """
    before = _rows_before(spec)
    oldest = ring.head[0] - ring.filled[0] + before
    readable = ring.filled[0] - before - (spec.sequence_length - 1)
    skipped = -oldest % spec.sequence_period
    number = -((skipped - readable) // spec.sequence_period)
    return (oldest + skipped) % _rows(ring) // spec.sequence_period, jnp.maximum(number, 0)


def unreadable_starts(ring: Ring, spec: ReplaySpec) -> Array:
    """`[K]` int32 rows that start nothing until more is written, around the one that is written next.

    They are all that a trajectory made so, or left so, and that may start a sequence at another time; C in place of
    such a row.
    """
    span, before = spec.sequence_length - 1, _rows_before(spec)
    first = ring.head[0] - span
    offset = _offsets_of_starts(first, span + before, spec)
    return jnp.where(offset < span + before, (first + offset) % _rows(ring), _rows(ring))


def size(ring: Ring) -> Array:
    """`[]` int32 number of stored steps; where an episode ends, one that is no transition."""
    return ring.filled[0] * _num_envs(ring)


def read(ring: Ring, starts: Array, spec: ReplaySpec) -> Trajectory:
    """Reads sequences.

    Args:
      ring: what is stored.
      starts: `[N]` int32, row / P · B + environment of each.
      spec: of the sequences.

    Returns:
      `[sequence_length, N, ...]`.
    """
    num_envs, rows, length, period = _num_envs(ring), _rows(ring), spec.sequence_length, spec.sequence_period
    period_of_start, env = starts // num_envs, starts % num_envs  # [N]
    row = period_of_start * period
    offsets = jnp.arange(length)[:, None]  # [L, 1]

    def gather(leaf: Array, offsets: Array) -> Array:
        at = row[None] + offsets  # [L, N], from -C to 2 C
        # Not by a remainder, which would be divided for each number that is read.
        at = jnp.where(at < 0, at + rows, jnp.where(at >= rows, at - rows, at))
        if length <= _FEW:
            # Row by row, so that the compiler leaves out those which an agent does not look at.
            return jnp.stack([leaf.at[env, at[k]].get(mode="promise_in_bounds") for k in range(length)])
        return jnp.swapaxes(leaf.at[env[:, None], at.T].get(mode="promise_in_bounds"), 0, 1)

    def gather_whole(leaf: Array) -> Array:
        """Gathers by periods, which are read in one piece since no period is divided by the end of the ring."""
        if length <= _FEW:
            return gather(leaf, offsets)
        periods = rows // period
        at = period_of_start[:, None] + jnp.arange(-(-length // period))[None]  # [N, K]
        at = jnp.where(at >= periods, at - periods, at)
        by_period = leaf.reshape(num_envs, periods, period, *leaf.shape[2:])
        read = by_period.at[env[:, None], at].get(mode="promise_in_bounds")  # [N, K, P, ...]
        return jnp.swapaxes(read.reshape(starts.shape[0], -1, *leaf.shape[2:])[:, :length], 0, 1)

    def read_steps(offsets: Array) -> Step:
        if spec.stacked_frames is None:
            return jax.tree.map(lambda leaf: gather(leaf, offsets), ring.steps)
        timestep = ring.steps.timestep
        observation = frames.stack(gather, timestep.observation, ring.fills_stack, offsets, spec.stacked_frames)
        rest = ring.steps._replace(timestep=timestep._replace(observation=()))
        rest = jax.tree.map(lambda leaf: gather(leaf, offsets), rest)
        return rest._replace(timestep=rest.timestep._replace(observation=observation))

    memory = ()
    if _keeps_memory(spec):
        memory = jax.tree.map(lambda leaf: leaf[env, row // spec.unroll_length], ring.memory)
    if spec.episode_ends == "mask" and spec.sequence_length > 2:
        timestep = ring.steps.timestep
        last = last_of_first_episode(gather(timestep.step_type, offsets), gather(timestep.discount, offsets))[None]
        return Trajectory(_pad(read_steps(jnp.minimum(offsets, last)), offsets > last), memory)
    if spec.stacked_frames is None:
        return Trajectory(jax.tree.map(gather_whole, ring.steps), memory)
    return Trajectory(read_steps(offsets), memory)


def last_of_first_episode(step_type: Array, discount: Array) -> Array:
    """Finds where the episode that each sequence starts in ends, or the sequence.

    Args:
      step_type: `[L, N]` int8.
      discount: `[L, N]` the environment's.

    Returns:
      `[N]` int32 index of the last step whose reward and observation are of that episode: LAST, a FIRST with
      discount 0 (a true end in an environment that resets within the step), or the one before a restart.
    """
    is_first, is_last = step_type == StepType.FIRST, step_type == StepType.LAST
    ends = is_last | (is_first & (discount == 0)).at[0].set(False)  # [L, N]
    restarts = (is_first & (discount != 0)).at[0].set(False)
    # Whether an end or a restart lies before each step, or a restart at it.
    over = jnp.cumsum(ends, axis=0, dtype=jnp.int32) - ends + jnp.cumsum(restarts, axis=0, dtype=jnp.int32)
    return jnp.sum(over == 0, axis=0, dtype=jnp.int32) - 1


def _pad(steps: Step, is_padding: Array) -> Step:
    """Makes the steps where `is_padding` `[L, N]` holds no transitions; they repeat the last one that is none."""
    timestep = steps.timestep
    return steps._replace(
        timestep=timestep._replace(
            step_type=jnp.where(is_padding, StepType.FIRST, timestep.step_type),
            reward=jnp.where(is_padding, 0.0, timestep.reward),
            discount=jnp.where(is_padding, 1.0, timestep.discount),
        )
    )


def _num_envs(ring: Ring) -> int:
    return ring.steps.timestep.reward.shape[0]


def _rows(ring: Ring) -> int:
    return ring.steps.timestep.reward.shape[1]


def _window(leaf: Array, first: Array, length: int) -> Array:
    """Rows of `[B, C]` from `first` on, round the end, time-major."""
    num_rows = leaf.shape[1]
    first %= num_rows

    def gather() -> Array:
        return leaf[:, (first + jnp.arange(length)) % num_rows].T

    if length > num_rows:
        return gather()
    # A slice takes a fraction of the time, but does not go round the end.
    in_one_piece = first <= num_rows - length
    return jax.lax.cond(in_one_piece, lambda: jax.lax.dynamic_slice_in_dim(leaf, first, length, 1).T, gather)


def _over_sequences(valid: Array, offset: Array, spec: ReplaySpec) -> Array:
    """`[K, B]` whether sequences start at these offsets `[K]` into `valid` `[N, B]`, the transitions between rows."""
    sees = 1 if spec.episode_ends == "mask" else spec.sequence_length - 1
    combine, nothing = (jax.lax.bitwise_or, False) if spec.episode_ends == "reset" else (jax.lax.bitwise_and, True)
    # The last offset may lie beyond what is looked at.
    needed = (offset.shape[0] - 1) * spec.sequence_period + sees
    padded = jnp.pad(valid, ((0, max(0, needed + spec.sequence_period - 1 - valid.shape[0])), (0, 0)))
    looked_at = jax.lax.dynamic_slice_in_dim(padded, offset[0], needed)
    return jax.lax.reduce_window(looked_at, nothing, combine, (sees, 1), (spec.sequence_period, 1), "valid")


def _offsets_of_starts(first: Array, length: int, spec: ReplaySpec) -> Array:
    """`[K]` int32 how far from row `first` the rows are that may start sequences; the last may be `length` or more."""
    period = spec.sequence_period
    if period == 1:
        return jnp.arange(length)
    return -first % period + period * jnp.arange(-(-length // period))


def _rows_before(spec: ReplaySpec) -> int:
    """How many rows before its start a sequence needs to be read."""
    return 0 if spec.stacked_frames is None else spec.stacked_frames.count - 1


def _keeps_memory(spec: ReplaySpec) -> bool:
    return spec.sequence_period % spec.unroll_length == 0
