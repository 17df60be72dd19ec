"""What travels between actors and the learner: trajectories one way, parameters the other.

Environment i always lands on the same learner device and in the same column of its batch: the unrolls
of all actors are joined in actor order and cut into equal pieces along the batch.
"""

import threading
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from podracer.runner import Episodes, no_episodes
from podracer.runners.workers import Workers
from podracer.trees import Arrays, children, from_arrays, subtree
from podracer.types import Array, ArrayTree, PolicySnapshot, Trajectory

Packed = dict[str, Array]


class Unroll(NamedTuple):
    """What an actor puts on its queue."""

    actor: int
    index: int  # the how-manieth unroll of this actor
    pieces: tuple[Trajectory, ...]  # one a learner device that it goes to, already there
    versions: np.ndarray  # [T+1] int64, updates behind the parameters of each step
    env_steps: int
    episodes: Episodes
    restarts: int  # of the actor's environments
    dropped: int  # transitions that restarts cut off
    seconds: dict[str, float]  # of the actor, by activity


def restore_unrolls(arrays: Arrays, example: Trajectory, num_actors: int) -> tuple[tuple[Unroll, ...], ...]:
    """Reads the unrolls of each actor from the arrays of a tuple of tuples of `Unroll`.

    Args:
      arrays: `podracer.trees.to_arrays` of them, without their seconds.
      example: any trajectory of the same agent and environment.
      num_actors: of the saved run, some of which may have no unroll.
    """

    def restore(unroll: Arrays) -> Unroll:
        pieces = (example,) * len(children(subtree(unroll, "pieces")))
        structure = Unroll(0, 0, pieces, np.zeros(0, np.int64), 0, no_episodes(), 0, 0, {})
        restored = from_arrays(unroll, structure, check_shapes=False)
        episodes = Episodes(*(value.item() for value in restored.episodes))
        numbers = {
            name: getattr(restored, name).item() for name in ("actor", "index", "env_steps", "restarts", "dropped")
        }
        return restored._replace(**numbers, episodes=episodes)

    actors = [subtree(arrays, actor) for actor in range(num_actors)]
    return tuple(tuple(restore(subtree(actor, name)) for name in children(actor)) for actor in actors)


def pack(tree: ArrayTree) -> Packed:
    """Joins the leaves of a tree into one vector a dtype: a transfer costs 70 µs a leaf."""
    packed: dict[str, list[Array]] = {}
    for leaf in jax.tree.leaves(tree):
        packed.setdefault(str(leaf.dtype), []).append(jnp.ravel(leaf))
    return {dtype: jnp.concatenate(leaves) for dtype, leaves in packed.items()}


def unpack(packed: Packed, example: ArrayTree) -> ArrayTree:
    """The inverse of `pack` for a tree with the structure and shapes of `example`."""
    offsets = dict.fromkeys(packed, 0)
    leaves, structure = jax.tree.flatten(example)
    result = []
    for leaf in leaves:
        dtype, size = str(leaf.dtype), int(np.prod(leaf.shape))
        start = offsets[dtype]
        result.append(packed[dtype][start : start + size].reshape(leaf.shape))
        offsets[dtype] = start + size
    return jax.tree.unflatten(structure, result)


