"""An agent that learns nothing and checks, from inside, that it is called as it has to be."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp

from podracer.agent import Agent
from podracer.parallel import collectives
from podracer.spaces import EnvSpec
from podracer.types import ActorOutput, Array, UpdateOutput


class Memory(NamedTuple):
    index: Array  # [B] int32, global index of the environment
    age: Array  # [B] int32, steps since the last FIRST


@dataclass(frozen=True, kw_only=True)
class ContinuityAgent:
    """For the probe `counter`, which observes the steps since its episode began."""

    spec: EnvSpec
    axis_name: str | None
    unroll_length: int
    fault: str = ""

    traceable: ClassVar[frozenset[str]] = frozenset()

    @staticmethod
    def like(agent: Agent, fault: str = "") -> "ContinuityAgent":
        return ContinuityAgent(
            spec=agent.spec, axis_name=agent.axis_name, unroll_length=agent.unroll_length, fault=fault
        )

    @property
    def sequence_length(self):
        return self.unroll_length + 1

    def init_learner(self, key):
        return jnp.zeros((), jnp.int32)  # updates so far

    def actor_params(self, state):
        return state

    def init_actor(self, key, env_indices, num_envs):
        return Memory(env_indices + (self.fault == "shifts_columns"), jnp.full(env_indices.shape, -1, jnp.int32))

    def act(self, policy, state, timestep, key, *, evaluation=False):
        restarts = timestep.is_first & (self.fault != "forgets_resets")
        memory = Memory(state.index, jnp.where(restarts, 0, state.age + 1))
        version = jnp.broadcast_to(policy.version, state.age.shape)
        behind = jnp.broadcast_to(policy.version - policy.params, state.age.shape)
        extras = {**memory._asdict(), "version": version, "behind": behind}
        return memory, ActorOutput(jnp.zeros_like(state.age), extras)

    def update(self, state, batch, key, *, progress):
        steps, before = batch.trajectory
        recorded, num_envs = steps.extras, steps.timestep.reward.shape[1]
        first_column = collectives.axis_index(self.axis_name) * num_envs
        columns = jnp.broadcast_to(first_column + jnp.arange(num_envs), recorded["index"].shape)
        continued = ~steps.timestep.is_first[0]
        wrong = {
            "age_errors": recorded["age"] != steps.timestep.observation[..., 0],
            "memory_errors": continued & (before.age + 1 != recorded["age"][0]),
            "column_errors": recorded["index"] != columns,
            "parameter_errors": recorded["behind"] != 0,
            "version_errors": recorded["version"] > state,
            "lag": state - recorded["version"],
        }
        metrics: dict[str, Any] = {name: jnp.mean(value.astype(jnp.float32)) for name, value in wrong.items()}
        return state + 1, UpdateOutput(collectives.pmean(metrics, self.axis_name))
