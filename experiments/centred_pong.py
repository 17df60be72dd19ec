"""EnvPool's Pong in small frames, with the background at zero and of unit contrast.

In a frame of 42x42 the ball is fainter than a pixel on a bright field. Divided by 255, as images are, all frames look
the same to a fresh network: its units keep the sign that the background gives them, or die of it, before anything
else is learnt.

    podracer train experiment=pong    # from the repository's root
"""

import dataclasses

import numpy as np

from podracer.envs import envpool
from podracer.envs.base import EnvConfig, HostEnv
from podracer.envs.host_wrappers import Converted
from podracer.spaces import Box
from podracer.types import TimeStep

_BACKGROUND = 87.0  # the grey of the field
_CONTRAST = 64.0  # of the ball in a frame of 42x42, about


def make(num_envs: int, num_threads: int, size: int = 42) -> HostEnv:
    """Makes a batch of games.

    Args:
      num_envs: of the batch.
      num_threads: of EnvPool.
      size: side of the frames.
    """
    kwargs = {"img_height": size, "img_width": size}
    env = envpool.make(EnvConfig(suite="envpool", id="Pong-v5", preset="impala", kwargs=kwargs), num_envs, num_threads)
    low, high = (0.0 - _BACKGROUND) / _CONTRAST, (255.0 - _BACKGROUND) / _CONTRAST
    observation = Box(env.spec.observation.shape, np.float32, low, high)
    return Converted(env, dataclasses.replace(env.spec, observation=observation), _centre)


def _centre(timestep: TimeStep) -> TimeStep:
    observation = (timestep.observation.astype(np.float32) - np.float32(_BACKGROUND)) / np.float32(_CONTRAST)
    return timestep._replace(observation=observation)
