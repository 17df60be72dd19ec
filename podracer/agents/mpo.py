"""Maximum a posteriori policy optimisation, for continuous and for discrete actions.

"Maximum a Posteriori Policy Optimisation", Abdolmaleki et al., arXiv 1806.06920, with the bounds on mean and
deviation apart of "Relative Entropy Regularized Policy Iteration", Abdolmaleki et al., arXiv 1812.02256.

Continuous actions are drawn from a normal policy without bounds. They are stored as they were drawn; the
environment and the critic get them clipped to [-1, 1], so that Q is the value of what was done, and is
asked for nothing that can never be seen. A penalty keeps the policy near the bounds, as in Acme.

Departures:
- The critic learns by n-step temporal differences from the target policy, as in Acme, in place of Retrace.
- Each component of an action has bounds and multipliers of its own, as in Acme.
- With discrete actions all of them are weighed by the target policy, and none are sampled.
- The weights of prioritised replay correct the loss of the critic alone.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from podracer.agents import parts
from podracer.agents.importance import importance_weights
from podracer.agents.improvement import Candidates, improve_categorical, improve_normal
from podracer.agents.off_policy import ActorParams, LearnerState, Transition, join_sequence, uniform_actions
from podracer.agents.optimiser import Trained, gradient_step
from podracer.agents.targets import check_target, update_target
from podracer.losses import mpo
from podracer.losses.policy import value_loss
from podracer.losses.q_learning import of_action
from podracer.networks.config import NetworkConfig
from podracer.networks.critics import Critics, critics
from podracer.networks.policies import PolicyNetwork, policy_network
from podracer.parallel import collectives
from podracer.spaces import Box, EnvSpec, zeros
from podracer.types import ActorOutput, Array, ArrayTree, Batch, Key, PolicySnapshot, TimeStep, UpdateOutput

# Where softplus leaves dual variables of about 10⁻⁸: lower ones would take long to come back.
_LOWEST_DUAL = -18.0


class Networks(NamedTuple):
    policy: ArrayTree
    critic: ArrayTree


class Params(NamedTuple):
    policy: ArrayTree
    critic: ArrayTree
    duals: dict[str, Array]  # unbounded: see `podracer.losses.mpo.positive_dual`

    @property
    def networks(self) -> Networks:
        return Networks(self.policy, self.critic)


class Targets(NamedTuple):
    """What critic and policy are fitted to, from the target networks."""

    q_value: Array  # [B]
    weight: Array  # [B] of the critic's loss
    candidates: Candidates


class Losses(NamedTuple):
    """What comes of the loss beside its gradient."""

    metrics: dict[str, Array]  # [] means over the valid rows of all devices, once averaged over devices
    priorities: Array  # [B] |Q(s, a) − y|


@dataclass(frozen=True, kw_only=True)
class MPO:
    """Maximum a posteriori policy optimisation. See `podracer.agent.Agent`."""

    spec: EnvSpec
    network: NetworkConfig
    axis_name: str | None = None

    unroll_length: int = 4
    """Steps of each environment from one learn phase to the next."""
    batch_size: int = 256
    """Sequences of `n_step` transitions an update, over all learner devices."""
    n_step: int = 5
    """Rewards before the critic bootstraps."""
    num_samples: int = 20
    """Actions that the policy is improved over, and valued by; with discrete actions it is all of them."""
    learning_rate: float = 3e-4
    """Step size of the policy."""
    critic_learning_rate: float = 3e-4
    """Step size of the critic."""
    dual_learning_rate: float = 1e-2
    """Step size of the dual variables."""
    discount_factor: float = 0.99
    """γ, in [0, 1]."""
    target_period: int = 100
    """Updates from one move of the target networks to the next."""
    target_tau: float = 1.0
    """Share of the way that target networks move; 1 copies."""
    epsilon: float = 0.1
    """Bound on the divergence of the improved policy from the target policy, in nats."""
    epsilon_mean: float = 2.5e-3
    """Bound on the divergence by the mean, a component; continuous actions."""
    epsilon_std: float = 1e-6
    """Bound on the divergence by the standard deviation, a component; continuous actions."""
    epsilon_policy: float = 2.5e-3
    """Bound on the divergence of the policy from the target policy; discrete actions."""
    penalise_bounds: bool = True
    """Whether actions outside of the bounds weigh less, by a second objective; continuous actions."""
    epsilon_penalty: float = 1e-3
    """Bound on the divergence of the policy improved by that objective from the target policy."""
    initial_temperature: float = 10.0
    """Of both objectives, in units of their values."""
    initial_multiplier: float = 10.0
    """Of the bounds on the mean and on a discrete policy."""
    initial_std_multiplier: float = 1000.0
    """Of the bound on the standard deviation."""
    importance_exponent: float = 0.4
    """β₀: how far weights make up for prioritised sampling at the start, in [0, 1]; at the end of the budget wholly."""
    normalise_observations: bool = False
    """Whether float observations are normalised by running statistics."""

    traceable: ClassVar[frozenset[str]] = frozenset(
        {
            "learning_rate",
            "critic_learning_rate",
            "dual_learning_rate",
            "discount_factor",
            "epsilon",
            "epsilon_mean",
            "epsilon_std",
            "epsilon_policy",
            "epsilon_penalty",
            "initial_temperature",
            "initial_multiplier",
            "initial_std_multiplier",
            "importance_exponent",
        }
    )

    def __post_init__(self):
        for name in ("batch_size", "n_step", "num_samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"agent.{name}={getattr(self, name)} is too few; use at least 1")
        check_target(self.target_period, self.target_tau)

    @property
    def sequence_length(self) -> int:
        return self.n_step + 1

    @property
    def samples_per_insert(self) -> float:
        return 32.0  # as in Acme

    @property
    def policy_model(self) -> PolicyNetwork:
        return policy_network(self.network, self.spec, "state_normal")

    @property
    def critic_model(self) -> Critics:
        return critics(self.network, self.spec, num_critics=1)

    @property
    def optimiser(self) -> optax.GradientTransformation:
        return optax.scale_by_adam()

    @property
    def is_continuous(self) -> bool:
        return isinstance(self.spec.action, Box)

    def init_learner(self, key: Key) -> LearnerState:
        policy_key, critic_key = jax.random.split(key)
        observation = zeros(self.spec.observation, (1,))
        # The critic reads continuous actions, and values all discrete ones.
        actions = (jnp.zeros((1, *self.spec.action.shape)),) if self.is_continuous else ()
        params = Params(
            self.policy_model.init(policy_key, observation),
            self.critic_model.init(critic_key, observation, *actions),
            self.init_duals(),
        )
        statistics = parts.init_statistics(self.spec, self.normalise_observations, False)
        trained = Trained(params, self.optimiser.init(params))
        return LearnerState(trained, params.networks, jnp.int32(0), statistics)

    def init_duals(self) -> dict[str, Array]:
        """Makes the parameters of a temperature for each objective, and of a multiplier for each bound."""
        initial = {"temperature": self.initial_temperature, "policy": self.initial_multiplier}
        if self.is_continuous:
            ones = jnp.ones(self.spec.action.shape)
            initial = {
                "temperature": self.initial_temperature,
                "mean": self.initial_multiplier * ones,
                "std": self.initial_std_multiplier * ones,
            }
            if self.penalise_bounds:
                initial["penalty_temperature"] = self.initial_temperature
        return {name: mpo.inverse_positive_dual(dual) for name, dual in initial.items()}

    @property
    def bounds(self) -> dict[str, Array | float]:
        """Of the divergences, by the names of their dual variables."""
        return {
            "temperature": self.epsilon,
            "penalty_temperature": self.epsilon_penalty,
            "mean": self.epsilon_mean,
            "std": self.epsilon_std,
            "policy": self.epsilon_policy,
        }

    def actor_params(self, state: LearnerState) -> ActorParams:
        return ActorParams(state.trained.params.policy, state.statistics, state.updates > 0)

    def init_actor(self, key: Key, env_indices: Array, num_envs: int) -> tuple[()]:
        return ()

    def act(
        self, policy: PolicySnapshot, state: tuple[()], timestep: TimeStep, key: Key, *, evaluation: bool = False
    ) -> tuple[tuple[()], ActorOutput]:
        params, statistics, has_learnt = policy.params
        observation = parts.normalise_observation(statistics, timestep.observation)
        distribution = self.policy_model.apply(params, observation)
        if evaluation:
            return state, ActorOutput(distribution.mode(), {})
        sample_key, uniform_key = jax.random.split(key)
        uniform = uniform_actions(self.spec.action, timestep.observation, uniform_key)
        return state, ActorOutput(jnp.where(has_learnt, distribution.sample(sample_key), uniform), {})

    def update(
        self, state: LearnerState, batch: Batch, key: Key, *, progress: Array
    ) -> tuple[LearnerState, UpdateOutput]:
        steps, statistics = batch.trajectory.steps, state.statistics
        transition = join_sequence(steps, statistics, self.discount_factor)
        weight = importance_weights(batch.probabilities, self.importance_exponent, progress, self.axis_name)
        targets = self.targets(state.target_params, transition, weight, key)
        gradients, losses = jax.grad(self.loss, has_aux=True)(state.trained.params, transition, targets)
        learning_rates = Params(self.learning_rate, self.critic_learning_rate, self.dual_learning_rate)
        trained, gradient_norm = gradient_step(self.optimiser, state.trained, gradients, learning_rates, self.axis_name)
        duals = jax.tree.map(lambda dual: jnp.maximum(dual, _LOWEST_DUAL), trained.params.duals)
        trained = trained._replace(params=trained.params._replace(duals=duals))
        updates = state.updates + 1
        target_params = update_target(
            state.target_params, trained.params.networks, updates, self.target_period, self.target_tau
        )
        metrics = collectives.pmean(losses.metrics, self.axis_name) | {"gradient_norm": gradient_norm}
        statistics = parts.update_statistics(statistics, steps, self.axis_name)
        return LearnerState(trained, target_params, updates, statistics), UpdateOutput(metrics, losses.priorities)

    def targets(self, networks: Networks, transition: Transition, weight: Array, key: Key) -> Targets:
        """Computes what critic and policy are fitted to.

        Args:
          networks: the target networks.
          transition: `[B, ...]`.
          weight: `[B]` of the critic's loss.
          key: consumed, where actions are drawn.
        """
        first_key, last_key = jax.random.split(key)
        value = self.candidates(networks, transition.last_observation, last_key).value
        q_value = transition.reward + transition.discount * value
        return Targets(q_value, weight, self.candidates(networks, transition.observation, first_key))

    def candidates(self, networks: Networks, observation: ArrayTree, key: Key) -> Candidates:
        """Values N actions in each of `[B]` states by a target policy and its critic."""
        policy = self.policy_model.apply(networks.policy, observation)
        if not self.is_continuous:
            q_value = self.critic_model.apply(networks.critic, observation)[0].T  # [A, B]
            return Candidates(policy, (), policy.log_probs.T, q_value)
        repeated, observation = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf[None], (self.num_samples, *leaf.shape)), (policy, observation)
        )
        action = repeated.sample(key)  # [N, B, K]
        q_value = self.q_value(networks.critic, observation, action)
        return Candidates(policy, action, jnp.full_like(q_value, -math.log(self.num_samples)), q_value)

    def q_value(self, params: ArrayTree, observation: ArrayTree, action: Array) -> Array:
        """`[...]` values of actions, recorded or drawn."""
        if self.is_continuous:
            return self.critic_model.apply(params, observation, jnp.clip(action, -1.0, 1.0))[0]
        return of_action(self.critic_model.apply(params, observation)[0], action)

    def loss(self, params: Params, transition: Transition, targets: Targets) -> tuple[Array, Losses]:
        """Scores the critic by its targets, the policy by how it fits what improves it, and the duals by the bounds.

        Args:
          params: of the networks, and of the dual variables.
          transition: `[B, ...]`.
          targets: of the same rows.

        Returns:
          The sum of the losses, and its parts.
        """
        valid = transition.valid
        count = jnp.maximum(collectives.pmean(jnp.sum(valid, dtype=jnp.float32), self.axis_name), 1e-6)
        q_value = self.q_value(params.critic, transition.observation, transition.action)
        policy = self.policy_model.apply(params.policy, transition.observation)
        duals = jax.tree.map(mpo.positive_dual, params.duals)
        improve = improve_normal if self.is_continuous else improve_categorical
        policy_loss, dual_loss, divergences = improve(policy, targets.candidates, duals, self.bounds)

        def mean(x: Array) -> Array:
            return jnp.sum(jnp.where(valid, x, 0.0)) / count

        metrics = {
            "policy_loss": mean(policy_loss),
            "critic_loss": mean(targets.weight * value_loss(q_value, targets.q_value)),
            "dual_loss": mean(dual_loss),
            "q_value": mean(q_value),
            "entropy": mean(policy.entropy()),
            **{name: mean(kl) for name, kl in divergences.items()},
            **{f"dual_{name}": jnp.mean(dual) for name, dual in duals.items()},
        }
        total = metrics["policy_loss"] + metrics["critic_loss"] + metrics["dual_loss"]
        return total, Losses(metrics, jnp.where(valid, jnp.abs(q_value - targets.q_value), 0.0))
