"""Proximal policy optimisation.

"Proximal Policy Optimization Algorithms", Schulman et al., arXiv 1707.06347, with the details that
"Implementation Matters in Deep Policy Gradients", Engstrom et al., arXiv 2005.12729, lists.

Departures:
- Advantages are normalised once over the whole batch of all devices, not per minibatch: the
  objective does not change with the number of devices or minibatches.
- Advantages and value targets use the values that the actors recorded, once an update.
- The learning rate changes between updates, not between the gradient steps of one.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from podracer.agents import parts
from podracer.agents.minibatches import gradients, scan_minibatches, to_rows, to_sequences
from podracer.agents.optimiser import Trained, clipped, gradient_step, scheduled
from podracer.agents.parts import ActorMemory, ActorParams, LearnerState
from podracer.losses.policy import (
    approximate_kl,
    clipped_surrogate_loss,
    clipped_value_loss,
    normalise_advantages,
    value_loss,
)
from podracer.losses.returns import generalized_advantages
from podracer.networks.config import NetworkConfig
from podracer.networks.models import ActorCritic, actor_critic
from podracer.parallel import collectives
from podracer.spaces import EnvSpec, zeros
from podracer.types import ActorOutput, Array, ArrayTree, Batch, Key, PolicySnapshot, TimeStep, UpdateOutput


class Rows(NamedTuple):
    """What a minibatch is made of: `[N, ...]` single steps, or `[N, T, ...]` whole sequences if recurrent."""

    observation: ArrayTree
    is_first: Array
    action: Array
    log_prob: Array
    value: Array
    advantage: Array
    target: Array
    valid: Array


@dataclass(frozen=True, kw_only=True)
class PPO:
    """Proximal policy optimisation. See `podracer.agent.Agent`."""

    spec: EnvSpec
    network: NetworkConfig
    axis_name: str | None = None

    unroll_length: int = 128
    """Steps of each environment an update."""
    num_epochs: int = 4
    """Passes over the unroll an update."""
    num_minibatches: int = 4
    """Parts of an epoch, one gradient step each."""
    learning_rate: float = 2.5e-4
    """Step size of Adam."""
    anneal_learning_rate: bool = True
    """Whether the learning rate falls linearly to 0 over the budget."""
    discount_factor: float = 0.99
    """γ, in [0, 1]."""
    gae_lambda: float = 0.95
    """λ of generalised advantages, in [0, 1]."""
    clip_epsilon: float = 0.2
    """ε: how far the probability ratio may move before its gradient is cut."""
    clip_value: bool = True
    """Whether the value may move by ε only, too."""
    value_cost: float = 0.5
    """Weight of the value loss."""
    entropy_cost: float = 0.01
    """Weight of the entropy bonus."""
    max_gradient_norm: float = 0.5
    """Global norm that gradients are clipped to."""
    adam_epsilon: float = 1e-5
    """ε of Adam."""
    normalise_advantages: bool = True
    """Whether advantages are shifted and scaled to mean 0 and deviation 1."""
    normalise_observations: bool = False
    """Whether float observations are normalised by running statistics."""
    normalise_rewards: bool = False
    """Whether rewards are divided by the running deviation of the discounted return."""

    traceable: ClassVar[frozenset[str]] = frozenset(
        {
            "learning_rate",
            "discount_factor",
            "gae_lambda",
            "clip_epsilon",
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
        return clipped(self.max_gradient_norm, optax.scale_by_adam(eps=self.adam_epsilon))

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
        extras = {"log_prob": output.policy.log_prob(action), "value": output.value}
        memory, extras = parts.remember(state, core, timestep, extras, self.discount_factor)
        return memory, ActorOutput(action, extras)

    def update(
        self, state: LearnerState, batch: Batch, key: Key, *, progress: Array
    ) -> tuple[LearnerState, UpdateOutput]:
        steps, memory = batch.trajectory.steps, batch.trajectory.actor_state.core
        rows = self.rows(state, batch)
        learning_rate = scheduled(self.learning_rate, progress, self.anneal_learning_rate)

        def step(trained: Trained, minibatch: tuple[Rows, ArrayTree], count: Array):
            gradient, metrics = gradients(
                self.loss,
                trained.params,
                minibatch,
                count,
                steps_per_row=1 if self.network.core == "none" else self.unroll_length,
                chunk_size=self.network.chunk_size,
            )
            trained, gradient_norm = gradient_step(self.optimiser, trained, gradient, learning_rate, self.axis_name)
            return trained, {**metrics, "gradient_norm": gradient_norm}

        trained, metrics = scan_minibatches(
            step,
            state.trained,
            (rows, memory),
            rows.valid,
            key,
            num_epochs=self.num_epochs,
            num_minibatches=self.num_minibatches,
            axis_name=self.axis_name,
        )
        metrics = collectives.pmean(jax.tree.map(jnp.mean, metrics), self.axis_name)
        metrics["learning_rate"] = learning_rate
        statistics = parts.update_statistics(state.statistics, steps, self.axis_name)
        return LearnerState(trained, statistics), UpdateOutput(metrics)

    def rows(self, state: LearnerState, batch: Batch) -> Rows:
        """Estimates advantages and lays the unroll out as rows that can be shuffled."""
        steps = batch.trajectory.steps
        reward, discount, valid = parts.transitions(steps, state.statistics)
        value = steps.extras["value"]  # [T+1, B]
        advantage = generalized_advantages(
            value[:-1], reward, discount * self.discount_factor, value[1:], valid, self.gae_lambda
        )
        target = advantage + value[:-1]
        if self.normalise_advantages:
            advantage = normalise_advantages(advantage, valid, self.axis_name)
        observation = parts.normalise_observation(state.statistics, steps.timestep.observation)
        acted = jax.tree.map(
            lambda leaf: leaf[:-1],
            (observation, steps.timestep.is_first, steps.action, steps.extras["log_prob"], value),
        )
        return to_rows(Rows(*acted, advantage, target, valid), whole_sequences=self.network.core != "none")

    def loss(self, params: Any, rows: Rows, memory: ArrayTree, count: Array) -> tuple[Array, dict[str, Array]]:
        """Scores the policy and its values on a minibatch.

        Args:
          params: of the network.
          rows: `[N, ...]`, or `[N, T, ...]` if recurrent.
          memory: `[N, ...]` of the core before the first step; `()` if there is none.
          count: `[]` f32, valid rows of a minibatch, averaged over the devices.

        Returns:
          The loss, and its parts; averaged over devices, means over all valid rows.
        """
        rows = to_sequences(rows, whole_sequences=self.network.core != "none")
        _, output = self.model.apply(params, memory, rows.observation, rows.is_first, method="unroll")
        log_prob = output.policy.log_prob(rows.action)

        def mean(x: Array) -> Array:
            return jnp.sum(jnp.where(rows.valid, x, 0.0)) / count

        if self.clip_value:
            value_losses = clipped_value_loss(output.value, rows.value, rows.target, self.clip_epsilon)
        else:
            value_losses = value_loss(output.value, rows.target)
        metrics = {
            "policy_loss": mean(clipped_surrogate_loss(log_prob, rows.log_prob, rows.advantage, self.clip_epsilon)),
            "value_loss": mean(value_losses),
            "entropy": mean(output.policy.entropy()),
            "approximate_kl": mean(approximate_kl(log_prob, rows.log_prob)),
            "clip_fraction": mean(jnp.abs(jnp.exp(log_prob - rows.log_prob) - 1.0) > self.clip_epsilon),
        }
        loss = metrics["policy_loss"] + self.value_cost * metrics["value_loss"] - self.entropy_cost * metrics["entropy"]
        return loss, metrics
