"""The environments' side of the seam: what a runner asks of an environment.

Both kinds emit LAST with discount 1 on truncation and 0 on a true end, FIRST with reward 0 and
discount 1 on the step after it, and `EpisodeStatistics` in `TimeStep.extras`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

import jax.numpy as jnp
import numpy as np

from podracer.spaces import EnvSpec
from podracer.types import Array, ArrayTree, Key, StepType, TimeStep

EnvState = TypeVar("EnvState")


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """Which environment, how many, and what is wrapped around it."""

    suite: str
    """Where it comes from: gymnax, catch, probe, custom_jax; envpool, gymnasium, custom_host."""
    id: str = ""
    """Its name within the suite."""
    num_envs: int = 64
    """Global number of environments that act."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Handed to the suite's constructor."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a gymnax environment's parameters."""
    make: str | None = None
    """`package.module:function` of a custom environment."""
    preset: Literal["impala", "baselines", "machado18"] | None = None
    """Atari as in these papers (EnvPool)."""
    time_limit: int | None = None
    """Truncates episodes after this many steps; None keeps the environment's own limit."""
    autoreset: Literal["next_step", "same_step"] = "next_step"
    """same_step saves a step an episode, for JAX environments that cannot truncate."""
    resets_per_step: int | None = None
    """How many of a device's environments may be reset in one step, for expensive resets; None is all."""
    frame_stack: int = 1
    """How many observations are stacked, newest last."""
    reward_clip: float | None = None
    """Rewards are clipped to [-reward_clip, reward_clip]; episode statistics stay raw."""
    reward_scale: float = 1.0
    """Rewards are multiplied by this, before clipping."""
    flatten: bool = False
    """Concatenates the observation's leaves into one vector."""
    action_mask_key: str = "action_mask"
    """The name of the bool leaf of a mapping observation that says which actions are legal."""

    def __post_init__(self):
        if self.time_limit is not None and self.time_limit < 1:
            raise ValueError(f"env.time_limit={self.time_limit} must be at least 1, or null for none")


class JaxEnv(Protocol[EnvState]):
    """One environment as pure functions, without a reset of its own. Leaves have no batch dimension.

    Wrappers (`envs/wrappers.py`) take and return a `JaxEnv`. The innermost environment leaves
    `TimeStep.extras` empty; `RecordEpisodes` fills them in.
    """

    spec: EnvSpec

    def reset(self, key: Key) -> tuple[EnvState, TimeStep]:
        """Starts an episode: a FIRST timestep with reward 0 and discount 1."""
        ...

    def step(self, key: Key, state: EnvState, action: Array) -> tuple[EnvState, TimeStep]:
        """Advances by one canonical action (see `podracer.spaces`): a MID or LAST timestep.

        What it returns for a state whose timestep was LAST is never looked at.
        """
        ...


def restart(observation: ArrayTree) -> TimeStep:
    """The FIRST timestep of one JAX environment's episode."""
    return TimeStep(jnp.asarray(StepType.FIRST), jnp.float32(0.0), jnp.float32(1.0), observation)


def transition(
    reward: Array, observation: ArrayTree, *, terminated: Array | bool = False, truncated: Array | bool = False
) -> TimeStep:
    """A later timestep of one JAX environment's episode: LAST where it ended, MID elsewhere.

    Args:
      reward: `[]`, of any numeric dtype.
      observation: `[...]` tree, at a LAST timestep the true last observation.
      terminated: `[]` bool, the episode truly ended: discount 0. It wins over `truncated`.
      truncated: `[]` bool, the episode was cut short: discount 1.
    """
    terminated, truncated = jnp.asarray(terminated, bool), jnp.asarray(truncated, bool)
    return TimeStep(
        step_type=jnp.where(terminated | truncated, StepType.LAST, StepType.MID),
        reward=jnp.asarray(reward, jnp.float32),
        discount=1.0 - terminated.astype(jnp.float32),
        observation=observation,
    )


class BatchedEnv(Protocol[EnvState]):
    """`[B]` environments on a device that reset on their own: what Anakin unrolls."""

    spec: EnvSpec

    def reset(self, key: Key, num_envs: int) -> tuple[EnvState, TimeStep]:
        """Starts `num_envs` environments; leaves `[B, ...]`."""
        ...

    def step(self, key: Key, state: EnvState, action: Array) -> tuple[EnvState, TimeStep]:
        """Advances each environment by one step, or starts its next episode where its last step was LAST."""
        ...


class HostEnv(Protocol):
    """A batch of environments on the host that reset on their own: what an actor thread steps.

    One that can be saved has an attribute `state` beside: a tree of arrays and numbers that may be read
    between steps, and set after a reset to go on from there. Others start new episodes in a resumed run.
    """

    spec: EnvSpec
    num_envs: int

    def reset(self, seeds: np.ndarray) -> TimeStep:
        """Starts every environment.

        Args:
          seeds: `[B]` int64 in [0, 2³¹), one an environment; a second call starts new episodes.

        Returns:
          FIRST timesteps in fresh NumPy memory.
        """
        ...

    def step(self, action: np.ndarray) -> TimeStep:
        """Advances each environment by one canonical action; leaves in fresh NumPy memory.

        Raises:
          ValueError: for an action of the wrong shape or dtype, or out of range, before the
            environment sees it.
        """
        ...

    def close(self) -> None:
        """Frees what the environments hold; a second call does nothing."""
        ...
