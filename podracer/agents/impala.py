"""IMPALA: an actor-critic that corrects for the lag of its actors by V-trace.

"IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures",
Espeholt et al., arXiv 1802.01561. The agent of Sebulba's headline figures in the Podracer paper.

Departures:
- The loss is the mean over the valid rows of a batch, where the paper's code sums over time and batch:
  the learning rate does not depend on either, and `max_gradient_norm` and `rmsprop_epsilon` are of that scale.
- The learning rate changes between updates, which are its gradient steps.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import optax

from podracer.agents import parts
from podracer.agents.optimiser import Trained, clipped, gradient_step, scheduled
from podracer.agents.parts import ActorMemory, ActorParams, LearnerState
from podracer.losses.policy import policy_gradient_loss, value_loss
from podracer.losses.vtrace import vtrace
from podracer.networks.config import NetworkConfig
from podracer.networks.models import ActorCritic, actor_critic
from podracer.parallel import collectives
from podracer.spaces import EnvSpec, zeros
from podracer.types import ActorOutput, Array, Batch, Key, PolicySnapshot, TimeStep, UpdateOutput


@dataclass(frozen=True, kw_only=True)
class IMPALA:
    """Actor-critic with V-trace. See `podracer.agent.Agent`."""

    spec: EnvSpec
    network: NetworkConfig
    axis_name: str | None = None

    unroll_length: int = 20
    """Steps of each environment an update."""
    optimiser_name: Literal["rmsprop", "adam"] = "rmsprop"
    """The paper's RMSProp, or Adam."""
    learning_rate: float = 6e-4
    """Step size."""
    anneal_learning_rate: bool = True
    """Whether the learning rate falls linearly to 0 over the budget."""
    discount_factor: float = 0.99
    """γ, in [0, 1]."""
    vtrace_lambda: float = 1.0
    """λ: weight of later corrections, in [0, 1]."""
    clip_rho: float = 1.0
    """ρ̄: bound on the importance weight of a temporal difference."""
    clip_c: float = 1.0
    """c̄: bound on the importance weight that a correction passes back through."""
    clip_pg_rho: float = 1.0
    """Bound on the importance weight of the policy's gradient."""
    value_cost: float = 0.5
    """Weight of the value loss."""
    entropy_cost: float = 0.01
    """Weight of the entropy bonus."""
    max_gradient_norm: float = 0.5
    """Global norm that gradients are clipped to."""
    rmsprop_decay: float = 0.99
    """Decay of the average of squared gradients (RMSProp)."""
    epsilon: float = 1e-5
    """ε of the optimiser."""
    normalise_observations: bool = False
    """Whether float observations are normalised by running statistics."""
    normalise_rewards: bool = False
    """Whether rewards are divided by the running deviation of the discounted return."""

    traceable: ClassVar[frozenset[str]] = frozenset(
        {
            "learning_rate",
            "discount_factor",
            "vtrace_lambda",
            "clip_rho",
            "clip_c",
            "clip_pg_rho",
            "value_cost",
            "entropy_cost",
            "max_gradient_norm",
        }
    )

    @property
    def sequence_length(self) -> int:
        return self.unroll_length + 1

    @property
    def model(self) -> ActorCritic:
        return actor_critic(self.network, self.spec)

    @property
    def optimiser(self) -> optax.GradientTransformation:
        if self.optimiser_name == "adam":
            return clipped(self.max_gradient_norm, optax.scale_by_adam(eps=self.epsilon))
        return clipped(self.max_gradient_norm, optax.scale_by_rms(decay=self.rmsprop_decay, eps=self.epsilon))

    def init_learner(self, key: Key) -> LearnerState:
        memory = self.model.initial_memory(1)
        params = self.model.init(key, memory, zeros(self.spec.observation, (1,)), jnp.ones((1,), bool))
        statistics = parts.init_statistics(self.spec, self.normalise_observations, self.normalise_rewards)
        return LearnerState(Trained(params, self.optimiser.init(params)), statistics)

    def actor_params(self, state: LearnerState) -> ActorParams:
        return ActorParams(state.trained.params, state.statistics)

    def init_actor(self, key: Key, env_indices: Array, num_envs: int) -> ActorMemory:
        batch_size = env_indices.shape[0]
        return parts.init_memory(self.model.initial_memory(batch_size), batch_size, self.normalise_rewards)

    def act(
        self, policy: PolicySnapshot, state: ActorMemory, timestep: TimeStep, key: Key, *, evaluation: bool = False
    ) -> tuple[ActorMemory, ActorOutput]:
        params, statistics = policy.params
        observation = parts.normalise_observation(statistics, timestep.observation)
        core, output = self.model.apply(params, state.core, observation, timestep.is_first)
        action = output.policy.mode() if evaluation else output.policy.sample(key)
        extras = {"log_prob": output.policy.log_prob(action)}
        memory, extras = parts.remember(state, core, timestep, extras, self.discount_factor)
        return memory, ActorOutput(action, extras)

    def update(
        self, state: LearnerState, batch: Batch, key: Key, *, progress: Array
    ) -> tuple[LearnerState, UpdateOutput]:
        del key  # nothing is drawn
        trained, statistics = state
        learning_rate = scheduled(self.learning_rate, progress, self.anneal_learning_rate)
        valid = parts.transitions(batch.trajectory.steps, statistics).valid
        count = jnp.maximum(collectives.pmean(jnp.sum(valid, dtype=jnp.float32), self.axis_name), 1e-6)
        gradients, metrics = jax.grad(self.loss, has_aux=True)(trained.params, statistics, batch, count)
        trained, gradient_norm = gradient_step(self.optimiser, trained, gradients, learning_rate, self.axis_name)
        metrics = collectives.pmean(metrics, self.axis_name)
        metrics |= {"gradient_norm": gradient_norm, "learning_rate": learning_rate}
        statistics = parts.update_statistics(statistics, batch.trajectory.steps, self.axis_name)
        return LearnerState(trained, statistics), UpdateOutput(metrics)

    def loss(
        self, params: Any, statistics: parts.Statistics, batch: Batch, count: Array
    ) -> tuple[Array, dict[str, Array]]:
        """Scores the policy and its values on a batch of unrolls.

        Args:
          params: of the network.
          statistics: that the actors normalised with.
          batch: `[T+1, B, ...]`.
          count: `[]` f32, valid rows of a device, averaged over the devices.

        Returns:
          The loss, and its parts; averaged over devices, means over all valid rows.
        """
        steps, memory = batch.trajectory.steps, batch.trajectory.actor_state.core
        reward, discount, valid = parts.transitions(steps, statistics)
        observation = parts.normalise_observation(statistics, steps.timestep.observation)
        _, output = self.model.apply(params, memory, observation, steps.timestep.is_first, method="unroll")
        log_prob = output.policy.log_prob(steps.action)[:-1]  # [T, B]
        log_rho = log_prob - steps.extras["log_prob"][:-1]
        returns = vtrace(
            output.value[:-1],
            reward,
            discount * self.discount_factor,
            output.value[1:],
            log_rho,
            valid,
            lambda_=self.vtrace_lambda,
            clip_rho=self.clip_rho,
            clip_c=self.clip_c,
            clip_pg_rho=self.clip_pg_rho,
        )

        def mean(x: Array) -> Array:
            return jnp.sum(jnp.where(valid, x, 0.0)) / count

        metrics = {
            "policy_loss": mean(policy_gradient_loss(log_prob, returns.pg_advantages)),
            "value_loss": mean(value_loss(output.value[:-1], returns.targets)),
            "entropy": mean(output.policy.entropy()[:-1]),
            "rho": mean(jnp.exp(log_rho)),
        }
        loss = metrics["policy_loss"] + self.value_cost * metrics["value_loss"] - self.entropy_cost * metrics["entropy"]
        return loss, metrics
