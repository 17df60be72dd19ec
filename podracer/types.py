"""The nouns: everything that travels between environments, agents, replay and runners.

Arrays are time-major. T is the length of an unroll, B the number of environments on a device.
Every environment, on the device or on the host, resets on the NEXT step: LAST carries the true last
observation of an episode, the FIRST after it carries the first observation of the next one, and the
action between the two is ignored.
"""

from typing import Any, Generic, NamedTuple, TypeVar

import jax
import numpy as np

Array = jax.Array | np.ndarray
ArrayTree = Any
Key = jax.Array

ActorParams = TypeVar("ActorParams")
ActorState = TypeVar("ActorState")


class StepType:
    """The place of a step in its episode, as dm_env has it."""

    FIRST = np.int8(0)
    MID = np.int8(1)
    LAST = np.int8(2)


class TimeStep(NamedTuple):
    """What an environment says. Leaves `[B, ...]`; a single environment has leaves without B."""

    step_type: Array  # [B] int8, StepType
    reward: Array  # [B] f32, the consequence of the previous action; 0 on FIRST
    discount: Array  # [B] f32, 0 iff the episode truly ended; 1 on truncation
    observation: ArrayTree  # [B, ...] in the environment's own dtype
    extras: ArrayTree = ()  # [B, ...] not recorded: EpisodeStatistics

    @property
    def is_first(self) -> Array:
        return self.step_type == StepType.FIRST

    @property
    def is_last(self) -> Array:
        return self.step_type == StepType.LAST


class EpisodeStatistics(NamedTuple):
    """Raw figures of the episode in hand, put into `TimeStep.extras` by every environment.

    Raw: before reward clipping or scaling, over whole games rather than lives, resets not counted.
    """

    episode_return: Array  # [B] f32, sum of the raw rewards so far
    episode_length: Array  # [B] int32, agent decisions so far
    ended: Array  # [B] bool, True once an episode: on the step that ends it


class Step(NamedTuple):
    """What is recorded at time t."""

    timestep: TimeStep  # with its extras emptied
    action: Array  # [B, ...] what the policy sampled, before any clipping
    extras: ArrayTree  # [B, ...] what `act` chose to record: log_prob, value, search policy


class Trajectory(NamedTuple):
    """One unroll. Step T is acted for its value but not executed; the next unroll begins with it."""

    steps: Step  # [T+1, B, ...]
    actor_state: ArrayTree  # [B, ...] the actor's memory before steps[0]


class Batch(NamedTuple):
    """What replay hands to `Agent.update`."""

    trajectory: Trajectory  # [L+1, B, ...]
    indices: ArrayTree  # [B] opaque to the agent
    probabilities: Array  # [B] sampling probabilities; ones when uniform or on-policy


class PolicySnapshot(NamedTuple, Generic[ActorParams]):
    """All that travels from the learner to the actors."""

    params: ActorParams
    progress: Array  # [] f32 in [0, 1], share of the budget done: schedules
    version: Array  # [] int32, number of updates behind these params: policy lag


class ActorOutput(NamedTuple):
    action: Array  # [B, ...]
    extras: ArrayTree  # [B, ...] recorded in Step.extras


class UpdateOutput(NamedTuple):
    metrics: dict[str, Array]  # scalars, averaged over all devices
    priorities: Array | None = None  # [B] new priorities of the batch, or None


def valid_transitions(step_type: Array, discount: Array) -> Array:
    """Says which pairs of neighbouring steps are transitions of one episode.

    validₜ = (step_typeₜ ≠ LAST) ∧ ¬(step_typeₜ₊₁ = FIRST ∧ discountₜ₊₁ ≠ 0)

    LAST → FIRST is a reset. MID → FIRST with discount 1 is an environment that was restarted; with
    discount 0 it is a true end in an environment that resets within the step. This is the only
    definition: losses, statistics, counters and samplers all ask here.

    Args:
      step_type: `[T+1, ...]` int8.
      discount: `[T+1, ...]` the environment's discount.

    Returns:
      `[T, ...]` bool; NumPy in, NumPy out.
    """
    joined = (step_type[1:] == StepType.FIRST) & (discount[1:] != 0)
    return (step_type[:-1] != StepType.LAST) & ~joined
