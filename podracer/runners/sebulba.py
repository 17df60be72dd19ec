"""Sebulba: actor threads step host environments and act on actor devices; one learner updates on its own.

    actor threads --(bounded queues of trajectories)--> learner thread --(parameter store)--> actor threads

An update consumes one unroll of every actor, joined in actor order.

"Podracer architectures for scalable Reinforcement Learning", Hessel et al., arXiv 2104.06272, section 3.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from podracer.agent import Agent, with_hyper_parameters
from podracer.envs.base import HostEnv
from podracer.faults import FaultsConfig
from podracer.parallel import collectives
from podracer.parallel.mesh import Plan
from podracer.parallel.spmd import REPLICATED, axis_name, put, shardings, spmd
from podracer.randomness import Role, run_key, shard_key
from podracer.replay.base import Replay
from podracer.runner import Due, Report
from podracer.runners.activities import Activities
from podracer.runners.actor import ActorPrograms, ActorThread
from podracer.runners.learn import Learned, learn, snapshot
from podracer.runners.learner import Learner, LearnerShards, SebulbaState
from podracer.runners.parking import Parking
from podracer.runners.restoring import restore_device
from podracer.runners.transport import (
    Packed,
    ParameterStore,
    Unroll,
    join_batch,
    pack,
    restore_unrolls,
    trajectory_specs,
)
from podracer.runners.workers import Channel, Reports, Workers
from podracer.trees import Arrays, children, subtree
from podracer.types import Trajectory

# Of mode free: two updates may be under way, and the newest that has arrived is wanted.
_FREE_VERSIONS = 3


@dataclass(frozen=True, kw_only=True)
class SebulbaConfig:
    """Settings of `runner=sebulba`."""

    mode: Literal["lockstep", "fixed_lag", "free"] = "fixed_lag"
    """Which parameters unroll n acts with: version n, version n - lag (both deterministic), or the newest."""
    lag: int = 1
    """Updates that acting is behind learning in mode fixed_lag."""
    refresh: Literal["unroll", "step"] = "unroll"
    """When actors of mode free take newer parameters."""
    threads_per_device: int = 2
    """Actor threads on every actor device, each with its own environments, so that acting hides stepping."""
    queue_size: int = 1
    """Finished unrolls that an actor of mode free may have waiting for the learner."""
    updates_per_report: int | None = None
    """Updates a row of metrics; None aims at one second a row."""

    def __post_init__(self):
        for name, least in {"lag": 0, "threads_per_device": 1, "queue_size": 1, "updates_per_report": 1}.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"runner.{name}={value} is too small; use at least {least}")


@dataclass(frozen=True)
class Sebulba:
    """Runs an agent in host environments. See `podracer.runner.Runner`."""

    agent: Agent
    make_env: Callable[[int], HostEnv]  # from the actor's global index
    replay: Replay
    plan: Plan
    mesh: Mesh  # of the learner
    actor_devices: tuple[jax.Device, ...]  # one an actor thread of this process
    example: Trajectory  # shapes of a learner device's trajectory
    config: SebulbaConfig = SebulbaConfig()
    faults: FaultsConfig = field(default_factory=FaultsConfig)

    def init(self) -> SebulbaState:
        """Makes the state of a new run on the learner's mesh."""

        def init(key):
            learner_state = self.agent.init_learner(shard_key(key, Role.INIT_LEARNER, 0))
            return LearnerShards(learner_state, self.replay.init(self.example), jnp.zeros((), jnp.int32))

        specs = self._specs()
        program = jax.jit(spmd(init, self.mesh, REPLICATED, specs), out_shardings=shardings(self.mesh, specs))
        return SebulbaState(program(run_key(self.plan.seed)), 0, 0)

    def restore(self, arrays: Arrays) -> SebulbaState:
        """Puts a saved state on the devices. With another number of actors or pieces, the actors begin anew."""
        example = jax.eval_shape(lambda: self.init().device)
        device = restore_device(subtree(arrays, "device"), example, self.replay, self.mesh.size)
        device = put(device, self.mesh, self._specs())
        state = SebulbaState(device, int(arrays["updates"]), int(arrays["env_steps"]))
        actors = tuple(subtree(arrays, "actors", name) for name in children(subtree(arrays, "actors")))
        waiting = restore_unrolls(subtree(arrays, "waiting"), self.example, len(actors))
        pieces = {len(unroll.pieces) for unrolls in waiting for unroll in unrolls}
        if len(actors) != len(self.actor_devices) or not pieces <= {self._parts}:
            warnings.warn(
                f"the run had {len(actors)} actors and has {len(self.actor_devices)} now, on {self.mesh.size} learner "
                "devices: all start new episodes, and unrolls that waited for the learner are dropped",
                stacklevel=2,
            )
            return state
        placed = tuple(
            tuple(unroll._replace(pieces=jax.device_put(unroll.pieces, self._devices_of(actor))) for unroll in unrolls)
            for actor, unrolls in enumerate(waiting)
        )
        return state._replace(actors=actors, waiting=placed)

    def run(self, state: SebulbaState, due: Callable[[int], Due]) -> Iterator[Report]:
        """Trains until the budget is spent; one report about a second."""
        with Workers() as workers:
            reports: Reports[Report] = Reports(workers)
            store = self.parameter_store(workers, state)
            parking = Parking(workers, len(self.actor_devices))
            activities = Activities(self.faults)
            queues = self.start_actors(workers, store, parking, activities, state)
            learner = Learner(self, workers, store, parking, activities, queues, state, due, reports)
            workers.start("learner", learner.run)
            yield from reports.watched(activities.check)

    @property
    def pieces_per_device(self) -> int:
        """How many actors a learner device is sent trajectories by."""
        return max(1, len(self.actor_devices) // len(self.mesh.local_devices))

    @property
    def _parts(self) -> int:
        """How many pieces an actor's trajectory is cut into."""
        return max(1, len(self.mesh.local_devices) // len(self.actor_devices))

    def _devices_of(self, actor: int) -> tuple[jax.Device, ...]:
        """The learner devices that the pieces of an actor go to, in order."""
        devices = self.mesh.local_devices
        first = actor * len(devices) // len(self.actor_devices)
        return tuple(devices[first : first + self._parts])

    @property
    def lag(self) -> int | None:
        return {"lockstep": 0, "fixed_lag": self.config.lag, "free": None}[self.config.mode]

    def parameter_store(self, workers: Workers, state: SebulbaState) -> ParameterStore:
        """Makes the store that the learner publishes into, empty."""
        example = jax.eval_shape(lambda s: snapshot(self.agent, s.learner, s.updates, 1), state.device)
        keep = _FREE_VERSIONS if self.lag is None else self.lag + 1
        return ParameterStore(workers, self.actor_devices, example, keep)

    def start_actors(
        self,
        workers: Workers,
        store: ParameterStore,
        parking: Parking,
        activities: Activities,
        state: SebulbaState,
    ) -> list[Channel[Unroll]]:
        """Starts a thread for each actor; returns the queues that they put their unrolls on."""
        actors = len(self.actor_devices)
        programs = ActorPrograms.build(self.agent, self.plan.num_envs, self._parts)
        queues = []
        for index, device in enumerate(self.actor_devices):
            queue: Channel[Unroll] = Channel(workers, self.config.queue_size if self.lag is None else self.lag + 1)
            actor = ActorThread(
                index=index,
                shard=jax.process_index() * actors + index,
                device=device,
                learner_devices=self._devices_of(index),
                make_env=self.make_env,
                agent=self.agent,
                programs=programs,
                plan=self.plan,
                store=store,
                queue=queue,
                lag=self.lag,
                parking=parking,
                activities=activities,
                refresh_each_step=self.lag is None and self.config.refresh == "step",
                first_version=state.updates,
                saved=state.actors[index] if state.actors else None,
            )
            workers.start(f"actor-{index}", actor.run)
            queues.append(queue)
        return queues

    def _specs(self) -> LearnerShards:
        return LearnerShards(REPLICATED, PartitionSpec(self.mesh.axis_names[0]), REPLICATED)

    def program(self) -> Callable[..., tuple[LearnerShards, Packed, Learned]]:
        """The jitted update, the state donated.

        `(hyper, state, pieces, key) -> (state, packed snapshot, what was learnt)`
        """

        def update(hyper, state: LearnerShards, pieces: tuple[Trajectory, ...], key):
            agent = with_hyper_parameters(self.agent, hyper)
            shard = collectives.axis_index(axis_name(self.mesh))
            learn_key = jax.random.fold_in(shard_key(key, Role.LEARN, shard), state.updates)
            progress = snapshot(agent, state.learner, state.updates, self.plan.updates).progress
            learner, replay, learned = learn(
                agent, self.replay, state.learner, state.replay, join_batch(pieces), learn_key, progress
            )
            state = LearnerShards(learner, replay, state.updates + 1)
            return state, self.packed_snapshot(agent, state), learned

        pieces = (trajectory_specs(self.mesh.axis_names[0]),) * self.pieces_per_device
        specs = self._specs()
        program = spmd(update, self.mesh, (REPLICATED, specs, pieces, REPLICATED), (specs, REPLICATED, REPLICATED))
        return jax.jit(program, donate_argnums=1)

    def packed_snapshot(self, agent: Agent, state: LearnerShards) -> Packed:
        return pack(snapshot(agent, state.learner, state.updates, self.plan.updates))
