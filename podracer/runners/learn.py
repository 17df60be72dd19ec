"""The learn phase, once for both runners: add an unroll to the replay, then sample and update."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podracer.agent import Agent
from podracer.replay.base import Replay
from podracer.types import Array, ArrayTree, Key, PolicySnapshot, Trajectory


class Learned(NamedTuple):
    """What a learn phase, or several, did; the same on every device."""

    metrics: dict[str, Array]  # [] f32 each, sums over the agent's updates
    agent_updates: Array  # [] int32 calls of `Agent.update`
    skipped: Array  # [] int32 those whose result was not finite, and was not taken


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
) -> tuple[ArrayTree, ArrayTree, Learned]:
    """Adds a trajectory to the replay and learns as often as the replay says, on one device.

    An update that would leave NaN or an infinity in the learner's state is not made.

    Args:
      trajectory: `[T+1, B, ...]`, this device's share.
      key: of this device and this update.
      progress: `[]` f32, share of the budget done.

    Returns:
      The learner's and the replay's next state, and what was done.
    """

    def update(learner_state: ArrayTree, replay_state: ArrayTree, key: Key) -> tuple[ArrayTree, ArrayTree, Learned]:
        sample_key, update_key = jax.random.split(key)
        replay_state, batch = replay.sample(replay_state, sample_key)
        updated, output = agent.update(learner_state, batch, update_key, progress=progress)
        finite = _is_finite(updated)
        learner_state = jax.tree.map(lambda new, old: jnp.where(finite, new, old), updated, learner_state)
        if output.priorities is not None:
            replay_state = replay.set_priorities(replay_state, batch.indices, output.priorities)
        return learner_state, replay_state, Learned(output.metrics, jnp.int32(1), (~finite).astype(jnp.int32))

    def accumulate(i, carry):
        learner_state, replay_state, learned = carry
        learner_state, replay_state, latest = update(learner_state, replay_state, jax.random.fold_in(key, i))
        return learner_state, replay_state, jax.tree.map(jnp.add, learned, latest)

    replay_state, num_updates = replay.take_updates(replay.add(replay_state, trajectory))
    if isinstance(num_updates, int) and num_updates == 1:
        # Not a loop of length one: that would carry, and so copy, an on-policy trajectory.
        learner_state, replay_state, learned = update(learner_state, replay_state, key)
    else:
        *_, shapes = jax.eval_shape(update, learner_state, replay_state, key)
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        carry = learner_state, replay_state, nothing
        learner_state, replay_state, learned = jax.lax.fori_loop(0, num_updates, accumulate, carry)
    return learner_state, replay.retain(replay_state), learned


def mean_metrics(learned: Learned) -> dict[str, float]:
    """Averages the metrics over the agent's updates, on the host; none if it was not updated."""
    count = int(np.sum(learned.agent_updates))
    return {name: float(np.sum(values)) / count for name, values in learned.metrics.items()} if count else {}


def _is_finite(tree: ArrayTree) -> Array:
    """`[]` bool, whether every floating-point number is finite."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in leaves])) if leaves else jnp.array(True)
