"""The networks that agents ask for: preprocessing, torso, core and heads put together."""

from typing import NamedTuple

import flax.linen as nn

from podracer.networks.action_values import ActionValues, ExpectedReturns, QHead, Returns
from podracer.networks.config import NetworkConfig
from podracer.networks.distributions import Distribution
from podracer.networks.heads import PolicyHead, ValueHead, check_actions
from podracer.networks.preprocess import Features, preprocess
from podracer.networks.recurrent import Core, GRUCell, LSTMCell
from podracer.networks.torsos import Torso, resolve_activation, resolve_torso
from podracer.spaces import Discrete, EnvSpec
from podracer.types import Array, ArrayTree

_CELLS = {"gru": GRUCell, "lstm": LSTMCell}
_EXPECTED = ExpectedReturns()


class PolicyValue(NamedTuple):
    policy: Distribution  # of [...] actions
    value: Array  # [...] f32


def actor_critic(config: NetworkConfig, spec: EnvSpec) -> "ActorCritic":
    """Makes the module of a policy and a value function.

    Raises:
      ValueError: the network cannot read the observations or make the actions of the environment.
    """
    check_actions(spec)
    return ActorCritic(config, spec, resolve_torso(config, spec))


def q_network(config: NetworkConfig, spec: EnvSpec, returns: Returns = _EXPECTED) -> "QNetwork":
    """Makes the module of a value for each action.

    Args:
      config: of the network.
      spec: of the environment, with `Discrete` actions.
      returns: what is learnt of an action's return.

    Raises:
      ValueError: the actions are not `Discrete`, or the network cannot read the observations.
    """
    if not isinstance(spec.action, Discrete):
        raise ValueError(
            f"an agent that learns the value of each action needs Discrete actions, but {spec.id} has {spec.action}; "
            "use an agent with a policy, such as agent=ppo"
        )
    check_actions(spec)
    return QNetwork(config, spec, resolve_torso(config, spec), returns)


class Trunk(nn.Module):
    """A torso and, in a recurrent network, a core."""

    config: NetworkConfig
    torso_kind: str

    def setup(self):
        self.torso = Torso(self.config, self.torso_kind)
        self.core = _core(self.config)

    def __call__(self, memory: ArrayTree, features: Features, is_first: Array) -> tuple[ArrayTree, Array]:
        """Computes `[*is_first.shape, H]` from merged features: one step for `[B]`, an unroll for `[T, B]`."""
        x = self.torso(features)
        x = x.reshape(*is_first.shape, x.shape[-1])
        if self.core is None:
            return memory, x
        return self.core(memory, x, is_first) if is_first.ndim == 1 else self.core.unroll(memory, x, is_first)


class ActorCritic(nn.Module):
    """A policy and a value function; made by `actor_critic`."""

    config: NetworkConfig
    spec: EnvSpec
    torso_kind: str

    def setup(self):
        self.policy_trunk = Trunk(self.config, self.torso_kind)
        self.value_trunk = None if self.config.shared_torso else Trunk(self.config, self.torso_kind)
        self.policy_head = PolicyHead(self.spec.action, self.config.policy)
        self.value_head = ValueHead()

    @nn.nowrap
    def initial_memory(self, batch_size: int) -> ArrayTree:
        """The memory before an episode, `[B, ...]`; `()` in a feed-forward network. Needs no parameters."""
        memory = _initial_memory(self.config, batch_size)
        return (memory, memory) if self._has_two_memories else memory

    def __call__(self, memory: ArrayTree, observation: ArrayTree, is_first: Array) -> tuple[ArrayTree, PolicyValue]:
        """Runs one step.

        Args:
          memory: `[B, ...]`, from `initial_memory` or the step before; reset where `is_first`.
          observation: `[B, ...]` in the environment's own dtype.
          is_first: `[B]` bool.

        Returns:
          memory `[B, ...]` and the policy and value of `[B]`.
        """
        features = _preprocess(self.spec, self.torso_kind, observation, is_first)
        policy_memory, value_memory = memory if self._has_two_memories else (memory, memory)
        policy_memory, x = self.policy_trunk(policy_memory, features, is_first)
        y = x
        if self.value_trunk is not None:
            value_memory, y = self.value_trunk(value_memory, features, is_first)
        policy = self.policy_head(x, _unmerge(features.action_mask, is_first))
        memory = (policy_memory, value_memory) if self._has_two_memories else policy_memory
        return memory, PolicyValue(policy, self.value_head(y))

    def unroll(self, memory: ArrayTree, observation: ArrayTree, is_first: Array) -> tuple[ArrayTree, PolicyValue]:
        """Runs T steps, the same as T calls but in one batch: all but `memory` is `[T, B, ...]`."""
        return self(memory, observation, is_first)

    @property
    def _has_two_memories(self) -> bool:
        return self.config.core != "none" and not self.config.shared_torso


class QNetwork(nn.Module):
    """A value for each of A actions; made by `q_network`."""

    config: NetworkConfig
    spec: EnvSpec
    torso_kind: str
    returns: Returns

    def setup(self):
        config = self.config
        self.trunk = Trunk(config, self.torso_kind)
        activation = resolve_activation(config, self.torso_kind)
        self.head = QHead(
            self.spec.action.num_values, self.returns, config.head_sizes, activation, config.duelling, config.noisy
        )

    @nn.nowrap
    def initial_memory(self, batch_size: int) -> ArrayTree:
        """The memory before an episode, `[B, ...]`; `()` in a feed-forward network. Needs no parameters."""
        return _initial_memory(self.config, batch_size)

    def __call__(self, memory: ArrayTree, observation: ArrayTree, is_first: Array) -> tuple[ArrayTree, ActionValues]:
        """Runs one step, as `ActorCritic` does; returns memory and the values of `[B, A]` actions.

        Noisy layers are so only if there is a key for the collection `noise`.
        """
        features = _preprocess(self.spec, self.torso_kind, observation, is_first)
        memory, x = self.trunk(memory, features, is_first)
        return memory, self.head(x, _unmerge(features.action_mask, is_first))

    def unroll(self, memory: ArrayTree, observation: ArrayTree, is_first: Array) -> tuple[ArrayTree, ActionValues]:
        """Runs T steps, the same as T calls but in one batch; returns memory and the values of `[T, B, A]` actions."""
        return self(memory, observation, is_first)


def _core(config: NetworkConfig) -> Core | None:
    return None if config.core == "none" else Core(_CELLS[config.core](config.core_size))


def _initial_memory(config: NetworkConfig, batch_size: int) -> ArrayTree:
    return (
        () if config.core == "none" else _CELLS[config.core](config.core_size, parent=None).initial_memory(batch_size)
    )


def _preprocess(spec: EnvSpec, torso_kind: str, observation: ArrayTree, is_first: Array) -> Features:
    return preprocess(spec.observation, observation, batch_ndim=is_first.ndim, with_images=torso_kind != "mlp")


def _unmerge(action_mask: Array | None, is_first: Array) -> Array | None:
    return None if action_mask is None else action_mask.reshape(*is_first.shape, action_mask.shape[-1])
