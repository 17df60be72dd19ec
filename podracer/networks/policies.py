"""Policies without a value: what the actor of an actor-critic with separate critics acts by."""

from typing import Literal

import flax.linen as nn
import jax.numpy as jnp

from podracer.networks.config import NetworkConfig, check_feed_forward
from podracer.networks.distributions import Distribution
from podracer.networks.heads import PolicyHead, check_actions
from podracer.networks.preprocess import batch_shape, preprocess
from podracer.networks.torsos import Torso, resolve_torso
from podracer.spaces import Box, EnvSpec
from podracer.types import Array, ArrayTree

# Actions begin near the middle of the range, where tanh has a slope.
_action_init = nn.initializers.orthogonal(0.01)


def policy_network(
    config: NetworkConfig, spec: EnvSpec, continuous: Literal["normal", "state_normal", "tanh_normal"]
) -> "PolicyNetwork":
    """Makes the module of a policy.

    Args:
      config: with `policy=auto` or `policy=continuous`.
      spec: of the environment.
      continuous: the distribution of continuous actions that the agent needs.

    Raises:
      ValueError: the network is recurrent, has another distribution, or cannot read the observations or make the
        actions of the environment.
    """
    if config.policy not in ("auto", continuous):
        raise ValueError(f"network.policy={config.policy}, but this agent needs {continuous}; use network.policy=auto")
    check_feed_forward(config)
    check_actions(spec)
    return PolicyNetwork(config, spec, resolve_torso(config, spec), continuous)


def deterministic_policy(config: NetworkConfig, spec: EnvSpec) -> "DeterministicPolicy":
    """Makes the module of a policy that chooses one continuous action.

    Raises:
      ValueError: the network is recurrent or has a distribution, the actions are not continuous, or the network
        cannot read the observations.
    """
    if not isinstance(spec.action, Box):
        raise ValueError(
            f"an agent with a deterministic policy needs continuous actions, but {spec.id} has {spec.action}; use an "
            "agent for discrete ones, such as agent=ppo"
        )
    if config.policy != "auto":
        raise ValueError(f"network.policy={config.policy}, but this agent's policy is no distribution; leave it out")
    check_feed_forward(config)
    check_actions(spec)
    return DeterministicPolicy(config, spec, resolve_torso(config, spec))


class PolicyNetwork(nn.Module):
    """A distribution of actions; made by `policy_network`."""

    config: NetworkConfig
    spec: EnvSpec
    torso_kind: str
    continuous: str

    def setup(self):
        self.encoder = _Encoder(self.config, self.spec, self.torso_kind)
        self.head = PolicyHead(self.spec.action, self.continuous)

    def __call__(self, observation: ArrayTree) -> Distribution:
        """Computes the policy of `[...]` observations, in the environment's own dtype."""
        return self.head(*self.encoder(observation))


class DeterministicPolicy(nn.Module):
    """One action for each observation; made by `deterministic_policy`."""

    config: NetworkConfig
    spec: EnvSpec
    torso_kind: str

    def setup(self):
        self.encoder = _Encoder(self.config, self.spec, self.torso_kind)
        self.head = nn.Dense(self.spec.action.shape[0], kernel_init=_action_init)

    def __call__(self, observation: ArrayTree) -> Array:
        """Computes `[..., K]` actions in [-1, 1] from `[...]` observations, in the environment's own dtype."""
        x, _ = self.encoder(observation)
        return jnp.tanh(self.head(x))


class _Encoder(nn.Module):
    """Preprocessing and a torso: `[..., H]`, and `[..., A]` which actions are legal, if the environment says so."""

    config: NetworkConfig
    spec: EnvSpec
    torso_kind: str

    @nn.compact
    def __call__(self, observation: ArrayTree) -> tuple[Array, Array | None]:
        space = self.spec.observation
        shape = batch_shape(space, observation)
        features = preprocess(space, observation, batch_ndim=len(shape), with_images=self.torso_kind != "mlp")
        x = Torso(self.config, self.torso_kind)(features).reshape(*shape, -1)
        mask = features.action_mask
        return x, None if mask is None else mask.reshape(*shape, -1)
