"""Gradient steps, the same for every agent: averaged over devices, clipped, at a scheduled learning rate."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from podracer.parallel import collectives
from podracer.types import Array, ArrayTree


class Trained(NamedTuple):
    """Parameters and the state of their optimiser."""

    params: ArrayTree
    opt_state: ArrayTree


def clipped(max_gradient_norm: Array | float, scale: optax.GradientTransformation) -> optax.GradientTransformation:
    """Clips gradients by their global norm, then scales them, as `optax.scale_by_adam` does; no learning rate yet."""
    return optax.chain(optax.clip_by_global_norm(max_gradient_norm), scale)


def scheduled(learning_rate: Array | float, progress: Array, anneal: bool) -> Array:
    """`[]` f32 learning rate of an update: constant, or falling linearly to 0 over the budget.

    It changes between updates, not between the gradient steps of one: stairs of epochs × minibatches steps.
    """
    return jnp.asarray(learning_rate * (1.0 - progress) if anneal else learning_rate, jnp.float32)


def gradient_step(
    optimiser: optax.GradientTransformation,
    trained: Trained,
    gradients: ArrayTree,
    learning_rate: ArrayTree,
    axis_name: str | None,
) -> tuple[Trained, Array]:
    """Averages gradients over the devices and descends.

    Args:
      optimiser: of all parameters.
      trained: what is trained.
      gradients: this device's.
      learning_rate: `[]`, or a tree of them, one for each of several networks: a prefix of the parameters' tree.
      axis_name: the mesh axis of the learner devices, if any.

    Returns:
      The next parameters and optimiser state, and `[]` the norm of the averaged gradients before clipping.
    """
    gradients = collectives.pmean(gradients, axis_name)
    updates, opt_state = optimiser.update(gradients, trained.opt_state, trained.params)

    def descend(rate: Array, params: ArrayTree, updates: ArrayTree) -> ArrayTree:
        return jax.tree.map(lambda p, u: p - rate * u, params, updates)

    params = jax.tree.map(descend, learning_rate, trained.params, updates)
    return Trained(params, opt_state), optax.tree.norm(gradients)
