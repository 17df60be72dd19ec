"""A population: runs of Anakin that differ in seed and hyper-parameters, trained as one compiled program.

The members are spread over the devices, along a mesh axis of their own: each lies on one device, and nothing
is averaged between them. On a device the program of one run is mapped over its members by `vmap`, or, where
that is slower than their work in turn as on CPUs, by a loop.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from podracer.agent import hyper_parameters
from podracer.parallel.mesh import Plan
from podracer.parallel.placement import MEMBER_AXIS
from podracer.parallel.spmd import REPLICATED, put, shardings, spmd
from podracer.randomness import run_key
from podracer.runner import Due, Report
from podracer.runners.anakin import Anakin, DeviceState, compiled
from podracer.runners.chunks import Chunks, Totals
from podracer.runners.learn import snapshot
from podracer.runners.workers import Reports, Workers
from podracer.trees import Arrays
from podracer.types import Array, ArrayTree, Key, PolicySnapshot

# The members of a device, [M, ...] for each leaf of one.
_MEMBERS = PartitionSpec(MEMBER_AXIS)


class PopulationState(NamedTuple):
    """The states of all members between two calls."""

    device: DeviceState  # [M, ...] for each leaf of one
    updates: int  # the same for all
    env_steps: Sequence[int]  # of each


@dataclasses.dataclass(frozen=True)
class Population:
    """Runs several members together; what `podracer.runner.Runner` is for one, this is for lists of them."""

    members: Sequence[Anakin]  # for one device each, alike but for seed and traceable fields
    mesh: Mesh  # of the members
    batching: Literal["vmap", "loop"] = "vmap"  # how the members of a device are mapped over

    @property
    def plan(self) -> Plan:
        """The plan of each member, but for its seed."""
        return self.members[0].plan

    def init(self) -> PopulationState:
        """Makes the states of new runs."""
        one = self.members[0].init_device
        each = jax.vmap(one) if self.batching == "vmap" else lambda *args: jax.lax.map(lambda arg: one(*arg), args)
        init = spmd(each, self.mesh, (_MEMBERS, _MEMBERS), _MEMBERS)
        program = jax.jit(init, out_shardings=shardings(self.mesh, _MEMBERS))
        return PopulationState(program(*self._arguments()), 0, [0] * len(self.members))

    def restore(self, saved: Sequence[Arrays]) -> PopulationState:
        """Makes the states of runs that go on, all after the same number of updates."""
        states = [member.restore(arrays) for member, arrays in zip(self.members, saved, strict=True)]
        shares = jax.device_get([state.device for state in states])
        device = jax.tree.map(lambda *leaves: np.stack(leaves), *self._padded(shares))
        (updates,) = {state.updates for state in states}
        return PopulationState(put(device, self.mesh, _MEMBERS), updates, [state.env_steps for state in states])

    def run(self, state: PopulationState, due: Callable[[int], Due]) -> Iterator[Sequence[Report]]:
        """Trains until the budget is spent; one report of each member a call of the compiled program."""
        updates_per_call = self.members[0].config.updates_per_call
        with Workers() as workers:
            reports: Reports[Sequence[Report]] = Reports(workers)
            workers.start("anakin", Chunks(self, *state, due, reports, updates_per_call).run)
            yield from reports

    def compile(self, state: DeviceState) -> Callable[[DeviceState, int], tuple[DeviceState, Totals]]:
        """Compiles the program, and puts its constant arguments in place; see `podracer.runners.chunks`."""
        chunk = self.members[0].chunk
        chunk = jax.vmap(chunk, in_axes=(0, 0, None, 0)) if self.batching == "vmap" else _in_turn(chunk)
        in_specs, out_specs = (_MEMBERS, _MEMBERS, REPLICATED, _MEMBERS), (_MEMBERS, _MEMBERS)
        program = jax.jit(spmd(chunk, self.mesh, in_specs, out_specs), donate_argnums=1)
        hyper, keys = self._arguments()
        return compiled(program, hyper, state, keys)

    def snapshots(self, state: DeviceState) -> Sequence[PolicySnapshot]:
        return self.split(self._snapshot(state))

    def split(self, tree: ArrayTree) -> Sequence[Any]:
        if all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(tree)):
            return [jax.tree.map(operator.itemgetter(index), tree) for index in range(len(self.members))]
        # Each from the device that has it, to lie there alone as the state of a run on one device does.
        per_device = -(-len(self.members) // self.mesh.size)
        shares = [
            jax.tree.map(operator.methodcaller("addressable_data", device), tree) for device in range(self.mesh.size)
        ]
        places = (divmod(index, per_device) for index in range(len(self.members)))
        return [self._take(shares[device], np.int32(place)) for device, place in places]

    @functools.cached_property
    def _snapshot(self) -> Callable[[DeviceState], PolicySnapshot]:
        agent, updates = self.members[0].agent, self.plan.updates
        return jax.jit(jax.vmap(lambda state: snapshot(agent, state.learner, state.updates, updates)))

    @functools.cached_property
    def _take(self) -> Callable[[ArrayTree, Array], ArrayTree]:
        return jax.jit(lambda tree, index: jax.tree.map(lambda leaf: leaf[index], tree))

    def _arguments(self) -> tuple[dict[str, Array], Key]:
        """The hyper-parameters and the key of each member, on the mesh."""
        hyper = [hyper_parameters(member.agent) for member in self._padded(self.members)]
        keys = jnp.stack([run_key(member.plan.seed) for member in self._padded(self.members)])
        stacked = {name: np.stack([values[name] for values in hyper]) for name in hyper[0]}
        return jax.device_put((stacked, keys), NamedSharding(self.mesh, _MEMBERS))

    def _padded(self, items: Sequence[Any]) -> Sequence[Any]:
        """The last is repeated, as every device has to have as many."""
        return [*items, *items[-1:] * (-len(items) % self.mesh.size)]


def _in_turn(chunk: Callable) -> Callable:
    """Maps a chunk over the members of a device, one after the other."""

    def chunks(hyper: ArrayTree, states: ArrayTree, num_updates: Array, keys: Key) -> tuple[ArrayTree, ArrayTree]:
        def member(index: Array, states: ArrayTree) -> tuple[ArrayTree, ArrayTree]:
            take = operator.itemgetter(index)
            return chunk(jax.tree.map(take, hyper), jax.tree.map(take, states), num_updates, keys[index])

        def step(index: Array, carry: tuple[ArrayTree, ArrayTree]) -> tuple[ArrayTree, ArrayTree]:
            # In place, so that the states of all are held once.
            put_at = functools.partial(jax.lax.dynamic_update_index_in_dim, index=index, axis=0)
            return jax.tree.map(put_at, carry, member(index, carry[0]))

        count = len(keys)
        _, shapes = jax.eval_shape(member, jnp.int32(0), states)
        totals = jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), shapes)
        return jax.lax.fori_loop(0, count, step, (states, totals))

    return chunks
