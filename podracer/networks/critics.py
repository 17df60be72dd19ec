"""Critics: several independent estimates of the value of an action."""

import flax.linen as nn
import jax.numpy as jnp

from podracer.networks.config import NetworkConfig, check_feed_forward
from podracer.networks.distributions import mask_illegal
from podracer.networks.heads import check_actions
from podracer.networks.preprocess import Features, batch_shape, preprocess
from podracer.networks.torsos import Torso, resolve_torso
from podracer.spaces import Box, EnvSpec, MultiDiscrete
from podracer.types import Array, ArrayTree

_output_init = nn.initializers.orthogonal(1.0)


def critics(config: NetworkConfig, spec: EnvSpec, num_critics: int, num_atoms: int = 1) -> "Critics":
    """Makes the module of several critics.

    Args:
      config: of each critic's torso.
      spec: of the environment, with `Box` or `Discrete` actions.
      num_critics: number of critics, each with parameters of its own.
      num_atoms: outputs for each value, logits of a distribution over returns if more than one; `Box` only.

    Raises:
      ValueError: the network is recurrent, or cannot read the observations or value the actions.
    """
    if isinstance(spec.action, MultiDiscrete):
        raise ValueError(
            f"{spec.id} has {spec.action}, but a critic values continuous actions or the values of one discrete "
            "action; use an agent for several discrete ones, such as agent=ppo"
        )
    if num_atoms > 1 and not isinstance(spec.action, Box):
        raise ValueError(f"a distribution of returns needs continuous actions, but {spec.id} has {spec.action}")
    check_feed_forward(config)
    check_actions(spec)
    return Critics(config, spec, resolve_torso(config, spec), num_critics, num_atoms)


class Critics(nn.Module):
    """Q₁(s, a), Q₂(s, a), ...; made by `critics`."""

    config: NetworkConfig
    spec: EnvSpec
    torso_kind: str
    num_critics: int
    num_atoms: int = 1

    @nn.compact
    def __call__(self, observation: ArrayTree, action: Array | None = None) -> Array:
        """Values actions.

        Args:
          observation: `[...]` in the environment's own dtype.
          action: `[..., K]` continuous actions in [-1, 1], beside the vector that the dense layers read; None where
            actions are discrete, of which all are valued.

        Returns:
          For continuous actions `[num_critics, ...]`, or `[num_critics, ..., num_atoms]` for several atoms. For
          discrete ones `[num_critics, ..., A]`, illegal ones, where there is a legal one, with the lowest finite
          value.
        """
        space = self.spec.observation
        shape = batch_shape(space, observation)
        features = preprocess(space, observation, batch_ndim=len(shape), with_images=self.torso_kind != "mlp")
        if action is None:
            num_outputs = self.spec.action.num_values
        else:
            num_outputs = self.num_atoms
            flat = action.reshape(-1, action.shape[-1])
            vector = flat if features.vector is None else jnp.concatenate([features.vector, flat], axis=-1)
            features = features._replace(vector=vector)
        ensemble = nn.vmap(
            _Critic,
            in_axes=None,
            axis_size=self.num_critics,
            variable_axes={"params": 0},
            split_rngs={"params": True},
        )
        values = ensemble(self.config, self.torso_kind, num_outputs, name="critics")(features)
        if action is None and features.action_mask is not None:
            # Where an episode ends no action may be legal; its value counts all the same if it was truncated there.
            is_legal = features.action_mask | ~jnp.any(features.action_mask, axis=-1, keepdims=True)
            values = mask_illegal(values, jnp.broadcast_to(is_legal, values.shape))
        values = values.reshape(self.num_critics, *shape, num_outputs)
        return values[..., 0] if action is not None and self.num_atoms == 1 else values


class _Critic(nn.Module):
    """`[N, num_outputs]` from features."""

    config: NetworkConfig
    torso_kind: str
    num_outputs: int

    @nn.compact
    def __call__(self, features: Features) -> Array:
        return nn.Dense(self.num_outputs, kernel_init=_output_init)(Torso(self.config, self.torso_kind)(features))
