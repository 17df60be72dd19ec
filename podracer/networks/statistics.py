"""Running statistics of observations and returns: state that a learner keeps and publishes."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from podracer.parallel.collectives import psum
from podracer.types import Array, ArrayTree, StepType

# Float32 counts every integer up to here. The count stays there, which makes the statistics an
# exponential average over about as many samples: however long the run, they follow the data.
_LARGEST_COUNT = float(2**24)
_EPSILON = 1e-8


class RunningStatistics(NamedTuple):
    """Mean and population variance of every float leaf of a tree; other leaves hold `()` in both."""

    count: Array  # [] f32 samples seen, at most 2²⁴
    mean: ArrayTree  # leaves [...] f32, without batch dimensions
    variance: ArrayTree  # leaves [...] f32


def init(example: ArrayTree) -> RunningStatistics:
    """Makes the statistics of no sample, which normalise to the identity.

    Args:
      example: one sample, arrays or anything with a shape and a dtype, without batch dimensions.
    """
    return RunningStatistics(
        count=jnp.zeros((), jnp.float32),
        mean=jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32) if _is_float(x) else (), example),
        variance=jax.tree.map(lambda x: jnp.ones(x.shape, jnp.float32) if _is_float(x) else (), example),
    )


def update(
    statistics: RunningStatistics, batch: ArrayTree, where: Array, axis_name: str | None = None
) -> RunningStatistics:
    """Merges the samples of all devices into the statistics.

    w = n / (N + n),   μ ← μ + w d,   σ² ← (1 − w) σ² + w s² + w (1 − w) d²

    with n samples of variance s² whose mean is d above μ. "Updating Formulae and a Pairwise Algorithm
    for Computing Sample Variances", Chan, Golub and LeVeque, 1979, eq. 2.1. Up to 2²⁴ samples any
    order and any split of them gives the same result; then old samples are slowly forgotten.

    Args:
      statistics: N samples.
      batch: leaves `[*rows, ...]`, this device's share.
      where: `[*rows]` bool, the samples that count, as `[T, B]`.
      axis_name: the mesh axis of the learner devices, if any.
    """
    chex.assert_type(where, bool)

    def total(x: Array) -> Array:
        counts = jnp.expand_dims(where, range(where.ndim, x.ndim))  # [*rows, 1, ...]
        return jnp.sum(jnp.where(counts, x, 0.0), axis=tuple(range(where.ndim)))

    # Sums of differences from the running mean keep the digits that sums of raw values would lose.
    difference = jax.tree.map(
        lambda x, mean: _subtract(x.astype(jnp.float32), mean) if _is_float(x) else (), batch, statistics.mean
    )
    count, shift = psum((jnp.sum(where, dtype=jnp.float32), jax.tree.map(total, difference)), axis_name)
    shift = jax.tree.map(lambda x: x / jnp.maximum(count, 1.0), shift)
    # A second collective, since squares about each device's own reference do not add up exactly.
    squares = jax.tree.map(lambda x, shift: total(jnp.square(_subtract(x, shift))), difference, shift)
    variance = jax.tree.map(lambda x: x / jnp.maximum(count, 1.0), psum(squares, axis_name))

    weight = count / jnp.maximum(statistics.count + count, 1.0)
    return RunningStatistics(
        count=jnp.minimum(statistics.count + count, _LARGEST_COUNT),
        mean=jax.tree.map(lambda mean, shift: mean + weight * shift, statistics.mean, shift),
        variance=jax.tree.map(
            lambda old, new, shift: (1 - weight) * old + weight * new + weight * (1 - weight) * jnp.square(shift),
            statistics.variance,
            variance,
            shift,
        ),
    )


def normalise(statistics: RunningStatistics, x: ArrayTree, clip: float = 10.0) -> ArrayTree:
    """Shifts and scales the float leaves to mean 0 and standard deviation 1; others pass untouched.

    Args:
      statistics: of trees like `x`.
      x: leaves `[*batch, ...]`, with any batch dimensions.
      clip: the result's float leaves are within [-clip, clip].
    """

    def normalise_leaf(x, mean, variance):
        if not _is_float(x):
            return x
        centred = _subtract(x.astype(jnp.float32), mean)
        return jnp.clip(centred / jnp.broadcast_to(_std(variance), x.shape), -clip, clip)

    return jax.tree.map(normalise_leaf, x, statistics.mean, statistics.variance)


def scale_reward(statistics: RunningStatistics, reward: Array, clip: float = 10.0) -> Array:
    """Divides rewards by the standard deviation of the discounted return; no mean is subtracted.

    Args:
      statistics: of `return_accumulator`'s values, scalars.
      reward: `[...]` f32.
      clip: the result is within [-clip, clip].
    """
    return jnp.clip(reward / _std(statistics.variance), -clip, clip)


def return_accumulator(carry: Array, reward: Array, step_type: Array, discount_factor: float) -> tuple[Array, Array]:
    """Advances the discounted sum of the rewards so far in each episode, the measure of their scale.

    Gₜ = rₜ + γ Gₜ₋₁, where Gₜ₋₁ is 0 if step t−1 was FIRST or LAST

    A FIRST that follows a true end within the step carries the last reward of the episode before, so
    the sum is cut after it and not before. The value at a step is a sample if the step completes a
    transition: `valid_transitions` at t−1.

    Args:
      carry: `[B]` f32, 0 at the start.
      reward: `[B]` f32, of this step.
      step_type: `[B]` int8, of this step.
      discount_factor: γ, in [0, 1].

    Returns:
      `[B]` the carry for the next step, and `[B]` the sum at this one.
    """
    chex.assert_equal_shape([carry, reward, step_type])
    total = reward + discount_factor * carry
    return jnp.where(step_type == StepType.MID, total, 0.0), total


def _is_float(x) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def _std(variance: Array) -> Array:
    return jnp.sqrt(variance + _EPSILON)


def _subtract(x: Array, mean: Array) -> Array:
    """`[*batch, ...]` x minus `[...]` mean."""
    return x - jnp.broadcast_to(mean, x.shape)
