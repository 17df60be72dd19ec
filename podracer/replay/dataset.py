"""A recording as a store: offline training, with either runner and evaluated as always."""

import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from podracer.parallel import collectives
from podracer.parallel.host_calls import host_call
from podracer.replay import ratio
from podracer.replay.recording import Recording, batch_axis, open_recording
from podracer.replay.settings import RatioSettings
from podracer.replay.uniform import Uniform, UniformState
from podracer.trees import from_arrays, leaf_names
from podracer.types import Array, ArrayTree, Batch, Key, Step, TimeStep, Trajectory


@dataclass(frozen=True, kw_only=True)
class Dataset(RatioSettings):
    """Samples a recording uniformly; what the run itself does is not stored. See `podracer.replay.base.Replay`."""

    folder: str
    """Of the recording: what a run wrote with recording.folder=..."""
    learning_starts: int = 0
    """Transitions of the run itself before learning begins."""

    def __post_init__(self):
        super().__post_init__()
        spec, found = self.spec, self._recording
        if found.num_envs % spec.num_devices:
            raise ValueError(
                f"replay.folder={self.folder} is of {found.num_envs} environments, which do not divide over "
                f"{spec.num_devices} learner devices (mesh.learner); use a number of devices that divides them"
            )
        try:
            assert self._store.num_rows > 0
        except ValueError as error:
            timesteps = (found.end - found.first) * found.unroll_length
            raise ValueError(
                f"replay.folder={self.folder} holds {timesteps} timesteps of each environment, too few for sequences "
                f"of {spec.sequence_length} timesteps; record more"
            ) from error

    def summary(self) -> dict[str, float]:
        return {"capacity": self._store.num_rows * self._recording.num_envs, **super().summary()}

    def init(self, example: Trajectory) -> UniformState:
        """Reads the recording.

        Raises:
          ValueError: it lacks something that trajectories of this run have, or has it in another form.
        """
        found, unroll = self._recording, self._unroll(example)
        self._check(unroll)
        shard = collectives.axis_index(self.axis_name)

        def read(shard: np.ndarray, index: np.ndarray) -> Trajectory:
            columns = slice(shard * self._columns, (shard + 1) * self._columns)
            arrays = found.unroll(int(index))
            own = {name: arrays[name][(slice(None),) * batch_axis(name) + (columns,)] for name in leaf_names(unroll)}
            return from_arrays(own, unroll)

        def add(index: Array, state: UniformState) -> UniformState:
            return self._store.add(state, host_call(read, unroll, shard, index))

        filled = jax.lax.fori_loop(found.first, found.end, add, self._store.init(unroll))
        return filled._replace(credit=ratio.no_credit())

    def add(self, state: UniformState, trajectory: Trajectory) -> UniformState:
        """Counts the transitions, which say how much is learnt."""
        credit = ratio.insert(state.credit, trajectory, self.updates_per_insert, self.learning_starts, self.axis_name)
        return state._replace(credit=credit)

    def take_updates(self, state: UniformState) -> tuple[UniformState, Array]:
        credit, updates = ratio.take(state.credit, self.can_sample(state), self.axis_name)
        return state._replace(credit=credit), updates

    def can_sample(self, state: UniformState) -> Array:
        return self._store.can_sample(state)

    def sample(self, state: UniformState, key: Key) -> tuple[UniformState, Batch]:
        return self._store.sample(state, key)

    def set_priorities(self, state: UniformState, indices: ArrayTree, priorities: Array) -> UniformState:
        return self._store.set_priorities(state, indices, priorities)

    def retain(self, state: UniformState) -> UniformState:
        return state

    def reshard(self, state: UniformState, num_devices: int) -> UniformState:
        return self._store.reshard(state, num_devices)

    def size(self, state: UniformState) -> Array:
        return self._store.size(state)

    @functools.cached_property
    def _recording(self) -> Recording:
        return open_recording(Path(self.folder))

    @property
    def _columns(self) -> int:
        """Environments of the recording on a device."""
        return self._recording.num_envs // self.spec.num_devices

    @property
    def _store(self) -> Uniform:
        """The store that the recording fills, in the shape that it was recorded in."""
        found = self._recording
        spec = dataclasses.replace(self.spec, num_envs=found.num_envs, unroll_length=found.unroll_length)
        capacity = (found.end - found.first) * found.unroll_length * found.num_envs
        return Uniform(spec=spec, capacity=capacity, learning_starts=0)

    def _unroll(self, example: Trajectory) -> Trajectory:
        """Shapes of an unroll of the recording on a device, with the structure of the run's own."""
        spec, found = self.spec, self._recording

        def shaped(tree: ArrayTree, *leading: int) -> ArrayTree:
            return jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct((*leading, *leaf.shape[len(leading) :]), leaf.dtype), tree
            )

        steps = shaped(example.steps, found.unroll_length + 1, self._columns)
        if spec.sequence_period % found.unroll_length == 0:
            return Trajectory(steps, shaped(example.actor_state, self._columns))
        if spec.sequence_period % spec.unroll_length == 0 and jax.tree.leaves(example.actor_state):
            raise ValueError(
                f"replay.folder={self.folder} holds the actors' memory at every {found.unroll_length} timesteps, and "
                f"sequences start at every {spec.sequence_period} (agent.unroll_length={spec.unroll_length}); use "
                f"agent.unroll_length={found.unroll_length}"
            )
        return Trajectory(steps, ())

    def _check(self, unroll: Trajectory) -> None:
        faults = []
        for name, leaf in zip(leaf_names(unroll), jax.tree.leaves(unroll), strict=True):
            axis = batch_axis(name)
            shape = (*leaf.shape[:axis], self._recording.num_envs, *leaf.shape[axis + 1 :])
            if name not in self._recording.arrays:
                faults.append(f"it lacks {name}")
            elif self._recording.arrays[name] != (shape, leaf.dtype):
                found_shape, found_dtype = self._recording.arrays[name]
                faults.append(f"{name} is {found_dtype}{list(found_shape)} in place of {leaf.dtype}{list(shape)}")
        if faults:
            raise ValueError(
                f"replay.folder={self.folder} is of another agent or environment than this run: {'; '.join(faults)}"
            )


def read(folder: str | Path) -> Iterator[Trajectory]:
    """Reads a recording, without an agent or an environment.

    Args:
      folder: of the recording.

    Returns:
      The unrolls, `[T+1, B, ...]` with all environments side by side, in order; trees are dictionaries of NumPy arrays.

    Raises:
      ValueError: there is no recording of this format, or chunks are missing.
    """
    found = open_recording(Path(folder))
    for index in range(found.first, found.end):
        tree: dict[str, Any] = {}
        for name, array in found.unroll(index).items():
            *path, last = name.split("/")
            node = tree
            for step in path:
                node = node.setdefault(step, {})
            node[last] = array
        steps = tree["steps"]
        yield Trajectory(
            Step(TimeStep(**steps["timestep"]), steps["action"], steps.get("extras", ())), tree.get("actor_state", ())
        )
