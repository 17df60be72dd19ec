"""Q(λ) on fresh unrolls, without target network and replay: PQN.

"Simplifying Deep Temporal Difference Learning", Gallici et al., arXiv 2407.04811. With
`epsilon_start=0 epsilon_end=0 num_epochs=1 num_minibatches=1 optimiser_name=adam` it is the agent of
the Anakin notebook that accompanies the Podracer paper, arXiv 2104.06272: greedy, TD(λ).

Departures:
- Returns use the action values that the actors recorded, once an update.
- The learning rate and ε change between updates.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from podracer.agents import parts
from podracer.agents.exploration import explore, scheduled_epsilon
from podracer.agents.minibatches import gradients, scan_minibatches, to_rows, to_sequences
from podracer.agents.optimiser import Trained, clipped, gradient_step, scheduled
from podracer.agents.parts import ActorMemory, ActorParams, LearnerState
from podracer.losses.policy import value_loss
from podracer.losses.q_learning import of_action
from podracer.losses.returns import lambda_returns
from podracer.networks.config import NetworkConfig
from podracer.networks.models import QNetwork, q_network
from podracer.parallel import collectives
from podracer.spaces import EnvSpec, zeros
from podracer.types import ActorOutput, Array, ArrayTree, Batch, Key, PolicySnapshot, TimeStep, UpdateOutput


class Rows(NamedTuple):
    """What a minibatch is made of: `[N, ...]` single steps, or `[N, T, ...]` whole sequences if recurrent."""

    observation: ArrayTree
    is_first: Array
    action: Array
    target: Array
    valid: Array


@dataclass(frozen=True, kw_only=True)
class PQN:
    """Q(λ) with ε-greedy exploration. See `podracer.agent.Agent`."""

    spec: EnvSpec
    network: NetworkConfig
    axis_name: str | None = None

    unroll_length: int = 32
    """Steps of each environment an update."""
    num_epochs: int = 2
    """Passes over the unroll an update."""
    num_minibatches: int = 4
    """Parts of an epoch, one gradient step each."""
    optimiser_name: Literal["radam", "adam"] = "radam"
    """Rectified Adam as in the paper, or Adam."""
    learning_rate: float = 5e-4
    """Step size."""
    anneal_learning_rate: bool = True
    """Whether the learning rate falls linearly to 0 over the budget."""
    discount_factor: float = 0.99
    """γ, in [0, 1]."""
    q_lambda: float = 0.65
    """λ: weight of later rewards against action values, in [0, 1]."""
    epsilon_start: float = 1.0
    """Probability of a random action at the start."""
    epsilon_end: float = 0.05
    """Probability of a random action from `exploration_fraction` of the budget on."""
    exploration_fraction: float = 0.1
    """Share of the budget over which the probability falls linearly; 0 starts with the last."""
    max_gradient_norm: float = 10.0
    """Global norm that gradients are clipped to."""
    normalise_observations: bool = False
    """Whether float observations are normalised by running statistics."""
    normalise_rewards: bool = False
    """Whether rewards are divided by the running deviation of the discounted return."""

    traceable: ClassVar[frozenset[str]] = frozenset(
        {
            "learning_rate",
            "discount_factor",
            "q_lambda",
            "epsilon_start",
            "epsilon_end",
            "exploration_fraction",
            "max_gradient_norm",
        }
    )

    def __post_init__(self):
        if self.network.noisy:
            raise ValueError(
                "network.noisy=true explores by noise, which agent=pqn does not learn with; use agent=dqn or agent=r2d2"
            )

    @property
    def sequence_length(self) -> int:
        return self.unroll_length + 1

    @property
    def model(self) -> QNetwork:
        return q_network(self.network, self.spec)

    @property
    def optimiser(self) -> optax.GradientTransformation:
        scale = optax.scale_by_radam() if self.optimiser_name == "radam" else optax.scale_by_adam()
        return clipped(self.max_gradient_norm, scale)

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
        core, (q_value, _) = self.model.apply(params, state.core, observation, timestep.is_first)
        action = jnp.argmax(q_value, -1).astype(jnp.int32)
        if not evaluation:
            action = explore(key, action, self.epsilon(policy.progress), self.spec.action, timestep.observation)
        memory, extras = parts.remember(
            state, core, timestep, {"max_q_value": jnp.max(q_value, -1)}, self.discount_factor
        )
        return memory, ActorOutput(action, extras)

    def epsilon(self, progress: Array) -> Array:
        """`[]` the probability of a random action, a function of the share of the budget that is done."""
        return scheduled_epsilon(progress, self.epsilon_start, self.epsilon_end, self.exploration_fraction)

    def update(
        self, state: LearnerState, batch: Batch, key: Key, *, progress: Array
    ) -> tuple[LearnerState, UpdateOutput]:
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
            (rows, batch.trajectory.actor_state.core),
            rows.valid,
            key,
            num_epochs=self.num_epochs,
            num_minibatches=self.num_minibatches,
            axis_name=self.axis_name,
        )
        metrics = collectives.pmean(jax.tree.map(jnp.mean, metrics), self.axis_name)
        metrics |= {"learning_rate": learning_rate, "epsilon": jnp.asarray(self.epsilon(progress), jnp.float32)}
        statistics = parts.update_statistics(state.statistics, batch.trajectory.steps, self.axis_name)
        return LearnerState(trained, statistics), UpdateOutput(metrics)

    def rows(self, state: LearnerState, batch: Batch) -> Rows:
        """Computes λ-returns and lays the unroll out as rows that can be shuffled."""
        steps = batch.trajectory.steps
        reward, discount, valid = parts.transitions(steps, state.statistics)
        value_t = steps.extras["max_q_value"][1:]  # [T, B]
        target = lambda_returns(reward, discount * self.discount_factor, value_t, valid, self.q_lambda)
        observation = parts.normalise_observation(state.statistics, steps.timestep.observation)
        acted = jax.tree.map(lambda leaf: leaf[:-1], (observation, steps.timestep.is_first, steps.action))
        return to_rows(Rows(*acted, target, valid), whole_sequences=self.network.core != "none")

    def loss(self, params: Any, rows: Rows, memory: ArrayTree, count: Array) -> tuple[Array, dict[str, Array]]:
        """Regresses the values of the actions taken to their λ-returns.

        Args:
          params: of the network.
          rows: `[N, ...]`, or `[N, T, ...]` if recurrent.
          memory: `[N, ...]` of the core before the first step; `()` if there is none.
          count: `[]` f32, valid rows of a minibatch, averaged over the devices.

        Returns:
          The loss, and its parts; averaged over devices, means over all valid rows.
        """
        rows = to_sequences(rows, whole_sequences=self.network.core != "none")
        _, values = self.model.apply(params, memory, rows.observation, rows.is_first, method="unroll")
        q_value = of_action(values.q_value, rows.action)  # [T, N]
        loss = jnp.sum(jnp.where(rows.valid, value_loss(q_value, rows.target), 0.0)) / count
        return loss, {"q_loss": loss, "q_value": jnp.sum(jnp.where(rows.valid, q_value, 0.0)) / count}
