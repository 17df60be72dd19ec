"""Deterministic policy gradients with critics that do not overestimate: TD3. DDPG and D4PG are settings of it.

"Addressing Function Approximation Error in Actor-Critic Methods", Fujimoto et al., arXiv 1802.09477.

DDPG, "Continuous control with deep reinforcement learning", Lillicrap et al., arXiv 1509.02971:
`num_critics=1 policy_period=1 target_period=1 target_noise=0`, with Gaussian in place of correlated noise.

D4PG, "Distributed Distributional Deterministic Policy Gradients", Barth-Maron et al., arXiv 1804.08617:
those, and `distribution=categorical n_step=5 replay=prioritised`. The critic is a distribution over returns
from `value_min` to `value_max`; of several critics the one with the lowest mean counts.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from podracer.agents import parts
from podracer.agents.importance import importance_weights
from podracer.agents.off_policy import (
    ActorParams,
    LearnerState,
    Transition,
    join_sequence,
    uniform_actions,
)
from podracer.agents.optimiser import Trained, gradient_step
from podracer.agents.targets import check_target, update_target
from podracer.losses.actor_critic import critics_loss, smoothed_action
from podracer.losses.distributional import categorical_loss, project_categorical
from podracer.networks.action_values import CategoricalReturns
from podracer.networks.config import NetworkConfig
from podracer.networks.critics import Critics, critics
from podracer.networks.policies import DeterministicPolicy, deterministic_policy
from podracer.parallel import collectives
from podracer.spaces import EnvSpec, zeros
from podracer.types import ActorOutput, Array, ArrayTree, Batch, Key, PolicySnapshot, TimeStep, UpdateOutput


class Params(NamedTuple):
    """Something of each network: its parameters, or the state of its optimiser."""

    policy: ArrayTree
    critics: ArrayTree


class CriticLosses(NamedTuple):
    """What comes of the critics' loss beside its gradient."""

    metrics: dict[str, Array]  # [] means over the valid rows of all devices, once averaged over devices
    priorities: Array  # [N] mean over the critics of |y − Q(s, a)|, or of the divergence of distributions


