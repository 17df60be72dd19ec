"""A JAX environment behind the interface of host environments: for Sebulba, and to compare the runners."""

from typing import NamedTuple

import jax
import numpy as np

from podracer.envs.base import BatchedEnv
from podracer.envs.host_actions import check_actions
from podracer.types import ArrayTree, Key, TimeStep


class HostFromJaxState(NamedTuple):
    """All that the future of a `HostFromJax` depends on, beside its keys."""

    env: ArrayTree  # [B, ...] on the device; None before the first reset
    time: int  # number of steps over the run
    resets: int  # number of resets over the run


class HostFromJax:
    """Steps `[B]` JAX environments on a device, one dispatch a step.

    Its randomness is addressed as in Anakin's unroll: it starts with `env.reset(reset_key, B)`, and the
    step at time t, counted from 0 over the run, is `env.step(fold_in(step_key, t), state, action)`. So with
    the keys of the same shard it gives, bit for bit, what Anakin sees.

    `state` may be read, and set to go on from there.
    """

    def __init__(self, env: BatchedEnv, num_envs: int, reset_key: Key, step_key: Key, device: jax.Device | None = None):
        """Compiles nothing yet.

        Args:
          env: environments that reset on their own.
          num_envs: B.
          reset_key: of the shard; not consumed, as it is used again for the same run only.
          step_key: of the shard; likewise.
          device: where the environments live; None is JAX's default.
        """

        def step(step_key, time, state, action):
            return env.step(jax.random.fold_in(step_key, time), state, action)

        self.spec = env.spec
        self.num_envs = num_envs
        self.state = HostFromJaxState(None, 0, 0)
        self._reset_key, self._step_key = jax.device_put((reset_key, step_key), device)
        self._reset = jax.jit(env.reset, static_argnums=1)
        self._step = jax.jit(step)

    def reset(self, seeds: np.ndarray) -> TimeStep:
        """Starts every environment; `seeds` say nothing here, the keys do.

        The n-th reset, counted from 0, has the key `fold_in(reset_key, n)`, but for the first, which has `reset_key`.
        """
        del seeds
        _, time, resets = self.state
        key = self._reset_key if resets == 0 else jax.random.fold_in(self._reset_key, resets)
        env_state, timestep = self._reset(key, self.num_envs)
        self.state = HostFromJaxState(env_state, time, resets + 1)
        return _to_host(timestep)

    def step(self, action: np.ndarray) -> TimeStep:
        env_state, time, resets = self.state
        if env_state is None:
            raise RuntimeError(f"{self.spec.id} has to be reset before it is stepped")
        action = check_actions(self.spec.action, action, self.num_envs, self.spec.id)
        env_state, timestep = self._step(self._step_key, np.uint32(time), env_state, action)
        self.state = HostFromJaxState(env_state, time + 1, resets)
        return _to_host(timestep)

    def close(self) -> None:
        """Does nothing: the device's memory goes with the object."""


def _to_host(timestep: TimeStep) -> TimeStep:
    # On the CPU `device_get` may only look into the device's buffer, hence the copy.
    return jax.tree.map(np.array, jax.device_get(timestep))
