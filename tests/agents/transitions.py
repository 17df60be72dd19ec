"""Linear critics and policies of one number, and batches as the replay lays them out."""

import jax.numpy as jnp
import numpy as np

from podracer.networks.config import NetworkConfig
from podracer.spaces import Box, Discrete, EnvSpec
from podracer.types import Batch, Step, StepType, TimeStep, Trajectory

CONTINUOUS = EnvSpec("line", Box((1,), np.float32), Box((1,), np.float32, -1.0, 1.0))
DISCRETE = EnvSpec("line", Box((1,), np.float32), Discrete(2))
NETWORK = NetworkConfig(hidden_sizes=())
F, M, L = StepType.FIRST, StepType.MID, StepType.LAST


def make_batch(observation, action, reward, discount, step_type, is_continuous=True) -> Batch:
    """A batch from lists of lists, `[L+1, N]`."""
    reward, discount = jnp.array(reward, jnp.float32), jnp.array(discount, jnp.float32)
    timestep = TimeStep(
        jnp.array(step_type, jnp.int8), reward, discount, jnp.array(observation, jnp.float32)[..., None]
    )
    action = jnp.array(action, jnp.float32)[..., None] if is_continuous else jnp.array(action, jnp.int32)
    size = reward.shape[1]
    return Batch(Trajectory(Step(timestep, action, {}), ()), jnp.arange(size), jnp.ones((size,)))


def dense(kernel, bias):
    return {"kernel": jnp.array(kernel, jnp.float32), "bias": jnp.array(bias, jnp.float32)}


def critics_params(*weights):
    """Of Qᵢ(s, a) = wᵢ₀ s + wᵢ₁ a + wᵢ₂."""
    kernel = [[[w[0]], [w[1]]] for w in weights]
    return {"params": {"critics": {"Dense_0": dense(kernel, [[w[2]] for w in weights])}}}
