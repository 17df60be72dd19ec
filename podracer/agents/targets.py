"""Target networks: slow copies of parameters, on the counter of the gradient updates."""

import chex
import jax
import jax.numpy as jnp

from podracer.types import Array, ArrayTree


def update_target(target: ArrayTree, online: ArrayTree, updates: Array, period: int, tau: Array | float) -> ArrayTree:
    """Moves target parameters towards the online ones, every so many updates.

    θ⁻ ← (1 − τ) θ⁻ + τ θ   if `updates` is a multiple of `period`

    τ = 1 copies: "Human-level control through deep reinforcement learning", Mnih et al., Nature 518, 2015.
    A small τ at every update: "Continuous control with deep reinforcement learning", Lillicrap et al.,
    arXiv 1509.02971.

    Args:
      target: θ⁻.
      online: θ, after the update.
      updates: `[]` int32 updates made so far, this one included.
      period: updates from one move to the next, at least 1.
      tau: τ, in [0, 1].

    Returns:
      The target parameters for the next update.
    """
    chex.assert_trees_all_equal_shapes_and_dtypes(target, online)
    is_due = updates % period == 0
    return jax.tree.map(lambda old, new: jnp.where(is_due, (1 - tau) * old + tau * new, old), target, online)


def check_target(target_period: int, target_tau: float) -> None:
    """Checks the settings of a target network.

    Raises:
      ValueError: with the numbers and the repair.
    """
    if target_period < 1:
        raise ValueError(f"agent.target_period={target_period} is no number of updates; use at least 1")
    if not 0 < target_tau <= 1:
        raise ValueError(f"agent.target_tau={target_tau} is not in (0, 1]; use 1 to copy, or as little as 0.005")
