"""An agent of your own in one file: advantage actor-critic, about as small as an agent can be.

    podracer train agent=custom agent.make=my_agent:ActorCritic agent.kwargs.learning_rate=1e-3
    podracer train agent=custom agent.make=my_agent:ActorCritic runner=sebulba env=envpool/cartpole

from this folder, or with it on PYTHONPATH. The protocol is `podracer/agent.py`; it is the whole contract.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from podracer.losses.returns import generalized_advantages
from podracer.networks.config import NetworkConfig
from podracer.networks.models import actor_critic
from podracer.parallel.collectives import masked_mean, pmean
from podracer.spaces import EnvSpec, zeros
from podracer.types import ActorOutput, UpdateOutput, valid_transitions


# Whatever changes while learning is in a state that the agent makes and returns; arrays only.
class LearnerState(NamedTuple):
    params: dict
    opt_state: optax.OptState


@dataclass(frozen=True, kw_only=True)
class ActorCritic:
    """Its fields are its settings: `agent.kwargs.discount_factor=0.9` sets the field."""

    # Filled in for you: the environment's spaces, the group `network`, the axis of the learner devices.
    spec: EnvSpec
    network: NetworkConfig
    axis_name: str | None = None

    unroll_length: int = 32
    learning_rate: float = 1e-3
    discount_factor: float = 0.99
    entropy_cost: float = 0.01

    # Fields that may be traced, so that a sweep can vary them within one program: no `if` looks at them.
    traceable: ClassVar[frozenset[str]] = frozenset({"learning_rate", "discount_factor", "entropy_cost"})

    @property
    def sequence_length(self):
        return self.unroll_length + 1  # an unroll carries one step more, for its value

    @property
    def model(self):
        return actor_critic(self.network, self.spec)  # a flax module; any other of yours will do

    @property
    def optimiser(self):
        return optax.chain(optax.clip_by_global_norm(0.5), optax.adam(self.learning_rate))

    def init_learner(self, key):
        observation = zeros(self.spec.observation, (1,))
        params = self.model.init(key, self.model.initial_memory(1), observation, jnp.ones((1,), bool))
        return LearnerState(params, self.optimiser.init(params))

    def actor_params(self, state):
        return state.params  # all that travels to the actors

    def init_actor(self, key, env_indices, num_envs):
        return self.model.initial_memory(env_indices.shape[0])  # () unless network=gru or lstm

    def act(self, policy, state, timestep, key, *, evaluation=False):
        state, output = self.model.apply(policy.params, state, timestep.observation, timestep.is_first)
        action = output.policy.mode() if evaluation else output.policy.sample(key)
        return state, ActorOutput(action, extras={})  # extras: what `update` will need to know of this moment

    def update(self, state, batch, key, *, progress):
        # One device's share of the batch. Averages over all devices go through `pmean` and `masked_mean`.
        gradients, metrics = jax.grad(self.loss, has_aux=True)(state.params, batch.trajectory)
        updates, opt_state = self.optimiser.update(pmean(gradients, self.axis_name), state.opt_state)
        return LearnerState(optax.apply_updates(state.params, updates), opt_state), UpdateOutput(metrics)

    def loss(self, params, trajectory):
        steps = trajectory.steps  # [T+1, B, ...]
        timestep = steps.timestep
        _, output = self.model.apply(
            params, trajectory.actor_state, timestep.observation, timestep.is_first, method="unroll"
        )
        # Step t+1 holds the reward and the discount that follow the action of step t.
        valid = valid_transitions(timestep.step_type, timestep.discount)  # [T, B], False between two episodes
        discount = timestep.discount[1:] * self.discount_factor
        value = output.value
        advantage = generalized_advantages(value[:-1], timestep.reward[1:], discount, value[1:], valid, lambda_=0.95)
        log_prob = output.policy.log_prob(steps.action)[:-1]
        target = jax.lax.stop_gradient(value[:-1] + advantage)

        policy_loss = masked_mean(-log_prob * advantage, valid, self.axis_name)
        value_loss = masked_mean(0.5 * jnp.square(value[:-1] - target), valid, self.axis_name)
        entropy = masked_mean(output.policy.entropy()[:-1], valid, self.axis_name)
        loss = policy_loss + 0.5 * value_loss - self.entropy_cost * entropy
        return loss, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
