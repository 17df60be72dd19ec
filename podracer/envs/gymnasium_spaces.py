"""Gymnasium's spaces in Podracer's terms: what EnvPool and Gymnasium environments accept and emit.

64-bit observations become 32-bit ones, the widest that agents compute with; uint8 stays uint8.
"""

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as gym

from podracer.spaces import ActionSpace, Box, Discrete, EnvSpec, MultiDiscrete
from podracer.types import ArrayTree

_NARROWED = {"float64": "float32", "int64": "int32", "uint64": "uint32"}


def env_spec(
    env_id: str, observation: gymnasium.Space, action: gymnasium.Space, time_limit: int | None
) -> tuple[EnvSpec, ActionSpace]:
    """Describes an environment.

    Returns:
      The spec, whose continuous actions are float32 as agents make them; and the action space with
      the environment's own precision, for the conversion.
    """
    own = action_space(action, env_id)
    canonical = own
    if isinstance(own, Box):
        canonical = Box(own.shape, np.float32, np.float32(own.low), np.float32(own.high))
    return EnvSpec(env_id, observation_space(observation, env_id), canonical, time_limit), own


def observation_space(space: gymnasium.Space, who: str) -> Any:
    """Converts a space of observations into a tree of `Box` and `Discrete`.

    Raises:
      ValueError: for a space whose observations have no fixed shape.
    """
    if isinstance(space, gym.Dict):
        return {name: observation_space(part, f"{who}[{name!r}]") for name, part in space.items()}
    if isinstance(space, gym.Tuple):
        return tuple(observation_space(part, f"{who}[{i}]") for i, part in enumerate(space))
    if isinstance(space, gym.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, gym.MultiDiscrete):
        return Box(space.shape, np.int32, 0, np.asarray(space.nvec) - 1)
    if isinstance(space, gym.MultiBinary):
        return Box(space.shape, np.bool_, False, True)
    if isinstance(space, gym.Box):
        return Box(space.shape, _narrowed(space.dtype), space.low, space.high)
    raise ValueError(
        f"{who} emits observations in {space}; supported are Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple"
    )


def action_space(space: gymnasium.Space, who: str) -> ActionSpace:
    """Converts a space of actions; vectors of bits or of bounded integers become `MultiDiscrete`.

    Raises:
      ValueError: for unbounded boxes, for arrays of integers, and for composite spaces.
    """
    if isinstance(space, gym.Discrete):
        return Discrete(int(space.n), int(space.start))
    if isinstance(space, gym.MultiDiscrete) and len(space.shape) == 1:
        return MultiDiscrete(tuple(space.nvec.tolist()), tuple(np.asarray(space.start).tolist()))
    if isinstance(space, gym.MultiBinary) and len(space.shape) == 1:
        return MultiDiscrete((2,) * space.shape[0])
    if isinstance(space, gym.Box) and np.issubdtype(space.dtype, np.integer) and len(space.shape) == 1:
        num_values = space.high.astype(np.int64) - space.low + 1
        if num_values.max() <= np.iinfo(np.int32).max:
            return MultiDiscrete(tuple(num_values.tolist()), tuple(space.low.tolist()))
    if isinstance(space, gym.Box) and np.issubdtype(space.dtype, np.floating):
        box = Box(space.shape, space.dtype, space.low, space.high)
        if not box.is_bounded:
            raise ValueError(
                f"{who} takes actions in {space}, without finite bounds to scale [-1, 1] to;"
                " wrap it in gymnasium.wrappers.RescaleAction or declare the bounds"
            )
        return box
    raise ValueError(
        f"{who} takes actions in {space}; supported are Discrete, vectors in MultiDiscrete, MultiBinary or a"
        " bounded integer Box, and a bounded floating-point Box"
    )


def convert_observation(space: gymnasium.Space, observation: Any, *, copy: bool) -> ArrayTree:
    """Converts one observation or a batch of them to the tree and dtypes of `observation_space`.

    Args:
      space: of a single observation.
      observation: `[...]` as the environment emits it.
      copy: whether every leaf has to be in fresh memory.
    """
    if isinstance(space, gym.Dict):
        return {name: convert_observation(part, observation[name], copy=copy) for name, part in space.items()}
    if isinstance(space, gym.Tuple):
        return tuple(convert_observation(part, value, copy=copy) for part, value in zip(space, observation))
    if isinstance(space, gym.Discrete | gym.MultiDiscrete):
        # Counted from 0, as an embedding or a one-hot wants it.
        return np.asarray(observation - space.start, np.int32)
    dtype = np.bool_ if isinstance(space, gym.MultiBinary) else _narrowed(space.dtype)
    return np.array(observation, dtype) if copy else np.asarray(observation, dtype)


def known_limit(max_episode_steps: int | None) -> int | None:
    """The limit of a registered environment, None if it has none or one that is never reached."""
    return None if (max_episode_steps or math.inf) >= np.iinfo(np.int32).max else int(max_episode_steps)


def _narrowed(dtype: np.dtype) -> np.dtype:
    return np.dtype(_NARROWED.get(np.dtype(dtype).name, dtype))
