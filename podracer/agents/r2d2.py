"""Recurrent Q-learning from replayed sequences.

"Recurrent Experience Replay in Distributed Reinforcement Learning", Kapturowski et al., ICLR 2019. The memory that
the actor had is stored with a sequence, and brought up to date by the steps before those that are learnt from.

Departures:
- A sequence runs on into the next episode, where the memory is reset and no value is carried over
  (`episode_ends`); targets of its last steps bootstrap after fewer than n steps.
- The loss is the mean over the valid steps of a batch, where the paper's sums over time.
- Without `replay=prioritised` sequences are sampled uniformly; the paper prioritises them.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from podracer.agents import parts
from podracer.agents.exploration import epsilon_ladder, explore
from podracer.agents.importance import importance_weights
from podracer.agents.off_policy import ActorParams, LearnerState
from podracer.agents.optimiser import Trained, clipped, gradient_step, scheduled
from podracer.agents.targets import check_target, update_target
from podracer.losses.policy import value_loss
from podracer.losses.q_learning import of_action
from podracer.losses.returns import n_step_returns
from podracer.losses.transforms import rescale, unscale
from podracer.networks.action_values import ActionValues
from podracer.networks.config import NetworkConfig
from podracer.networks.models import QNetwork, q_network
from podracer.networks.noisy import NOISE
from podracer.parallel import collectives
from podracer.spaces import EnvSpec, zeros
from podracer.types import ActorOutput, Array, ArrayTree, Batch, Key, PolicySnapshot, TimeStep, UpdateOutput


class ActorMemory(NamedTuple):
    """The memory of a batch of actors."""

    core: ArrayTree  # [B, ...] of a recurrent network
    epsilon: Array  # [B] f32 probability of a random action


class Sequences(NamedTuple):
    """What is learnt from, `[K+1, N, ...]`, and the memories with which it begins."""

    observation: ArrayTree
    is_first: Array
    action: Array
    transitions: parts.Transitions  # [K, N]
    memory: ArrayTree  # [N, ...] of the online network
    target_memory: ArrayTree  # [N, ...] of the target network
    weight: Array  # [N]


@dataclass(frozen=True, kw_only=True)
class R2D2:
    """Recurrent Q-learning with a ladder of ε-greedy actors. See `podracer.agent.Agent`."""

    spec: EnvSpec
    network: NetworkConfig
    axis_name: str | None = None

    unroll_length: int = 40
    """Steps of each environment from one learn phase to the next."""
    batch_size: int = 64
    """Sequences an update, over all learner devices."""
    burn_in_length: int = 40
    """Steps of a sequence that bring the stored memory up to date and are not learnt from."""
    learning_length: int = 80
    """Steps of a sequence that are learnt from."""
    sequence_period: int = 40
    """Steps from the start of one sequence to the start of the next. With a recurrent network a multiple of
    `unroll_length`, since memory is stored where an unroll begins."""
    episode_ends: Literal["reset", "mask", "cut"] = "reset"
    """What becomes of a sequence that meets the end of an episode. reset: it runs on; mask: it stops there; cut: it is
    not sampled."""
    n_step: int = 5
    """Rewards that a target sums, at most, before it bootstraps."""
    double: bool = True
    """Whether the online network chooses the action that the target network values."""
    rescale_values: bool = True
    """Whether h(x) = sign(x) (√(|x| + 1) − 1) + ε x of returns is learnt, so that rewards need no clipping."""
    rescaling_epsilon: float = 1e-3
    """ε of h, at least 0."""
    priority_max_share: float = 0.9
    """η: weight of the largest error of a sequence in its priority, beside their mean; in [0, 1]."""
    importance_exponent: float = 0.6
    """β₀: how far weights make up for prioritised sampling at the start, in [0, 1]; at the end of the budget wholly."""
    discount_factor: float = 0.997
    """γ, in [0, 1]."""
    target_period: int = 400
    """Updates from one move of the target network to the next."""
    target_tau: float = 1.0
    """τ: how far the target network moves, in (0, 1]; 1 copies."""
    epsilon_base: float = 0.4
    """ε: probability of a random action in the first environment."""
    epsilon_exponent: float = 7.0
    """α: the last environment has ε^(1 + α)."""
    learning_rate: float = 1e-4
    """Step size."""
    anneal_learning_rate: bool = False
    """Whether the learning rate falls linearly to 0 over the budget."""
    optimiser_epsilon: float = 1e-3
    """ε of Adam."""
    max_gradient_norm: float = 40.0
    """Global norm that gradients are clipped to."""
    normalise_observations: bool = False
    """Whether float observations are normalised by running statistics."""

    traceable: ClassVar[frozenset[str]] = frozenset(
        {
            "rescaling_epsilon",
            "priority_max_share",
            "importance_exponent",
            "discount_factor",
            "epsilon_base",
            "epsilon_exponent",
            "learning_rate",
            "max_gradient_norm",
        }
    )

    def __post_init__(self):
        least = {"batch_size": 1, "burn_in_length": 0, "learning_length": 1, "sequence_period": 1, "n_step": 1}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise ValueError(f"agent.{name}={getattr(self, name)} is too few; use at least {value}")
        if self.network.core != "none" and self.sequence_period % self.unroll_length:
            near = max(1, round(self.sequence_period / self.unroll_length)) * self.unroll_length
            raise ValueError(
                f"agent.sequence_period={self.sequence_period} is no multiple of agent.unroll_length="
                f"{self.unroll_length}, and the memory of network.core={self.network.core} is stored only where an "
                f"unroll begins; use agent.sequence_period={near}, or agent.unroll_length={self.sequence_period}"
            )
        check_target(self.target_period, self.target_tau)

    @property
    def sequence_length(self) -> int:
        return self.burn_in_length + self.learning_length + 1

    @property
    def transitions_per_sequence(self) -> int:
        return self.learning_length

    @property
    def model(self) -> QNetwork:
        return q_network(self.network, self.spec)

    @property
    def optimiser(self) -> optax.GradientTransformation:
        return clipped(self.max_gradient_norm, optax.scale_by_adam(eps=self.optimiser_epsilon))

    def init_learner(self, key: Key) -> LearnerState:
        memory = self.model.initial_memory(1)
        params = self.model.init(key, memory, zeros(self.spec.observation, (1,)), jnp.ones((1,), bool))
        statistics = parts.init_statistics(self.spec, self.normalise_observations, False)
        return LearnerState(Trained(params, self.optimiser.init(params)), params, jnp.int32(0), statistics)

    def actor_params(self, state: LearnerState) -> ActorParams:
        return ActorParams(state.trained.params, state.statistics, state.updates > 0)

    def init_actor(self, key: Key, env_indices: Array, num_envs: int) -> ActorMemory:
        epsilon = epsilon_ladder(self.epsilon_base, self.epsilon_exponent, env_indices, num_envs)
        return ActorMemory(self.model.initial_memory(env_indices.shape[0]), epsilon)

    def act(
        self, policy: PolicySnapshot, state: ActorMemory, timestep: TimeStep, key: Key, *, evaluation: bool = False
    ) -> tuple[ActorMemory, ActorOutput]:
        params, statistics, has_learnt = policy.params
        observation = parts.normalise_observation(statistics, timestep.observation)
        noise_key, explore_key = jax.random.split(key)
        rngs = {} if evaluation else {NOISE: noise_key}
        core, values = self.model.apply(params, state.core, observation, timestep.is_first, rngs=rngs)
        action = jnp.argmax(values.q_value, -1).astype(jnp.int32)
        if not evaluation:
            epsilon = jnp.where(has_learnt, state.epsilon, 1.0)
            action = explore(explore_key, action, epsilon, self.spec.action, timestep.observation)
        return ActorMemory(core, state.epsilon), ActorOutput(action, {})

    def update(
        self, state: LearnerState, batch: Batch, key: Key, *, progress: Array
    ) -> tuple[LearnerState, UpdateOutput]:
        statistics = state.statistics
        burn_in_key, loss_key = jax.random.split(key)
        sequences = self.sequences(state, batch, burn_in_key, progress)
        valid = sequences.transitions.valid
        count = jnp.maximum(collectives.pmean(jnp.sum(valid, dtype=jnp.float32), self.axis_name), 1e-6)
        gradients, (metrics, priorities) = jax.grad(self.loss, has_aux=True)(
            state.trained.params, state.target_params, sequences, count, loss_key
        )
        learning_rate = scheduled(self.learning_rate, progress, self.anneal_learning_rate)
        trained, gradient_norm = gradient_step(self.optimiser, state.trained, gradients, learning_rate, self.axis_name)
        updates = state.updates + 1
        target_params = update_target(state.target_params, trained.params, updates, self.target_period, self.target_tau)
        metrics = collectives.pmean(metrics, self.axis_name)
        metrics |= {"gradient_norm": gradient_norm, "learning_rate": learning_rate}
        statistics = parts.update_statistics(statistics, batch.trajectory.steps, self.axis_name)
        return LearnerState(trained, target_params, updates, statistics), UpdateOutput(metrics, priorities)

    def sequences(self, state: LearnerState, batch: Batch, key: Key, progress: Array) -> Sequences:
        """Brings the stored memories up to date, for both networks, and cuts off the steps that took.

        Args:
          state: of the learner.
          batch: `[burn_in_length + K + 1, N, ...]`.
          key: consumed by noisy layers.
          progress: `[]` share of the budget done.
        """
        steps, start = batch.trajectory.steps, self.burn_in_length
        observation = parts.normalise_observation(state.statistics, steps.timestep.observation)
        inputs = observation, steps.timestep.is_first
        before, learnt = (
            jax.tree.map(lambda leaf, at=at: leaf[at], inputs) for at in (slice(start), slice(start, None))
        )
        # Without a core there is no memory, and the store may not hold any.
        core = () if self.network.core == "none" else batch.trajectory.actor_state.core
        memories = [core, core]
        if self.network.core != "none" and start:
            networks = (state.trained.params, state.target_params)
            memories = [self._unroll(params, core, *before, key)[0] for params in networks]
        return Sequences(
            *learnt,
            steps.action[start:],
            jax.tree.map(lambda leaf: leaf[start:], parts.transitions(steps, state.statistics)),
            *memories,
            importance_weights(batch.probabilities, self.importance_exponent, progress, self.axis_name),
        )

    def loss(
        self, params: ArrayTree, target_params: ArrayTree, sequences: Sequences, count: Array, key: Key
    ) -> tuple[Array, tuple[dict, Array]]:
        """Brings the values of the actions taken nearer to their n-step returns.

        Args:
          params: of the network.
          target_params: of the target network.
          sequences: `[K+1, N, ...]`.
          count: `[]` f32, valid transitions of a device, averaged over the devices.
          key: consumed by noisy layers.

        Returns:
          The weighted loss; metrics, which are means over all valid rows when averaged over devices; `[N]` priorities.
        """
        online_key, target_key = jax.random.split(key)
        inputs = sequences.observation, sequences.is_first
        _, values = self._unroll(params, sequences.memory, *inputs, online_key)
        _, target_values = self._unroll(target_params, sequences.target_memory, *inputs, target_key)
        target = self._targets(values.q_value if self.double else target_values.q_value, target_values, sequences)
        q_value = of_action(values.q_value, sequences.action)[:-1]  # [K, N]
        valid = sequences.transitions.valid
        error = jnp.where(valid, target - q_value, 0.0)

        def mean(x: Array) -> Array:
            return jnp.sum(jnp.where(valid, x, 0.0)) / count

        loss = mean(sequences.weight[None] * value_loss(q_value, target))
        metrics = {"q_loss": loss, "q_value": mean(self._unscaled(q_value))}
        return loss, (metrics, self._priorities(jnp.abs(error), valid))

    def _targets(self, selector: Array, values: ActionValues, sequences: Sequences) -> Array:
        """`[K, N]` n-step returns that bootstrap from `values` of the actions that are best by `selector`."""
        reward, discount, valid = sequences.transitions
        value = of_action(values.outputs[..., 0], jnp.argmax(selector, -1))[1:]  # [K, N]
        value = self._unscaled(value)
        target = n_step_returns(reward, discount * self.discount_factor, value, valid, self.n_step)
        return rescale(target, self.rescaling_epsilon) if self.rescale_values else target

    def _unscaled(self, q_value: Array) -> Array:
        return unscale(q_value, self.rescaling_epsilon) if self.rescale_values else q_value

    def _priorities(self, error: Array, valid: Array) -> Array:
        """`[N]` p = η maxₜ |δₜ| + (1 − η) meanₜ |δₜ| over the valid steps of `[K, N]`; 0 where there are none."""
        mean = jnp.sum(error, axis=0) / jnp.maximum(jnp.sum(valid, axis=0), 1)
        return self.priority_max_share * jnp.max(error, axis=0) + (1.0 - self.priority_max_share) * mean

    def _unroll(
        self, params: ArrayTree, memory: ArrayTree, observation: ArrayTree, is_first: Array, key: Key
    ) -> tuple[ArrayTree, ActionValues]:
        return self.model.apply(params, memory, observation, is_first, method="unroll", rngs={NOISE: key})