@dataclass(frozen=True, kw_only=True)
class TD3:
    """Twin delayed deterministic policy gradients. See `podracer.agent.Agent`."""

    spec: EnvSpec
    network: NetworkConfig
    axis_name: str | None = None

    unroll_length: int = 4
    """Steps of each environment from one learn phase to the next."""
    batch_size: int = 256
    """Sequences of `n_step` transitions an update, over all learner devices."""
    n_step: int = 1
    """Rewards before the critics bootstrap."""
    learning_rate: float = 3e-4
    """Step size of the policy."""
    critic_learning_rate: float = 3e-4
    """Step size of the critics."""
    discount_factor: float = 0.99
    """γ, in [0, 1]."""
    num_critics: int = 2
    """Critics, of which the lowest counts for the targets, and the first for the policy."""
    distribution: Literal["none", "categorical"] = "none"
    """What a critic learns: the mean of the returns, or probabilities of `num_atoms` returns."""
    num_atoms: int = 51
    """Atoms of the categorical distribution."""
    value_min: float = -10.0
    """The lowest atom, in units of the return."""
    value_max: float = 10.0
    """The highest atom, in units of the return."""
    policy_period: int = 2
    """Updates of the critics for one of the policy."""
    target_period: int = 2
    """Updates of the critics from one move of the target networks to the next."""
    target_tau: float = 0.005
    """τ: how far the target networks move, in (0, 1]; 1 copies."""
    exploration_noise: float = 0.1
    """Standard deviation of the noise in actions, of which the range is [-1, 1]."""
    target_noise: float = 0.2
    """Standard deviation of the noise in the actions that targets are of."""
    max_target_noise: float = 0.5
    """Bound on that noise."""
    importance_exponent: float = 0.4
    """β₀: how far weights of the critics' loss make up for prioritised sampling at the start, in [0, 1]; at the end of
    the budget wholly."""
    normalise_observations: bool = False
    """Whether float observations are normalised by running statistics."""

    traceable: ClassVar[frozenset[str]] = frozenset(
        {
            "learning_rate",
            "critic_learning_rate",
            "discount_factor",
            "exploration_noise",
            "target_noise",
            "max_target_noise",
            "importance_exponent",
        }
    )

    def __post_init__(self):
        for name, least in {"batch_size": 1, "n_step": 1, "num_critics": 1, "policy_period": 1, "num_atoms": 2}.items():
            if getattr(self, name) < least:
                raise ValueError(f"agent.{name}={getattr(self, name)} is too few; use at least {least}")
        if not self.value_min < self.value_max:
            raise ValueError(
                f"agent.value_min={self.value_min} is not below agent.value_max={self.value_max}; use the least and "
                "the greatest return"
            )
        check_target(self.target_period, self.target_tau)

    @property
    def sequence_length(self) -> int:
        return self.n_step + 1

    @property
    def samples_per_insert(self) -> float:
        return float(self.batch_size)  # one update a transition, as in the paper

    @property
    def policy_model(self) -> DeterministicPolicy:
        return deterministic_policy(self.network, self.spec)

    @property
    def critics_model(self) -> Critics:
        num_atoms = self.num_atoms if self.distribution == "categorical" else 1
        return critics(self.network, self.spec, self.num_critics, num_atoms)

    @property
    def returns(self) -> CategoricalReturns:
        """What the outputs of a categorical critic are."""
        return CategoricalReturns(self.num_atoms, self.value_min, self.value_max)

    @property
    def optimiser(self) -> optax.GradientTransformation:
        return optax.scale_by_adam()

    def init_learner(self, key: Key) -> LearnerState:
        policy_key, critics_key = jax.random.split(key)
        observation, action = zeros(self.spec.observation, (1,)), jnp.zeros((1, *self.spec.action.shape))
        params = Params(
            self.policy_model.init(policy_key, observation), self.critics_model.init(critics_key, observation, action)
        )
        # An optimiser each, as they do not take their steps together.
        opt_state = Params(*(self.optimiser.init(network) for network in params))
        statistics = parts.init_statistics(self.spec, self.normalise_observations, False)
        return LearnerState(Trained(params, opt_state), params, jnp.int32(0), statistics)

    def actor_params(self, state: LearnerState) -> ActorParams:
        return ActorParams(state.trained.params.policy, state.statistics, state.updates > 0)

    def init_actor(self, key: Key, env_indices: Array, num_envs: int) -> tuple[()]:
        return ()

    def act(
        self, policy: PolicySnapshot, state: tuple[()], timestep: TimeStep, key: Key, *, evaluation: bool = False
    ) -> tuple[tuple[()], ActorOutput]:
        params, statistics, has_learnt = policy.params
        observation = parts.normalise_observation(statistics, timestep.observation)
        action = self.policy_model.apply(params, observation)
        if evaluation:
            return state, ActorOutput(action, {})
        noise_key, uniform_key = jax.random.split(key)
        noise = self.exploration_noise * jax.random.normal(noise_key, action.shape)
        uniform = uniform_actions(self.spec.action, timestep.observation, uniform_key)
        return state, ActorOutput(jnp.where(has_learnt, jnp.clip(action + noise, -1.0, 1.0), uniform), {})

    def update(
        self, state: LearnerState, batch: Batch, key: Key, *, progress: Array
    ) -> tuple[LearnerState, UpdateOutput]:
        (params, opt_state), statistics = state.trained, state.statistics
        transition = join_sequence(batch.trajectory.steps, statistics, self.discount_factor)
        num_valid = jnp.sum(transition.valid, dtype=jnp.float32)
        count = jnp.maximum(collectives.pmean(num_valid, self.axis_name), 1e-6)

        weight = importance_weights(batch.probabilities, self.importance_exponent, progress, self.axis_name)
        loss = jax.grad(self.critics_loss, has_aux=True)
        gradients, losses = loss(params.critics, state.target_params, transition, weight, key, count)
        new_critics, gradient_norm = gradient_step(
            self.optimiser,
            Trained(params.critics, opt_state.critics),
            gradients,
            self.critic_learning_rate,
            self.axis_name,
        )
        updates = state.updates + 1
        policy = Trained(params.policy, opt_state.policy)
        new_policy = self._delayed_step(policy, new_critics.params, transition, count, updates)
        trained = Trained(*(Params(*pair) for pair in zip(new_policy, new_critics)))
        target_params = update_target(state.target_params, trained.params, updates, self.target_period, self.target_tau)
        metrics = collectives.pmean(losses.metrics, self.axis_name) | {"gradient_norm": gradient_norm}
        statistics = parts.update_statistics(statistics, batch.trajectory.steps, self.axis_name)
        return LearnerState(trained, target_params, updates, statistics), UpdateOutput(metrics, losses.priorities)

    def critics_loss(
        self,
        critics_params: ArrayTree,
        target_params: Params,
        transition: Transition,
        weight: Array,
        key: Key,
        count: Array,
    ) -> tuple[Array, CriticLosses]:
        """Regresses the critics to what the target networks say of the action of the target policy.

        Args:
          critics_params: of the critics.
          target_params: of the target networks.
          transition: `[N, ...]`.
          weight: `[N]` of each.
          key: consumed; the noise of the target policy's actions is drawn.
          count: `[]` f32, valid rows of a device, averaged over the devices.

        Returns:
          The loss, and its parts.
        """
        last = transition.last_observation
        action = self.policy_model.apply(target_params.policy, last)
        noise = self.target_noise * jax.random.normal(key, action.shape)
        action = smoothed_action(action, noise, self.max_target_noise)
        target_outputs = self.critics_model.apply(target_params.critics, last, action)
        outputs = self.critics_model.apply(critics_params, transition.observation, transition.action)
        if self.distribution == "categorical":
            losses, priorities = self._distribution_losses(outputs, target_outputs, transition)
        else:
            target = transition.reward + transition.discount * jnp.min(target_outputs, axis=0)
            losses, priorities = critics_loss(outputs, target), jnp.mean(jnp.abs(target[None] - outputs), axis=0)

        def mean(x: Array) -> Array:
            return jnp.sum(jnp.where(transition.valid, x, 0.0)) / count

        metrics = {"critics_loss": mean(weight * losses), "q_value": mean(jnp.mean(self._values(outputs), axis=0))}
        return metrics["critics_loss"], CriticLosses(metrics, priorities)

    def policy_loss(
        self, policy_params: ArrayTree, critics_params: ArrayTree, transition: Transition, count: Array
    ) -> Array:
        """Scores the policy by the first critic's value of its actions: −Q₁(s, π(s)), arXiv 1509.02971, eq. 6."""
        action = self.policy_model.apply(policy_params, transition.observation)
        value = self._values(self.critics_model.apply(critics_params, transition.observation, action))[0]
        return -jnp.sum(jnp.where(transition.valid, value, 0.0)) / count

    def _delayed_step(
        self, policy: Trained, critics_params: ArrayTree, transition: Transition, count: Array, updates: Array
    ) -> Trained:
        """Takes a step of the policy, if one is due."""
        is_due = updates % self.policy_period == 0
        gradients = jax.lax.cond(
            is_due,
            jax.grad(self.policy_loss),
            lambda params, *_: jax.tree.map(jnp.zeros_like, params),
            *(policy.params, critics_params, transition, count),
        )
        stepped, _ = gradient_step(self.optimiser, policy, gradients, self.learning_rate, self.axis_name)
        return jax.tree.map(lambda new, old: jnp.where(is_due, new, old), stepped, policy)

    def _distribution_losses(self, logits: Array, target_logits: Array, transition: Transition) -> tuple[Array, Array]:
        """`[N]` losses and `[N]` priorities of `[C, N, num_atoms]` critics."""
        lowest = jnp.argmin(self._values(target_logits), axis=0)  # [N]
        target_logits = jnp.take_along_axis(target_logits, lowest[None, :, None], axis=0)[0]  # [N, num_atoms]
        atoms = jnp.asarray(self.returns.atoms)
        value = transition.reward[:, None] + transition.discount[:, None] * atoms[None]
        target = project_categorical(value, jax.nn.softmax(target_logits), atoms)
        losses = jax.vmap(categorical_loss, in_axes=(0, None))(logits, target)  # [C, N]
        return jnp.sum(losses, axis=0), jnp.mean(losses, axis=0)

    def _values(self, outputs: Array) -> Array:
        """`[C, N]` values that critics stand for."""
        return self.returns.mean(outputs) if self.distribution == "categorical" else outputs
