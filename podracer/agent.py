"""The verbs: what an RL algorithm is. The first file to read.

env --TimeStep--> agent.act --Step--> Trajectory --(queue | variable)--> replay --Batch-->
    agent.update --> LearnerState --actor_params--> PolicySnapshot --(store | variable)--> agent.act
"""

import dataclasses
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from podracer.types import ActorOutput, Array, Batch, Key, PolicySnapshot, TimeStep, UpdateOutput

LearnerState = TypeVar("LearnerState")
ActorParams = TypeVar("ActorParams")
ActorState = TypeVar("ActorState")


class Agent(Protocol[LearnerState, ActorParams, ActorState]):
    """An RL algorithm: pure functions over explicit state.

    No method jits, places data, starts a thread, reads a clock or steps an environment.
    Arrays are per device; T is time, B is batch, time first.

    A concrete agent is a frozen dataclass. Its hyper-parameters are its fields, and they are the
    configuration: `agent.learning_rate=1e-3` on the command line sets the field `learning_rate`.
    Three further fields are filled in by `podracer.build`:

      spec: EnvSpec            what the environment accepts and emits
      network: NetworkConfig   which network to build
      axis_name: str | None    the mesh axis of the learner devices, used only by `collectives.pmean`
    """

    traceable: ClassVar[frozenset[str]]  # float fields that may be traced: no Python branch looks at them
    unroll_length: int  # T, the acting chunk
    sequence_length: int  # timesteps in one training sequence, bootstrap included; T+1 on-policy

    def init_learner(self, key: Key) -> LearnerState:
        """Makes the learner's state: parameters, optimiser, statistics. Called under jit."""
        ...

    def actor_params(self, state: LearnerState) -> ActorParams:
        """Selects what actors need of the learner's state."""
        ...

    def init_actor(self, key: Key, env_indices: Array, num_envs: int) -> ActorState:
        """Makes the memory of a batch of actors.

        Args:
          key: consumed.
          env_indices: `[B]` int32 global indices of the environments, for ladders of exploration.
          num_envs: global number of environments.
        """
        ...

    def act(
        self, policy: PolicySnapshot, state: ActorState, timestep: TimeStep, key: Key, *, evaluation: bool = False
    ) -> tuple[ActorState, ActorOutput]:
        """Chooses actions for `[B]` timesteps; with `evaluation` greedily, without exploration.

        The memory of an environment is reset in here, where its timestep is FIRST.
        """
        ...

    def update(
        self, state: LearnerState, batch: Batch, key: Key, *, progress: Array
    ) -> tuple[LearnerState, UpdateOutput]:
        """Learns from one batch: all epochs, minibatches and optimisers of the algorithm.

        Args:
          state: the learner's state; its tree, shapes and dtypes are those of the one returned.
          batch: `[L+1, B, ...]`, this device's share.
          key: consumed; different on every device.
          progress: `[]` f32, share of the budget done before this update.
        """
        ...


def hyper_parameters(agent: Agent) -> dict[str, np.float32]:
    """The fields of an agent that a program takes as arguments instead of constants."""
    return {name: np.float32(getattr(agent, name)) for name in sorted(agent.traceable)}


def with_hyper_parameters(agent: Agent, hyper: dict[str, Any]) -> Agent:
    """The same agent with (traced) values for some of its traceable fields."""
    return dataclasses.replace(agent, **hyper)
