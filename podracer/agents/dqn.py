"""Q-learning from replay: DQN, with what was added to it over the years as options; Rainbow is all of them.

"Human-level control through deep reinforcement learning", Mnih et al., Nature 518, 2015. "Rainbow: Combining
Improvements in Deep Reinforcement Learning", Hessel et al., arXiv 1710.02298. "Munchausen Reinforcement Learning",
Vieillard et al., arXiv 2007.14430. Priorities are the store's (`replay=prioritised`); duelling and noisy layers
are the network's (`network.duelling`, `network.noisy`).

Departures:
- Random actions until the first update, from when ε falls with the budget.
- Errors are squared: the first paper's clipping of errors gives the median of returns (`huber_threshold`).
- The loss of distributions of returns is their divergence, which has the gradient of the cross-entropy and is
  what Rainbow prioritises by.
- With several steps the Munchausen bonus is that of the first action alone, as its authors' code has it. With a
  categorical distribution the entropy of the next policy moves all of its atoms alike.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from podracer.agents import parts
from podracer.agents.exploration import explore, scheduled_epsilon
from podracer.agents.importance import importance_weights
from podracer.agents.off_policy import ActorParams, LearnerState, Transition, join_sequence
from podracer.agents.optimiser import Trained, clipped, gradient_step, scheduled
from podracer.agents.targets import check_target, update_target
from podracer.losses.distributional import categorical_loss, project_categorical, quantile_loss
from podracer.losses.q_learning import greedy_policy, huber_loss, munchausen_bonus, of_action, soft_policy
from podracer.networks.action_values import ActionValues, CategoricalReturns, ExpectedReturns, QuantileReturns, Returns
from podracer.networks.config import NetworkConfig, check_feed_forward
from podracer.networks.models import QNetwork, q_network
from podracer.networks.noisy import NOISE
from podracer.parallel import collectives
from podracer.spaces import EnvSpec, zeros
from podracer.types import ActorOutput, Array, ArrayTree, Batch, Key, PolicySnapshot, TimeStep, UpdateOutput


class Rows(NamedTuple):
    """What the loss is taken of, `[N, ...]`."""

    observation: ArrayTree
    action: Array
    target: Array  # [N, K] what the network's K outputs for the action are to be
    weight: Array
    valid: Array


@dataclass(frozen=True, kw_only=True)
class DQN:
    """Q-learning with ε-greedy or noisy exploration. See `podracer.agent.Agent`."""

    spec: EnvSpec
    network: NetworkConfig
    axis_name: str | None = None

    unroll_length: int = 4
    """Steps of each environment from one learn phase to the next."""
    batch_size: int = 128
    """Transitions an update, over all learner devices."""
    n_step: int = 1
    """Rewards that a target sums, at most, before it bootstraps."""
    double: bool = True
    """Whether the online network chooses the action that the target network values; `munchausen` chooses none."""
    distribution: Literal["none", "categorical", "quantile"] = "none"
    """What is learnt of returns beside their expectation. categorical: probabilities of fixed atoms (C51); quantile:
    quantiles (QR-DQN)."""
    num_atoms: int = 51
    """Atoms of the categorical distribution."""
    value_min: float = -10.0
    """The lowest atom, in units of the return."""
    value_max: float = 10.0
    """The highest atom, in units of the return."""
    num_quantiles: int = 51
    """Quantiles of the quantile distribution."""
    huber_threshold: float | None = None
    """κ: errors beyond it count linearly (the first paper: 1), which forgets rare returns that are far from the rest.
    None: all are squared, or, of quantiles, count linearly."""
    munchausen: bool = False
    """Whether targets are soft, and likely actions rewarded."""
    munchausen_scale: float = 0.9
    """α: weight of the log-probability in the reward, in [0, 1]."""
    munchausen_temperature: float = 0.03
    """τ of the soft policy, in units of the return."""
    munchausen_clip: float = -1.0
    """l₀: bound on τ log π from below."""
    importance_exponent: float = 0.4
    """β₀: how far weights make up for prioritised sampling at the start, in [0, 1]; at the end of the budget wholly."""
    discount_factor: float = 0.99
    """γ, in [0, 1]."""
    target_period: int = 200
    """Updates from one move of the target network to the next."""
    target_tau: float = 1.0
    """τ: how far the target network moves, in (0, 1]; 1 copies."""
    epsilon_start: float = 1.0
    """Probability of a random action at the start."""
    epsilon_end: float = 0.05
    """Probability of a random action from `exploration_fraction` of the budget on."""
    exploration_fraction: float = 0.1
    """Share of the budget over which the probability changes linearly; 0 starts with the last."""
    optimiser_name: Literal["adam", "rmsprop"] = "adam"
    """Adam, or the RMSProp of the first paper."""
    learning_rate: float = 5e-4
    """Step size."""
    anneal_learning_rate: bool = False
    """Whether the learning rate falls linearly to 0 over the budget."""
    rmsprop_decay: float = 0.95
    """Decay of the average of squared gradients (RMSProp)."""
    optimiser_epsilon: float = 1e-5
    """ε of the optimiser."""
    max_gradient_norm: float = 10.0
    """Global norm that gradients are clipped to."""
    normalise_observations: bool = False
    """Whether float observations are normalised by running statistics."""

    traceable: ClassVar[frozenset[str]] = frozenset(
        {
            "munchausen_scale",
            "munchausen_temperature",
            "munchausen_clip",
            "importance_exponent",
            "discount_factor",
            "epsilon_start",
            "epsilon_end",
            "exploration_fraction",
            "learning_rate",
            "max_gradient_norm",
        }
    )

    def __post_init__(self):
        for name, least in {"batch_size": 1, "n_step": 1, "num_atoms": 2, "num_quantiles": 1}.items():
            if getattr(self, name) < least:
                raise ValueError(f"agent.{name}={getattr(self, name)} is too few; use at least {least}")
        if not self.value_min < self.value_max:
            raise ValueError(
                f"agent.value_min={self.value_min} is not below agent.value_max={self.value_max}; use the least and "
                "the greatest return"
            )
        if self.huber_threshold is not None and not self.huber_threshold > 0:
            raise ValueError(f"agent.huber_threshold={self.huber_threshold} is not positive; use null for none")
        check_target(self.target_period, self.target_tau)
        check_feed_forward(self.network)

    @property
    def sequence_length(self) -> int:
        return self.n_step + 1

    @property
    def returns(self) -> Returns:
        """What the network's outputs for an action are."""
        if self.distribution == "categorical":
            return CategoricalReturns(self.num_atoms, self.value_min, self.value_max)
        return QuantileReturns(self.num_quantiles) if self.distribution == "quantile" else ExpectedReturns()

    @property
    def model(self) -> QNetwork:
        return q_network(self.network, self.spec, self.returns)

    @property
    def optimiser(self) -> optax.GradientTransformation:
        if self.optimiser_name == "adam":
            return clipped(self.max_gradient_norm, optax.scale_by_adam(eps=self.optimiser_epsilon))
        return clipped(self.max_gradient_norm, optax.scale_by_rms(decay=self.rmsprop_decay, eps=self.optimiser_epsilon))

    def init_learner(self, key: Key) -> LearnerState:
        params = self.model.init(key, (), zeros(self.spec.observation, (1,)), jnp.ones((1,), bool))
        statistics = parts.init_statistics(self.spec, self.normalise_observations, False)
        return LearnerState(Trained(params, self.optimiser.init(params)), params, jnp.int32(0), statistics)

    def actor_params(self, state: LearnerState) -> ActorParams:
        return ActorParams(state.trained.params, state.statistics, state.updates > 0)

    def init_actor(self, key: Key, env_indices: Array, num_envs: int) -> tuple[()]:
        return ()

    def act(
        self, policy: PolicySnapshot, state: tuple[()], timestep: TimeStep, key: Key, *, evaluation: bool = False
    ) -> tuple[tuple[()], ActorOutput]:
        params, statistics, has_learnt = policy.params
        observation = parts.normalise_observation(statistics, timestep.observation)
        noise_key, explore_key = jax.random.split(key)
        values = self._values(params, observation, None if evaluation else noise_key)
        action = jnp.argmax(values.q_value, -1).astype(jnp.int32)
        if not evaluation:
            epsilon = jnp.where(has_learnt, self.epsilon(policy.progress), 1.0)
            action = explore(explore_key, action, epsilon, self.spec.action, timestep.observation)
        return state, ActorOutput(action, {})

    def epsilon(self, progress: Array) -> Array:
        """`[]` the probability of a random action, a function of the share of the budget that is done."""
        return scheduled_epsilon(progress, self.epsilon_start, self.epsilon_end, self.exploration_fraction)

    def update(
        self, state: LearnerState, batch: Batch, key: Key, *, progress: Array
    ) -> tuple[LearnerState, UpdateOutput]:
        steps, statistics = batch.trajectory.steps, state.statistics
        target_key, online_key = jax.random.split(key)
        transition = join_sequence(steps, statistics, self.discount_factor)
        rows = Rows(
            transition.observation,
            transition.action,
            self.targets(state, transition, target_key),
            importance_weights(batch.probabilities, self.importance_exponent, progress, self.axis_name),
            transition.valid,
        )
        count = jnp.maximum(collectives.pmean(jnp.sum(rows.valid, dtype=jnp.float32), self.axis_name), 1e-6)
        gradients, (metrics, priorities) = jax.grad(self.loss, has_aux=True)(
            state.trained.params, rows, count, online_key
        )
        learning_rate = scheduled(self.learning_rate, progress, self.anneal_learning_rate)
        trained, gradient_norm = gradient_step(self.optimiser, state.trained, gradients, learning_rate, self.axis_name)
        updates = state.updates + 1
        target_params = update_target(state.target_params, trained.params, updates, self.target_period, self.target_tau)
        metrics = collectives.pmean(metrics, self.axis_name)
        metrics |= {"gradient_norm": gradient_norm, "learning_rate": learning_rate}
        metrics["epsilon"] = jnp.asarray(self.epsilon(progress), jnp.float32)
        statistics = parts.update_statistics(statistics, steps, self.axis_name)
        return LearnerState(trained, target_params, updates, statistics), UpdateOutput(metrics, priorities)

    def targets(self, state: LearnerState, transition: Transition, key: Key) -> Array:
        """Computes what the network's outputs for the actions taken are to be.

        Args:
          state: with the parameters, and those of the target network.
          transition: `[N, ...]`.
          key: consumed by noisy layers.

        Returns:
          `[N, K]` probabilities of the atoms, quantiles, or the expected return alone.
        """
        reward, discount = transition.reward, transition.discount
        target_key, other_key = jax.random.split(key)
        next_values = self._values(state.target_params, transition.last_observation, target_key)
        bonus = jnp.zeros_like(reward)  # what the next policy gets beside its returns
        if self.munchausen:
            probabilities, _, entropy = soft_policy(next_values.q_value, self.munchausen_temperature)
            bonus = self.munchausen_temperature * entropy
            reward = reward + self._munchausen_bonus(state, transition, other_key)
        elif self.double:
            selector = self._values(state.trained.params, transition.last_observation, other_key)
            probabilities = greedy_policy(selector.q_value)
        else:
            probabilities = greedy_policy(next_values.q_value)

        def of_policy(outputs: Array) -> Array:
            return jnp.sum(probabilities[..., None] * outputs, axis=1)

        def discounted(next_return: Array) -> Array:
            return reward[:, None] + discount[:, None] * (next_return + bonus[:, None])

        if self.distribution == "categorical":
            atoms = jnp.asarray(self.returns.atoms)
            next_probabilities = of_policy(jax.nn.softmax(next_values.outputs))
            return project_categorical(discounted(atoms[None]), next_probabilities, atoms)
        return discounted(of_policy(next_values.outputs))

    def loss(self, params: ArrayTree, rows: Rows, count: Array, key: Key) -> tuple[Array, tuple[dict, Array]]:
        """Brings the values of the actions taken nearer to their targets.

        Args:
          params: of the network.
          rows: `[N, ...]`.
          count: `[]` f32, valid rows of a device, averaged over the devices.
          key: consumed by noisy layers.

        Returns:
          The weighted loss; metrics, which are means over all valid rows when averaged over devices; `[N]` priorities.
        """
        values = self._values(params, rows.observation, key)
        outputs = of_action(jnp.swapaxes(values.outputs, 1, 2), rows.action[:, None])  # [N, K]
        if self.distribution == "categorical":
            losses = priorities = categorical_loss(outputs, rows.target)
        elif self.distribution == "quantile":
            losses = priorities = quantile_loss(outputs, rows.target, self.huber_threshold)
        else:
            error = jax.lax.stop_gradient(rows.target[:, 0]) - outputs[:, 0]
            losses = huber_loss(error, self.huber_threshold) if self.huber_threshold else 0.5 * jnp.square(error)
            priorities = jnp.abs(error)

        def mean(x: Array) -> Array:
            return jnp.sum(jnp.where(rows.valid, x, 0.0)) / count

        loss = mean(rows.weight * losses)
        metrics = {"q_loss": loss, "q_value": mean(of_action(values.q_value, rows.action))}
        return loss, (metrics, priorities)

    def _munchausen_bonus(self, state: LearnerState, transition: Transition, key: Key) -> Array:
        """`[N]` what the actions taken are rewarded with for being likely."""
        values = self._values(state.target_params, transition.observation, key)
        policy = soft_policy(values.q_value, self.munchausen_temperature)
        log_prob = of_action(policy.log_probs, transition.action)
        return munchausen_bonus(log_prob, self.munchausen_scale, self.munchausen_temperature, self.munchausen_clip)

    def _values(self, params: ArrayTree, observation: ArrayTree, noise_key: Key | None) -> ActionValues:
        """The values of all actions, `[N, A]`; of noisy layers with noise if there is a key."""
        rngs = {} if noise_key is None else {NOISE: noise_key}
        is_first = jnp.zeros(jax.tree.leaves(observation)[0].shape[:1], bool)
        return self.model.apply(params, (), observation, is_first, rngs=rngs)[1]
