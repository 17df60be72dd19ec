"""The learn phase, once for both runners: add an unroll to the replay, then sample and update."""

import jax
import jax.numpy as jnp

from podracer.agent import Agent
from podracer.replay.base import Replay
from podracer.types import Array, ArrayTree, Key, PolicySnapshot, Trajectory


def progress(updates: Array, total_updates: int) -> Array:
    """`[]` f32, the share of the budget done after a number of updates."""
    return updates.astype(jnp.float32) / jnp.float32(total_updates)


def snapshot(agent: Agent, learner_state: ArrayTree, updates: Array, total_updates: int) -> PolicySnapshot:
    """What actors act with after a number of updates."""
    return PolicySnapshot(agent.actor_params(learner_state), progress(updates, total_updates), updates)


def learn(
    agent: Agent,
    replay: Replay,
    learner_state: ArrayTree,
    replay_state: ArrayTree,
    trajectory: Trajectory,
    key: Key,
    progress: Array,
) -> tuple[ArrayTree, ArrayTree, dict[str, Array], Array]:
    """Adds a trajectory to the replay and learns from it, on one device.

    Args:
      trajectory: `[T+1, B, ...]`, this device's share.
      key: of this device and this update.
      progress: `[]` f32, share of the budget done.

    An update that would leave NaN or an infinity in the learner's state is not made.

    Returns:
      The learner's and the replay's next state, the metrics averaged over the updates, and `[]` int32,
      how many updates were not made.
    """

    def update(carry, key):
        learner_state, replay_state = carry
        sample_key, update_key = jax.random.split(key)
        batch = replay.sample(replay_state, sample_key)
        updated, output = agent.update(learner_state, batch, update_key, progress=progress)
        finite = _is_finite(updated)
        learner_state = jax.tree.map(lambda new, old: jnp.where(finite, new, old), updated, learner_state)
        if output.priorities is not None:
            replay_state = replay.set_priorities(replay_state, batch.indices, output.priorities)
        return (learner_state, replay_state), (output.metrics, (~finite).astype(jnp.int32))

    carry = learner_state, replay.add(replay_state, trajectory)
    if replay.updates_per_unroll == 1:
        # Not a scan of length one: that would carry, and so copy, an on-policy trajectory.
        (learner_state, replay_state), (metrics, skipped) = update(carry, key)
    else:
        keys = jax.random.split(key, replay.updates_per_unroll)
        (learner_state, replay_state), (metrics, skipped) = jax.lax.scan(update, carry, keys)
        metrics, skipped = jax.tree.map(lambda values: jnp.mean(values, 0), metrics), jnp.sum(skipped)
    return learner_state, replay.retain(replay_state), metrics, skipped


def _is_finite(tree: ArrayTree) -> Array:
    """`[]` bool, whether every floating-point number is finite."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in leaves])) if leaves else jnp.array(True)
