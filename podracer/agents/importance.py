"""Importance weights of what a store samples unevenly."""

import jax.numpy as jnp

from podracer.parallel import collectives
from podracer.types import Array


def importance_weights(probabilities: Array, exponent: Array | float, progress: Array, axis_name: str | None) -> Array:
    """Makes up for uneven sampling, in part at first and wholly at the end of the budget.

    wᵢ = (N P(i))^−β / maxⱼ (N P(j))^−β = (minⱼ P(j) / P(i))^β,   β = β₀ + (1 − β₀) progress

    "Prioritized Experience Replay", Schaul et al., arXiv 1511.05952, section 3.4. The maximum is that of the batch,
    over all devices.

    Args:
      probabilities: `[N]` P, positive.
      exponent: β₀, in [0, 1]; 0 is no correction at the start.
      progress: `[]` share of the budget done, in [0, 1].
      axis_name: the mesh axis of the learner devices, if any.

    Returns:
      `[N]` weights in (0, 1]; all 1 if all probabilities are equal.
    """
    exponent = exponent + (1.0 - exponent) * progress
    least = collectives.pmin(jnp.min(probabilities), axis_name)
    return (least / probabilities) ** exponent
