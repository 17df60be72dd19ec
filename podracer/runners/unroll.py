"""Acting for T steps: inside a compiled program (Anakin) and from a thread on the host (Sebulba).

Both act through `act_and_record` and return the same `Trajectory`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podracer.agent import Agent
from podracer.envs.base import BatchedEnv
from podracer.randomness import run_key
from podracer.runner import Episodes
from podracer.spaces import EnvSpec, zeros
from podracer.types import (
    Array,
    ArrayTree,
    EpisodeStatistics,
    Key,
    PolicySnapshot,
    Step,
    TimeStep,
    Trajectory,
    valid_transitions,
)


class ActorCarry(NamedTuple):
    """What a shard of environments and their actor carry from one unroll to the next."""

    env_state: ArrayTree  # [B, ...]
    timestep: TimeStep  # [B, ...] not acted on yet
    actor_state: ArrayTree  # [B, ...]


class UnrollSums(NamedTuple):
    """What happened in an unroll, as sums over its environments."""

    env_steps: Array  # [] int32, valid transitions
    episodes: Array  # [] int32, episodes that ended
    return_sum: Array  # [] f32
    length_sum: Array  # [] int32
    return_min: Array  # [] f32, +inf where no episode ended
    return_max: Array  # [] f32, -inf where no episode ended


def empty_buffer(
    agent: Agent, policy: PolicySnapshot, actor_state: ArrayTree, timestep: TimeStep, unroll_length: int
) -> Step:
    """Makes the zeros that an unroll is recorded into, `[T+1, B, ...]`."""
    timestep = timestep._replace(extras=())
    _, output = jax.eval_shape(agent.act, policy, actor_state, timestep, run_key(0))
    step = Step(timestep, output.action, output.extras)
    return jax.tree.map(lambda leaf: jnp.zeros((unroll_length + 1, *leaf.shape), leaf.dtype), step)


def example_trajectory(agent: Agent, spec: EnvSpec, num_envs: int, batch_size: int) -> Trajectory:
    """The shapes of an unroll of `batch_size` environments, without running anything."""

    def make(key: Key) -> Trajectory:
        learner_state = agent.init_learner(key)
        policy = PolicySnapshot(agent.actor_params(learner_state), jnp.zeros(()), jnp.zeros((), jnp.int32))
        actor_state = agent.init_actor(key, jnp.zeros((batch_size,), jnp.int32), num_envs)
        batch = jnp.zeros((batch_size,))
        timestep = TimeStep(batch.astype(jnp.int8), batch, batch, zeros(spec.observation, (batch_size,)))
        return Trajectory(empty_buffer(agent, policy, actor_state, timestep, agent.unroll_length), actor_state)

    return jax.eval_shape(make, run_key(0))


def act_and_record(
    agent: Agent, policy: PolicySnapshot, actor_state: ArrayTree, timestep: TimeStep, buffer: Step, t: Array, key: Key
) -> tuple[ArrayTree, Array, Step]:
    """Acts once and writes the step at position t of the buffer, in place where it is donated.

    Returns:
      The actor's next memory, the actions `[B, ...]`, the buffer.
    """
    timestep = timestep._replace(extras=())
    actor_state, output = agent.act(policy, actor_state, timestep, key)
    step = Step(timestep, output.action, output.extras)
    buffer = jax.tree.map(lambda rows, row: jax.lax.dynamic_update_index_in_dim(rows, row, t, 0), buffer, step)
    return actor_state, output.action, buffer


def unroll_scan(
    agent: Agent,
    env: BatchedEnv,
    policy: PolicySnapshot,
    carry: ActorCarry,
    act_key: Key,
    env_key: Key,
    start: Array,
) -> tuple[ActorCarry, Trajectory, UnrollSums]:
    """Unrolls a batch of JAX environments for T steps in one program.

    Args:
      agent: of unroll length T.
      env: `[B]` environments that reset on their own.
      policy: what all T+1 steps are acted with.
      carry: where the unroll before ended.
      act_key: of the shard; the global timestep is folded into it. Likewise `env_key`.
      start: `[]` int, global timestep of the first step.
    """
    times = start + jnp.arange(agent.unroll_length + 1)
    # Drawn in one batch: a key derived in each iteration costs more than a step of a small environment.
    act_keys = jax.vmap(jax.random.fold_in, (None, 0))(act_key, times)
    env_keys = jax.vmap(jax.random.fold_in, (None, 0))(env_key, times)
    buffer = empty_buffer(agent, policy, carry.actor_state, carry.timestep, agent.unroll_length)

    def step(state, inputs):
        (env_state, timestep, actor_state), buffer = state
        t, act_key, env_key = inputs
        actor_state, action, buffer = act_and_record(agent, policy, actor_state, timestep, buffer, t, act_key)
        env_state, timestep = env.step(env_key, env_state, action)
        return (ActorCarry(env_state, timestep, actor_state), buffer), timestep.extras

    length = agent.unroll_length
    inputs = jnp.arange(length), act_keys[:length], env_keys[:length]
    (end, buffer), episodes = jax.lax.scan(step, (carry, buffer), inputs)
    _, _, steps = act_and_record(agent, policy, end.actor_state, end.timestep, buffer, length, act_keys[length])
    return end, Trajectory(steps, carry.actor_state), _sum_ended(episodes, count_env_steps(steps))


def count_env_steps(steps: Step) -> Array:
    """`[]` int32, valid transitions in `[T+1, B]` steps."""
    valid = valid_transitions(steps.timestep.step_type, steps.timestep.discount)
    return jnp.sum(valid, dtype=jnp.int32)


def to_episodes(sums: UnrollSums) -> Episodes:
    """Summarises sums of several devices or unrolls, leaves `[N]` or `[]`, on the host."""
    return Episodes(
        count=int(np.sum(sums.episodes)),
        return_sum=float(np.sum(sums.return_sum, dtype=np.float64)),
        length_sum=int(np.sum(sums.length_sum, dtype=np.int64)),
        return_min=float(np.min(sums.return_min)),
        return_max=float(np.max(sums.return_max)),
    )


def merge_sums(first: UnrollSums, second: UnrollSums) -> UnrollSums:
    """The sums of two unrolls together."""
    return UnrollSums(
        *(a + b for a, b in zip(first[:4], second[:4])),
        jnp.minimum(first.return_min, second.return_min),
        jnp.maximum(first.return_max, second.return_max),
    )


def _sum_ended(episode: EpisodeStatistics, env_steps: Array) -> UnrollSums:
    """Sums `[T, B]` statistics over the episodes that ended; once an unroll, as six sums a step would cost more."""
    ended = episode.ended
    return UnrollSums(
        env_steps=env_steps,
        episodes=jnp.sum(ended, dtype=jnp.int32),
        return_sum=jnp.sum(jnp.where(ended, episode.episode_return, 0.0)),
        length_sum=jnp.sum(jnp.where(ended, episode.episode_length, 0), dtype=jnp.int32),
        return_min=jnp.min(jnp.where(ended, episode.episode_return, jnp.inf)),
        return_max=jnp.max(jnp.where(ended, episode.episode_return, -jnp.inf)),
    )
