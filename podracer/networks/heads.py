"""Heads: from a torso's vector to a policy and a value. For the values of actions see `action_values.py`."""

import math
from collections.abc import Mapping

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from podracer.networks.distributions import (
    Categorical,
    DiagonalNormal,
    Distribution,
    MultiCategorical,
    TanhNormal,
    mask_illegal,
)
from podracer.spaces import ACTION_MASK, ActionSpace, Box, Discrete, EnvSpec, MultiDiscrete
from podracer.types import Array

# Near-uniform at the start: "What Matters In On-Policy Reinforcement Learning?", arXiv 2006.05990, section 3.2.
_policy_init = nn.initializers.orthogonal(0.01)
_value_init = nn.initializers.orthogonal(1.0)
# Where the logarithm of a learned standard deviation is clipped, after SAC, arXiv 1801.01290.
_LOG_STD_BOUNDS = (-5.0, 2.0)
# Of uniform actions in [-1, 1]: 1 / √3. Much of a wider distribution without bounds is outside of them.
_UNIFORM_LOG_STD = -0.5 * math.log(3.0)


class PolicyHead(nn.Module):
    """A distribution over the actions of a space."""

    space: ActionSpace
    continuous: str = "auto"  # NetworkConfig.policy

    @nn.compact
    def __call__(self, x: Array, action_mask: Array | None) -> Distribution:
        """Computes the policy.

        Args:
          x: `[..., H]`.
          action_mask: `[..., A]` bool, True where the action is legal, or None; for several discrete
            actions their masks side by side.
        """
        if isinstance(self.space, Box):
            return self._continuous(x)
        logits = nn.Dense(num_logits(self.space), kernel_init=_policy_init)(x)
        if action_mask is not None:
            logits = mask_illegal(logits, action_mask)
        if isinstance(self.space, MultiDiscrete):
            return MultiCategorical(logits, tuple(self.space.num_values))
        return Categorical(logits)

    def _continuous(self, x: Array) -> Distribution:
        (size,) = self.space.shape
        mean = nn.Dense(size, kernel_init=_policy_init)(x)
        if self.continuous in ("auto", "normal"):
            log_std = self.param("log_std", nn.initializers.zeros, (size,))
            std = jnp.broadcast_to(jnp.exp(log_std), mean.shape)
            return DiagonalNormal(mean, std)
        is_squashed = self.continuous == "tanh_normal"
        bias_init = nn.initializers.constant(0.0 if is_squashed else _UNIFORM_LOG_STD)
        log_std = nn.Dense(size, kernel_init=_policy_init, bias_init=bias_init)(x)
        std = jnp.exp(jnp.clip(log_std, *_LOG_STD_BOUNDS))
        return TanhNormal(mean, std) if is_squashed else DiagonalNormal(mean, std)


class ValueHead(nn.Module):
    """The value of a state."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Computes `[...]` from `[..., H]`."""
        return nn.Dense(1, kernel_init=_value_init)(x)[..., 0]


def num_logits(space: Discrete | MultiDiscrete) -> int:
    return int(np.sum(space.num_values))


def check_actions(spec: EnvSpec) -> None:
    """Checks that there is a policy for an environment's actions, and that its action mask fits them.

    Raises:
      ValueError: naming the space.
    """
    space, observation = spec.action, spec.observation
    if isinstance(space, Box) and len(space.shape) != 1:
        raise ValueError(f"{spec.id} takes actions of shape {space.shape}; a policy makes vectors: flatten the action")
    if not (isinstance(observation, Mapping) and ACTION_MASK in observation):
        return
    if isinstance(space, Box):
        raise ValueError(f"{spec.id} observes {ACTION_MASK!r}, but its actions are continuous: {space}")
    shape = tuple(observation[ACTION_MASK].shape)
    if shape != (num_logits(space),):
        raise ValueError(
            f"{spec.id} observes {ACTION_MASK!r} of shape {shape}, but {space} needs ({num_logits(space)},), one "
            "entry for each value of each action"
        )
