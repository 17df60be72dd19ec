"""A batch of JAX environments that reset on their own."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from podracer.envs.base import JaxEnv
from podracer.spaces import EnvSpec
from podracer.types import Array, ArrayTree, EpisodeStatistics, Key, TimeStep


class NextStepState(NamedTuple):
    env: ArrayTree  # [B, ...]
    is_last: Array  # [B] bool, what was emitted is LAST: reset in the next step


class WaitingState(NamedTuple):
    env: ArrayTree  # [B, ...]
    timestep: TimeStep  # [B, ...] what was emitted, to be emitted again by those that wait for a reset


@dataclass(frozen=True)
class AutoReset:
    """Batches a `JaxEnv` into a `BatchedEnv`.

    next_step: after LAST comes FIRST, with reward 0 and discount 1; the action between is ignored.

    same_step: an ending step emits the FIRST of the next episode, carrying the last reward, the last
    discount 0, and the statistics of the episode that ended. It saves a step an episode but loses the
    last observation, so only environments that cannot truncate may use it.

    Every array of the state and of the timesteps has a strong type, whatever the environment gives.
    """

    env: JaxEnv
    mode: Literal["next_step", "same_step"] = "next_step"
    resets_per_step: int | None = None
    """For expensive resets: at most so many environments of the batch are reset in one step. Those that
    wait emit LAST again, with reward 0 and `ended` False; LAST → LAST is no transition. None is all."""

    def __post_init__(self):
        if self.mode not in ("next_step", "same_step"):
            raise ValueError(f"env.autoreset={self.mode} is not known; use next_step or same_step")
        if self.mode == "same_step" and self.spec.can_truncate:
            raise ValueError(
                f"env.autoreset=same_step loses the last observation, from which a truncated episode bootstraps, and "
                f"{self.spec.id} can truncate (time limit: {self.spec.time_limit}); use env.autoreset=next_step"
            )
        if self.resets_per_step is None:
            return
        if self.mode == "same_step":
            raise ValueError(
                f"env.resets_per_step={self.resets_per_step} makes environments wait for their reset, which "
                "env.autoreset=same_step cannot; use env.autoreset=next_step or env.resets_per_step=null"
            )
        if self.resets_per_step < 1:
            raise ValueError(f"env.resets_per_step={self.resets_per_step} must be at least 1, or null for all")

    @property
    def spec(self) -> EnvSpec:
        return self.env.spec

    def reset(self, key: Key, num_envs: int) -> tuple[Any, TimeStep]:
        """Starts `num_envs` environments; leaves `[B, ...]`. The key is consumed."""
        env_state, timestep = jax.vmap(self._reset_one)(jax.random.split(key, num_envs))
        if self.mode == "same_step":
            return env_state, timestep
        if self.resets_per_step is None:
            return NextStepState(env_state, timestep.is_last), timestep
        return WaitingState(env_state, timestep), timestep

    def step(self, key: Key, state: Any, action: Array) -> tuple[Any, TimeStep]:
        """Advances every environment by one step, or resets it. The key is consumed."""
        if self.mode == "same_step":
            return self._same_step(key, state, action)
        if self.resets_per_step is None:
            return self._next_step(key, state, action)
        return self._next_step_few(key, state, action)

    def _reset_one(self, key: Key) -> tuple[ArrayTree, TimeStep]:
        return _strongly_typed(self.env.reset(key))

    def _step_one(self, key: Key, state: ArrayTree, action: Array) -> tuple[ArrayTree, TimeStep]:
        return _strongly_typed(self.env.step(key, state, action))

    def _next_step(self, key: Key, state: NextStepState, action: Array) -> tuple[NextStepState, TimeStep]:
        def advance(key, env_state, is_last, action):
            # One key serves both, as only one of the two results is kept: splitting keys costs more
            # than stepping a small environment.
            return _select(is_last, self._reset_one(key), self._step_one(key, env_state, action))

        keys = jax.random.split(key, state.is_last.shape[0])
        env_state, timestep = jax.vmap(advance)(keys, state.env, state.is_last, action)
        return NextStepState(env_state, timestep.is_last), timestep

    def _same_step(self, key: Key, state: ArrayTree, action: Array) -> tuple[ArrayTree, TimeStep]:
        def advance(step_key, reset_key, env_state, action):
            env_state, timestep = self._step_one(step_key, env_state, action)
            first_state, first = self._reset_one(reset_key)
            is_last = timestep.is_last
            emitted = timestep._replace(
                step_type=jnp.where(is_last, first.step_type, timestep.step_type),
                observation=_select(is_last, first.observation, timestep.observation),
            )
            return _select(is_last, first_state, env_state), emitted

        # Both results are kept where an episode ends, so each has keys of its own; drawn apart, those of
        # a deterministic step cost nothing.
        step_key, reset_key = jax.random.split(key)
        num_envs = action.shape[0]
        step_keys, reset_keys = jax.random.split(step_key, num_envs), jax.random.split(reset_key, num_envs)
        return jax.vmap(advance)(step_keys, reset_keys, state, action)

    def _next_step_few(self, key: Key, state: WaitingState, action: Array) -> tuple[WaitingState, TimeStep]:
        waits = state.timestep.is_last
        num_envs = waits.shape[0]
        keys = jax.random.split(key, num_envs + 1)
        # From a random place on: the first environments would otherwise always go before the others.
        start = jax.random.randint(keys[num_envs], (), 0, num_envs)
        chosen = _first_true(waits, min(self.resets_per_step, num_envs), start)
        keys = keys[:num_envs]

        held = (state.env, _hold(state.timestep))
        stepped = jax.vmap(self._step_one)(keys, state.env, action)
        started = jax.vmap(self._reset_one)(keys[jnp.minimum(chosen, num_envs - 1)])
        env_state, timestep = jax.tree.map(
            lambda all_envs, few: all_envs.at[chosen].set(few, mode="drop"),
            jax.vmap(_select)(waits, held, stepped),
            started,
        )
        return WaitingState(env_state, timestep), timestep


def _select(condition: Array, if_true: ArrayTree, if_false: ArrayTree) -> ArrayTree:
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), if_true, if_false)


def _strongly_typed(tree: ArrayTree) -> ArrayTree:
    """Turns Python numbers and weakly typed arrays into arrays of the same dtype that stay what they are.

    A weak type in the state that comes back strong would compile the caller's program a second time.
    """

    def strengthen(leaf):
        leaf = jnp.asarray(leaf)
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return leaf if is_key else jax.lax.convert_element_type(leaf, leaf.dtype)

    return jax.tree.map(strengthen, tree)


def _first_true(flags: Array, count: int, start: Array) -> Array:
    """Finds true flags without a sort.

    Args:
      flags: `[B]` bool.
      count: how many to find.
      start: `[]` int32 in [0, B), where the search begins; it goes on from the front.

    Returns:
      `[count]` int32 indices, B in place of those that are not there.
    """
    size = flags.shape[0]
    (found,) = jnp.nonzero(jnp.roll(flags, -start), size=count, fill_value=size)
    return jnp.where(found < size, (found + start) % size, size)


def _hold(timestep: TimeStep) -> TimeStep:
    """What an environment emits that ended before and waits for its reset: reward and end count once."""
    extras = timestep.extras
    if isinstance(extras, EpisodeStatistics):
        extras = extras._replace(ended=jnp.zeros_like(extras.ended))
    return timestep._replace(reward=jnp.zeros_like(timestep.reward), extras=extras)
