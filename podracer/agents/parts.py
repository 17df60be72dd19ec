"""What agents share: the shape of their states, running statistics, and the view of a batch as transitions."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from podracer.agents.optimiser import Trained
from podracer.networks import statistics as running
from podracer.spaces import EnvSpec, zeros
from podracer.types import Array, ArrayTree, Step, TimeStep, valid_transitions


class Statistics(NamedTuple):
    """Running statistics; `()` where an agent does not normalise."""

    observation: running.RunningStatistics | tuple[()]
    discounted_return: running.RunningStatistics | tuple[()]


class LearnerState(NamedTuple):
    trained: Trained
    statistics: Statistics


class ActorParams(NamedTuple):
    params: ArrayTree
    statistics: Statistics


class ActorMemory(NamedTuple):
    """The memory of a batch of actors."""

    core: ArrayTree  # [B, ...] of a recurrent network
    discounted_return: Array | tuple[()]  # [B] f32 of the episode so far, where rewards are scaled by its deviation


class Transitions(NamedTuple):
    """An unroll as pairs of neighbouring steps, `[T, B]`."""

    reward: Array  # f32, scaled where the agent does
    discount: Array  # f32, of the environment
    valid: Array  # bool


def init_statistics(spec: EnvSpec, normalise_observations: bool, normalise_rewards: bool) -> Statistics:
    """Makes statistics of no sample."""
    return Statistics(
        running.init(zeros(spec.observation)) if normalise_observations else (),
        running.init(jnp.zeros(())) if normalise_rewards else (),
    )


def init_memory(core: ArrayTree, batch_size: int, normalise_rewards: bool) -> ActorMemory:
    """Makes the memory of actors from that of their network."""
    return ActorMemory(core, jnp.zeros((batch_size,)) if normalise_rewards else ())


def normalise_observation(statistics: Statistics, observation: ArrayTree) -> ArrayTree:
    """Normalises the float leaves, where the agent does."""
    if statistics.observation == ():
        return observation
    return running.normalise(statistics.observation, observation)


def remember(
    memory: ActorMemory, core: ArrayTree, timestep: TimeStep, extras: dict[str, Any], discount_factor: float
) -> tuple[ActorMemory, dict[str, Any]]:
    """Advances the memory by a timestep; adds to what is recorded what the statistics will need."""
    if isinstance(memory.discounted_return, tuple):
        return ActorMemory(core, ()), extras
    carry, total = running.return_accumulator(
        memory.discounted_return, timestep.reward, timestep.step_type, discount_factor
    )
    return ActorMemory(core, carry), {**extras, "discounted_return": total}


def transitions(steps: Step, statistics: Statistics) -> Transitions:
    """Views `[T+1, B]` steps as `[T, B]` transitions."""
    timestep = steps.timestep
    reward = timestep.reward[1:]
    if statistics.discounted_return != ():
        reward = running.scale_reward(statistics.discounted_return, reward)
    valid = valid_transitions(timestep.step_type, timestep.discount)
    return Transitions(reward, timestep.discount[1:], valid)


def update_statistics(statistics: Statistics, steps: Step, axis_name: str | None) -> Statistics:
    """Merges the valid rows of an unroll, of all devices; the last act of an update."""
    observation, discounted_return = statistics
    valid = valid_transitions(steps.timestep.step_type, steps.timestep.discount)
    if observation != ():
        acted_on = jax.tree.map(lambda leaf: leaf[:-1], steps.timestep.observation)
        observation = running.update(observation, acted_on, valid, axis_name)
    if discounted_return != ():
        discounted_return = running.update(discounted_return, steps.extras["discounted_return"][1:], valid, axis_name)
    return Statistics(observation, discounted_return)
