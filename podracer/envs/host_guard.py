"""Host environments that are checked at every step, and may be started again when they fail."""

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from podracer.envs.base import HostEnv
from podracer.faults import EnvFault, FaultsConfig
from podracer.randomness import restart_seeds
from podracer.types import ArrayTree, TimeStep


class GuardedHost:
    """A `HostEnv` around one that is made again when it fails, if `faults.environment=restart`.

    After a restart the next timestep is the first of new episodes with discount 1, which no transition leads to.
    """

    def __init__(self, make_env: Callable[[], HostEnv], config: FaultsConfig, actor: int):
        """Makes the environments.

        Args:
          make_env: makes a batch of them, again for every restart.
          config: what is done when they fail.
          actor: index of the actor, for messages.
        """
        self._make_env, self._config, self._actor = make_env, config, actor
        self._env = make_env()
        self._seeds = np.zeros(self._env.num_envs, np.int64)
        self._steps = 0
        # Of the first timestep, without its extras.
        self._structure: Any = None
        self._arrays: list[tuple[tuple[int, ...], np.dtype]] = []
        self.spec, self.num_envs = self._env.spec, self._env.num_envs
        self.restarts = 0

    @property
    def state(self) -> Any:
        """Of environments that have one; None for others."""
        return getattr(self._env, "state", None)

    @state.setter
    def state(self, state: Any) -> None:
        self._env.state = state

    def reset(self, seeds: np.ndarray) -> TimeStep:
        self._seeds = seeds
        try:
            timestep = self._env.reset(seeds)
        except Exception as error:
            self._locate(error)
            raise
        leaves, self._structure = jax.tree.flatten(timestep[:-1])
        self._arrays = [(leaf.shape, leaf.dtype) for leaf in leaves]
        self._check(timestep)
        return timestep

    def step(self, action: np.ndarray) -> TimeStep:
        self._steps += 1
        try:
            timestep = self._env.step(action)
            self._check(timestep)
            return timestep
        except Exception as error:
            self._locate(error)
            if self._config.environment == "stop" or self.restarts == self._config.max_restarts:
                raise
            return self._restart()

    def close(self) -> None:
        self._env.close()

    def _restart(self) -> TimeStep:
        self.restarts += 1
        self._env.close()
        self._env = self._make_env()
        return self.reset(restart_seeds(self._seeds))  # or what broke them would come again

    def _check(self, timestep: TimeStep) -> None:
        """Raises if shapes or dtypes differ from the first timestep's, or a number is NaN or infinite."""
        leaves, structure = jax.tree.flatten(timestep[:-1])
        if structure != self._structure:
            raise EnvFault(f"gave a timestep of the structure {structure}, at first it was {self._structure}")
        for leaf, (shape, dtype) in zip(leaves, self._arrays):
            if leaf.shape != shape or leaf.dtype != dtype:
                raise EnvFault(f"gave an array {leaf.dtype}{list(leaf.shape)} that was {dtype}{list(shape)} at first")
            if dtype.kind == "f":
                # The sum is finite unless an element is not, or it overflows: then every element is looked at.
                with np.errstate(over="ignore", invalid="ignore"):
                    is_finite = math.isfinite(leaf.sum())
                if not is_finite:
                    self._check_finite(leaf)

    def _check_finite(self, leaf: ArrayTree) -> None:
        rows = np.flatnonzero(~np.isfinite(leaf.reshape(self.num_envs, -1)).all(axis=1))
        if rows.size:
            environment = self._actor * self.num_envs + int(rows[0])
            raise EnvFault(f"environment {environment} gave {leaf[rows[0]]}, which is not finite")

    def _locate(self, error: Exception) -> None:
        first = self._actor * self.num_envs
        error.add_note(
            f"in actor {self._actor}'s environments {first} to {first + self.num_envs - 1} of {self.spec.id}, "
            f"at step {self._steps} of each"
        )
