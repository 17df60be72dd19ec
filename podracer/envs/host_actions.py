"""The check that every action passes before a host environment sees it, and its conversion."""

import numpy as np

from podracer.spaces import ActionSpace, Box, to_env_action


def check_actions(space: ActionSpace, action: np.ndarray, num_envs: int, who: str) -> np.ndarray:
    """Checks canonical actions; some environments abort the process on a bad one.

    Args:
      space: the space they are for.
      action: `[B, *space.shape]` indices from 0, or floats, which are clipped to [-1, 1] later.
      num_envs: B.
      who: the environment, for the message.

    Returns:
      The action as a NumPy array.

    Raises:
      ValueError: for a wrong shape or dtype, an index out of range, or a float that is not finite.
    """
    action = np.asarray(action)
    shape = (num_envs, *space.shape)
    if action.shape != shape:
        raise ValueError(f"{who} takes actions of shape {shape}, got {action.shape}")
    kind, expected = ("f", "floating-point") if isinstance(space, Box) else ("iu", "integer")
    if action.dtype.kind not in kind:
        raise ValueError(f"{who} takes {expected} actions, got {action.dtype}")
    if isinstance(space, Box):
        legal = np.isfinite(action)
        limits = "finite"
    else:
        num_values = np.asarray(space.num_values)
        legal = (action >= 0) & (action < num_values)
        limits = f"in [0, {num_values.tolist()})"
    if not legal.all():
        index = int(np.argwhere(~legal)[0, 0])
        raise ValueError(f"{who}: the action of environment {index} is {action[index]}; actions have to be {limits}")
    return action


class HostActions:
    """Checks canonical actions and converts them to those of an environment."""

    def __init__(self, space: ActionSpace, dtype: np.dtype, num_envs: int, who: str):
        """Prepares the conversion.

        Args:
          space: in the environment's own bounds and precision.
          dtype: of the actions that the environment wants.
          num_envs: B.
          who: the environment, for messages.
        """
        self._space, self._dtype, self._num_envs, self._who = space, np.dtype(dtype), num_envs, who

    def __call__(self, action: np.ndarray) -> np.ndarray:
        """Converts `[B, ...]` canonical actions into fresh memory; raises as `check_actions` does."""
        action = check_actions(self._space, action, self._num_envs, self._who)
        action = to_env_action(self._space, action, np)
        if isinstance(self._space, Box):
            # The linear map may leave the bounds by a rounding error.
            action = np.clip(action, self._space.low, self._space.high)
        return action.astype(self._dtype)
