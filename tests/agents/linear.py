"""Agents without hidden layers, whose outputs can be worked out by hand: V(o) = o, Q(o) = (o, 2o)."""

import jax.numpy as jnp
import numpy as np

from podracer.agents.parts import ActorMemory, Statistics
from podracer.networks.config import NetworkConfig
from podracer.replay.on_policy import OnPolicy
from podracer.spaces import Box, Discrete, EnvSpec
from podracer.types import Batch, Step, StepType, TimeStep, Trajectory

SPEC = EnvSpec("line", Box((1,), np.float32), Discrete(2))
NETWORK = NetworkConfig(hidden_sizes=(), shared_torso=True)
NOT_NORMALISED = Statistics((), ())
F, M, L = StepType.FIRST, StepType.MID, StepType.LAST


def actor_critic_params(probabilities):
    """Of a policy that is the same everywhere, and V(o) = o."""
    policy = {"kernel": jnp.zeros((1, 2)), "bias": jnp.log(jnp.array(probabilities))}
    value = {"kernel": jnp.ones((1, 1)), "bias": jnp.zeros((1,))}
    return {"params": {"policy_head": {"Dense_0": policy}, "value_head": {"Dense_0": value}}}


def q_params():
    """Of Q(o) = (o, 2o)."""
    return {"params": {"head": {"Dense_0": {"kernel": jnp.array([[1.0, 2.0]]), "bias": jnp.zeros((2,))}}}}


def make_batch(step_type, reward, discount, observation, action, extras) -> Batch:
    """A batch of one environment, from lists of T+1 values."""

    def column(values, dtype=jnp.float32):
        return jnp.array(values, dtype)[:, None]

    timestep = TimeStep(column(step_type, jnp.int8), column(reward), column(discount), column(observation)[..., None])
    step = Step(timestep, column(action, jnp.int32), {name: column(values) for name, values in extras.items()})
    return OnPolicy().sample(Trajectory(step, ActorMemory((), ())), None)[1]
