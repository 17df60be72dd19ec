"""Soft actor-critic: a policy that is as random as its returns allow. For continuous and for discrete actions.

"Soft Actor-Critic Algorithms and Applications", Haarnoja et al., arXiv 1812.05905. With discrete actions
expectations over the policy are exact: "Soft Actor-Critic for Discrete Action Settings", Christodoulou,
arXiv 1910.07207.

Departures:
- Policy, critics and temperature take one step together, all from the parameters before it, so that there
  is one backward pass and one collective an update.
- The slope of log α is the gap between the entropy and its target, not α times that gap: the temperature
  comes back from near 0 as fast as it went there.
- For discrete actions the target entropy is half of the greatest, where the paper has 0.98 of it, with
  which the policy stays near random; and the lower of the critics counts for the policy, too.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from podracer.agents import parts
from podracer.agents.importance import importance_weights
from podracer.agents.off_policy import ActorParams, LearnerState, Transition, join_sequence, uniform_actions
from podracer.agents.optimiser import Trained, gradient_step
from podracer.agents.targets import check_target, update_target
from podracer.losses.actor_critic import critics_loss, expected_soft_value, soft_value, temperature_loss
from podracer.losses.q_learning import of_action
from podracer.networks.config import NetworkConfig
from podracer.networks.critics import Critics, critics
from podracer.networks.policies import PolicyNetwork, policy_network
from podracer.parallel import collectives
from podracer.spaces import Box, Discrete, EnvSpec, zeros
from podracer.types import ActorOutput, Array, ArrayTree, Batch, Key, PolicySnapshot, TimeStep, UpdateOutput


class Params(NamedTuple):
    policy: ArrayTree
    critics: ArrayTree
    log_temperature: Array  # [] log α


class Losses(NamedTuple):
    """What comes of the loss beside its gradient."""

    metrics: dict[str, Array]  # [] means over the valid rows of all devices, once averaged over devices
    priorities: Array  # [N] mean over the critics of |y − Q(s, a)|


@dataclass(frozen=True, kw_only=True)
class SAC:
    """Soft actor-critic. See `podracer.agent.Agent`."""

    spec: EnvSpec
    network: NetworkConfig
    axis_name: str | None = None

    unroll_length: int = 4
    """Steps of each environment from one learn phase to the next."""
    batch_size: int = 256
    """Transitions an update, over all learner devices."""
    learning_rate: float = 3e-4
    """Step size of the policy."""
    critic_learning_rate: float = 3e-4
    """Step size of the critics."""
    temperature_learning_rate: float = 3e-4
    """Step size of log α."""
    discount_factor: float = 0.99
    """γ, in [0, 1]."""
    num_critics: int = 2
    """Critics, of which the lowest counts."""
    target_period: int = 1
    """Updates from one move of the target critics to the next."""
    target_tau: float = 0.005
    """τ: how far the target critics move, in (0, 1]; 1 copies."""
    learn_temperature: bool = True
    """Whether the temperature is learnt, or stays at `initial_temperature`."""
    initial_temperature: float = 1.0
    """α at the start: the worth of a nat of entropy, in units of reward."""
    target_entropy: float | None = None
    """Entropy of the policy that the temperature is learnt for, in nats. None: −1 for each dimension of continuous
    actions; `target_entropy_share` of the greatest, log A, for discrete ones."""
    target_entropy_share: float = 0.5
    """The target entropy of discrete actions as a share of the greatest, in (0, 1)."""
    importance_exponent: float = 0.4
    """β₀: how far weights of the critics' loss make up for prioritised sampling at the start, in [0, 1]; at the end of
    the budget wholly."""
    normalise_observations: bool = False
    """Whether float observations are normalised by running statistics."""

    traceable: ClassVar[frozenset[str]] = frozenset(
        {
            "learning_rate",
            "critic_learning_rate",
            "temperature_learning_rate",
            "discount_factor",
            "importance_exponent",
        }
    )

    def __post_init__(self):
        for name in ("batch_size", "num_critics"):
            if getattr(self, name) < 1:
                raise ValueError(f"agent.{name}={getattr(self, name)} is too few; use at least 1")
        if not self.initial_temperature > 0:
            raise ValueError(f"agent.initial_temperature={self.initial_temperature} is not positive; use 1e-8 for none")
        check_target(self.target_period, self.target_tau)
        _check_target_entropy(self)

    @property
    def sequence_length(self) -> int:
        return 2

    @property
    def samples_per_insert(self) -> float:
        return float(self.batch_size)  # one update a transition, as in the paper

    @property
    def policy_model(self) -> PolicyNetwork:
        return policy_network(self.network, self.spec, "tanh_normal")

    @property
    def critics_model(self) -> Critics:
        return critics(self.network, self.spec, self.num_critics)

    @property
    def optimiser(self) -> optax.GradientTransformation:
        return optax.scale_by_adam()

    def init_learner(self, key: Key) -> LearnerState:
        policy_key, critics_key = jax.random.split(key)
        observation = zeros(self.spec.observation, (1,))
        # Critics read continuous actions, and value all discrete ones.
        actions = (zeros(self.spec.action, (1,)).astype("float32"),) if isinstance(self.spec.action, Box) else ()
        critics_params = self.critics_model.init(critics_key, observation, *actions)
        params = Params(
            self.policy_model.init(policy_key, observation),
            critics_params,
            jnp.log(jnp.float32(self.initial_temperature)),
        )
        statistics = parts.init_statistics(self.spec, self.normalise_observations, False)
        return LearnerState(Trained(params, self.optimiser.init(params)), critics_params, jnp.int32(0), statistics)

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
        loss = jax.grad(self.loss, has_aux=True)
        gradients, losses = loss(state.trained.params, state.target_params, transition, weight, key)
        learning_rates = Params(self.learning_rate, self.critic_learning_rate, self.temperature_learning_rate)
        trained, gradient_norm = gradient_step(self.optimiser, state.trained, gradients, learning_rates, self.axis_name)
        updates = state.updates + 1
        target_params = update_target(
            state.target_params, trained.params.critics, updates, self.target_period, self.target_tau
        )
        metrics = collectives.pmean(losses.metrics, self.axis_name) | {"gradient_norm": gradient_norm}
        statistics = parts.update_statistics(statistics, steps, self.axis_name)
        return LearnerState(trained, target_params, updates, statistics), UpdateOutput(metrics, losses.priorities)

    def loss(
        self, params: Params, target_params: ArrayTree, transition: Transition, weight: Array, key: Key
    ) -> tuple[Array, Losses]:
        """Scores policy, critics and temperature, each by its own loss, on a batch of transitions.

        Args:
          params: of policy, critics and temperature.
          target_params: of the target critics.
          transition: `[N, ...]`.
          weight: `[N]` of each in the loss of the critics.
          key: consumed; actions of the policy are drawn, if they are continuous.

        Returns:
          The sum of the losses, and its parts.
        """
        policy_key, next_key = jax.random.split(key)
        temperature = jnp.exp(jax.lax.stop_gradient(params.log_temperature))

        next_value, _ = self._soft_value(
            params.policy, target_params, temperature, transition.last_observation, next_key
        )
        target = jax.lax.stop_gradient(transition.reward + transition.discount * next_value)  # [N]
        q_values = self._q_values(params.critics, transition.observation, transition.action)  # [C, N]
        # The policy's gradient passes through the critics, and leaves them alone.
        fixed_critics = jax.lax.stop_gradient(params.critics)
        value, entropy = self._soft_value(params.policy, fixed_critics, temperature, transition.observation, policy_key)

        num_valid = jnp.sum(transition.valid, dtype=jnp.float32)
        count = jnp.maximum(collectives.pmean(num_valid, self.axis_name), 1e-6)

        def mean(x: Array) -> Array:
            return jnp.sum(jnp.where(transition.valid, x, 0.0)) / count

        metrics = {
            "critics_loss": mean(weight * critics_loss(q_values, target)),
            "policy_loss": mean(-value),
            "temperature_loss": mean(temperature_loss(params.log_temperature, entropy, self.entropy_target)),
            "temperature": temperature,
            "entropy": mean(entropy),
            "q_value": mean(jnp.mean(q_values, axis=0)),
        }
        total = metrics["critics_loss"] + metrics["policy_loss"]
        if self.learn_temperature:
            total += metrics["temperature_loss"]
        return total, Losses(metrics, jnp.mean(jnp.abs(target[None] - q_values), axis=0))

    @property
    def entropy_target(self) -> float:
        """H̄, in nats."""
        if self.target_entropy is not None:
            return self.target_entropy
        if isinstance(self.spec.action, Discrete):
            return self.target_entropy_share * math.log(self.spec.action.num_values)
        return -float(math.prod(self.spec.action.shape))

    def _q_values(self, critics_params: ArrayTree, observation: ArrayTree, action: Array) -> Array:
        """`[C, N]` values of the actions taken."""
        if isinstance(self.spec.action, Box):
            return self.critics_model.apply(critics_params, observation, action)
        q_values = self.critics_model.apply(critics_params, observation)
        return jax.vmap(of_action, in_axes=(0, None))(q_values, action)

    def _soft_value(
        self, policy_params: ArrayTree, critics_params: ArrayTree, temperature: Array, observation: ArrayTree, key: Key
    ) -> tuple[Array, Array]:
        """`[N]` values of states and `[N]` entropies of the policy there: exact, or estimated by one action."""
        policy = self.policy_model.apply(policy_params, observation)
        if isinstance(self.spec.action, Discrete):
            q_values = self.critics_model.apply(critics_params, observation)
            return expected_soft_value(q_values, policy.log_probs, temperature), policy.entropy()
        pre_tanh = policy.sample_pre_tanh(key)
        log_prob = policy.log_prob_pre_tanh(pre_tanh)
        q_values = self.critics_model.apply(critics_params, observation, jnp.tanh(pre_tanh))
        return soft_value(q_values, log_prob, temperature), -log_prob


def _check_target_entropy(agent: SAC) -> None:
    """Checks that there are policies on both sides of the target entropy.

    Raises:
      ValueError: with the range.
    """
    space = agent.spec.action
    if isinstance(space, Box):
        greatest = math.prod(space.shape) * math.log(2.0)  # uniform on [-1, 1] in each dimension
        if agent.target_entropy is not None and not agent.target_entropy < greatest:
            raise ValueError(
                f"agent.target_entropy={agent.target_entropy} is not below {greatest:.4g} nats, the entropy of uniform "
                f"actions of shape {space.shape}; use {-math.prod(space.shape)}, or leave it out"
            )
        return
    if not 0 < agent.target_entropy_share < 1:
        raise ValueError(f"agent.target_entropy_share={agent.target_entropy_share} is not in (0, 1); use 0.5")
    if isinstance(space, Discrete) and not 0 < agent.entropy_target < math.log(space.num_values):
        greatest = math.log(space.num_values)
        raise ValueError(
            f"agent.target_entropy={agent.target_entropy} is not in (0, {greatest:.4g}), the entropies in nats of "
            f"policies over {space.num_values} discrete actions; leave it out for {greatest / 2:.4g}"
        )