class ParameterStore:
    """The newest snapshots on every actor device, by version."""

    def __init__(self, workers: Workers, devices: Sequence[jax.Device], example: PolicySnapshot, keep: int):
        """Makes an empty store.

        Args:
          workers: whose end ends every wait.
          devices: of the actors; repeated ones count once.
          example: structure and shapes of a snapshot.
          keep: number of versions that are kept.
        """
        self._workers = workers
        self._devices = tuple(dict.fromkeys(devices))
        self._unpack = jax.jit(lambda packed: unpack(packed, example))
        self._keep = keep
        self._snapshots: dict[int, dict[jax.Device, PolicySnapshot]] = {}
        self._newest = -1
        self._published = threading.Condition()

    def publish(self, version: int, packed: Packed) -> None:
        """Copies a packed snapshot to every actor device, one transfer a device, without waiting for it."""
        local = jax.tree.map(lambda leaf: leaf.addressable_data(0), packed)
        snapshots = {device: self._unpack(jax.device_put(local, device)) for device in self._devices}
        with self._published:
            self._snapshots[version] = snapshots
            self._newest = version
            for old in [known for known in self._snapshots if known <= version - self._keep]:
                del self._snapshots[old]
            self._published.notify_all()

    def get(self, version: int, device: jax.Device) -> PolicySnapshot:
        """Waits for a version, and until it has arrived on the device."""
        with self._published:
            self._workers.wait(self._published, lambda: self._newest >= version)
            snapshot = self._snapshots[version][device]
        return jax.block_until_ready(snapshot)

    def newest(self, device: jax.Device) -> tuple[int, PolicySnapshot]:
        """The newest version that has arrived on the device, or the oldest that is kept if none has."""
        with self._published:
            self._workers.wait(self._published, lambda: self._newest >= 0)
            kept = sorted(self._snapshots)
            snapshots = {version: self._snapshots[version][device] for version in kept}
        # A version is published as soon as its update is dispatched: to wait for it is to wait for the learner.
        arrived = [version for version in kept if all(leaf.is_ready() for leaf in jax.tree.leaves(snapshots[version]))]
        version = arrived[-1] if arrived else kept[0]
        return version, jax.block_until_ready(snapshots[version])


def split_batch(trajectory: Trajectory, parts: int) -> tuple[Trajectory, ...]:
    """Cuts a trajectory along its batch into equal parts, in order."""
    if parts == 1:
        return (trajectory,)
    columns = [jnp.split(leaf, parts, 1) for leaf in jax.tree.leaves(trajectory.steps)]
    rows = [jnp.split(leaf, parts, 0) for leaf in jax.tree.leaves(trajectory.actor_state)]
    steps, memory = jax.tree.structure(trajectory.steps), jax.tree.structure(trajectory.actor_state)
    return tuple(
        Trajectory(
            steps.unflatten([column[part] for column in columns]),
            memory.unflatten([row[part] for row in rows]),
        )
        for part in range(parts)
    )


def join_batch(trajectories: Sequence[Trajectory]) -> Trajectory:
    """Joins trajectories along their batch, in order."""
    if len(trajectories) == 1:
        return trajectories[0]
    steps = jax.tree.map(lambda *leaves: jnp.concatenate(leaves, 1), *[t.steps for t in trajectories])
    memory = jax.tree.map(lambda *leaves: jnp.concatenate(leaves, 0), *[t.actor_state for t in trajectories])
    return Trajectory(steps, memory)


def shard_over(mesh: Mesh, pieces: Sequence[Trajectory]) -> Trajectory:
    """Makes one sharded trajectory of a piece on each of this process's devices of a mesh, without a copy."""
    if mesh.size == 1:
        return pieces[0]
    axis = mesh.axis_names[0]

    def assemble(batch_axis: int, *leaves: jax.Array) -> jax.Array:
        shape = list(leaves[0].shape)
        shape[batch_axis] *= mesh.size
        spec = PartitionSpec(*(None,) * batch_axis, axis)
        return jax.make_array_from_single_device_arrays(tuple(shape), NamedSharding(mesh, spec), list(leaves))

    return Trajectory(
        jax.tree.map(lambda *leaves: assemble(1, *leaves), *[piece.steps for piece in pieces]),
        jax.tree.map(lambda *leaves: assemble(0, *leaves), *[piece.actor_state for piece in pieces]),
    )


def trajectory_specs(axis: str) -> Trajectory:
    """How a trajectory is laid over the learner devices, as a prefix tree of `PartitionSpec`."""
    return Trajectory(steps=PartitionSpec(None, axis), actor_state=PartitionSpec(axis))
