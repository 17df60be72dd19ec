"""Sebulba: actor threads step host environments and act on actor devices; one learner updates on its own.

    actor threads --(bounded queues of trajectories)--> learner thread --(parameter store)--> actor threads

An update consumes one unroll of every actor, joined in actor order.

"Podracer architectures for scalable Reinforcement Learning", Hessel et al., arXiv 2104.06272, section 3.
"""

import collections
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from podracer.agent import Agent, hyper_parameters, with_hyper_parameters
from podracer.envs.base import HostEnv
from podracer.parallel import collectives
from podracer.parallel.mesh import Plan
from podracer.parallel.spmd import REPLICATED, axis_name, put, shardings, spmd
from podracer.randomness import Role, run_key, shard_key
from podracer.replay.base import Replay
from podracer.runner import Due, Report, merge_episodes, no_episodes
from podracer.runners.actor import ActorPrograms, ActorThread, Stopwatch
from podracer.runners.learn import learn, snapshot
from podracer.runners.pacing import ChunkSizes
from podracer.runners.parking import Parking
from podracer.runners.transport import (
    Packed,
    ParameterStore,
    Unroll,
    join_batch,
    pack,
    restore_unrolls,
    shard_over,
    trajectory_specs,
)
from podracer.runners.workers import Channel, Reports, Stopped, Workers
from podracer.trees import Arrays, children, from_arrays, subtree
from podracer.types import Array, ArrayTree, Trajectory

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


class LearnerShards(NamedTuple):
    """Everything that the learner's program carries."""

    learner: ArrayTree  # replicated
    replay: ArrayTree  # one shard a learner device
    updates: Array  # [] int32


class SebulbaState(NamedTuple):
    device: LearnerShards
    updates: int
    env_steps: int  # a Python integer: it outgrows 32 bits
    actors: tuple[Arrays, ...] = ()  # an `ActorState` of each; () where all begin
    waiting: tuple[tuple[Unroll, ...], ...] = ()  # unrolls of each actor that the learner has not taken


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
        device = from_arrays(subtree(arrays, "device"), jax.eval_shape(lambda: self.init().device))
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
            example = jax.eval_shape(lambda s: snapshot(self.agent, s.learner, s.updates, 1), state.device)
            keep = _FREE_VERSIONS if self._lag is None else self._lag + 1
            store = ParameterStore(workers, self.actor_devices, example, keep)
            parking = Parking(workers, len(self.actor_devices))
            queues = self._start_actors(workers, store, parking, state)
            learner = _Learner(self, workers, store, parking, queues, state, due, reports)
            workers.start("learner", learner.run)
            yield from reports

    @property
    def _pieces_per_device(self) -> int:
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
    def _lag(self) -> int | None:
        return {"lockstep": 0, "fixed_lag": self.config.lag, "free": None}[self.config.mode]

    def _start_actors(
        self, workers: Workers, store: ParameterStore, parking: Parking, state: SebulbaState
    ) -> list[Channel[Unroll]]:
        actors = len(self.actor_devices)
        programs = ActorPrograms.build(self.agent, self.plan.num_envs, self._parts)
        queues = []
        for index, device in enumerate(self.actor_devices):
            queue: Channel[Unroll] = Channel(workers, self.config.queue_size if self._lag is None else self._lag + 1)
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
                lag=self._lag,
                parking=parking,
                refresh_each_step=self._lag is None and self.config.refresh == "step",
                first_version=state.updates,
                saved=state.actors[index] if state.actors else None,
            )
            workers.start(f"actor-{index}", actor.run)
            queues.append(queue)
        return queues

    def _specs(self) -> LearnerShards:
        return LearnerShards(REPLICATED, PartitionSpec(self.mesh.axis_names[0]), REPLICATED)

    def program(self) -> Callable[..., tuple[LearnerShards, Packed, dict[str, Array]]]:
        """The jitted update: `(hyper, state, pieces, key) -> (state, packed snapshot, metrics)`, the state donated."""

        def update(hyper, state: LearnerShards, pieces: tuple[Trajectory, ...], key):
            agent = with_hyper_parameters(self.agent, hyper)
            shard = collectives.axis_index(axis_name(self.mesh))
            learn_key = jax.random.fold_in(shard_key(key, Role.LEARN, shard), state.updates)
            progress = snapshot(agent, state.learner, state.updates, self.plan.updates).progress
            learner, replay, metrics = learn(
                agent, self.replay, state.learner, state.replay, join_batch(pieces), learn_key, progress
            )
            state = LearnerShards(learner, replay, state.updates + 1)
            return state, self._packed_snapshot(agent, state), metrics

        pieces = (trajectory_specs(self.mesh.axis_names[0]),) * self._pieces_per_device
        specs = self._specs()
        program = spmd(update, self.mesh, (REPLICATED, specs, pieces, REPLICATED), (specs, REPLICATED, REPLICATED))
        return jax.jit(program, donate_argnums=1)

    def _packed_snapshot(self, agent: Agent, state: LearnerShards) -> Packed:
        return pack(snapshot(agent, state.learner, state.updates, self.plan.updates))


class _Learner:
    """The learner thread."""

    def __init__(
        self,
        runner: Sebulba,
        workers: Workers,
        store: ParameterStore,
        parking: Parking,
        queues: list[Channel[Unroll]],
        state: SebulbaState,
        due: Callable[[int], Due],
        reports: Reports[Report],
    ):
        self._runner, self._workers, self._store, self._parking = runner, workers, store, parking
        self._queues, self._due, self._reports = queues, due, reports
        self._device, self._updates, self._env_steps = state.device, state.updates, state.env_steps
        self._waiting = [collections.deque(unrolls) for unrolls in state.waiting] or [
            collections.deque() for _ in queues
        ]
        hyper = {name: np.float32(value) for name, value in hyper_parameters(runner.agent).items()}
        # On the mesh once, not from the first device at every update.
        replicated = NamedSharding(runner.mesh, REPLICATED)
        self._hyper, self._key = jax.device_put((hyper, run_key(runner.plan.seed)), replicated)
        self._program = runner.program()
        self._compiled = False
        self._sizes = ChunkSizes(runner.config.updates_per_report)
        self._take_snapshot = jax.jit(lambda s: snapshot(runner.agent, s.learner, s.updates, runner.plan.updates))

    def run(self) -> None:
        """Learns until the budget is spent."""
        try:
            self._run()
        except Stopped:
            jax.block_until_ready(self._device)  # a process that exits while its devices compute may crash
            raise

    def _run(self) -> None:
        publish = jax.jit(lambda state: self._runner._packed_snapshot(self._runner.agent, state))
        self._store.publish(self._updates, publish(self._device))
        total = self._runner.plan.updates
        while self._updates < total:
            due = self._due(self._updates)
            end = min(due.updates, total)
            if due.state and self._runner._lag is not None:
                # No actor has come that far: which unrolls there will be does not depend on timing.
                self._parking.close(end + self._runner._lag)
            report = self._chunk(min(self._sizes.next(), end - self._updates))
            is_due = self._updates == end
            if is_due and due.snapshot:
                report = report._replace(snapshot=self._take_snapshot(self._device))
            if is_due and due.state:
                report = report._replace(state=self._park())
            self._reports.send(report, pause=report.snapshot is not None or report.state is not None)
            if report.state is not None:
                self._parking.open()
        self._reports.end()

    def _park(self) -> SebulbaState:
        """Waits until every actor has stopped, and collects all that the run's future depends on."""
        if self._runner._lag is None:
            self._parking.close(0)
        while not self._parking.wait(0.01):
            if self._workers.stopping:
                raise Stopped
            self._receive()  # an actor may wait for room in its queue
        self._receive()
        waiting = tuple(tuple(unroll._replace(seconds={}) for unroll in unrolls) for unrolls in self._waiting)
        return SebulbaState(self._device, self._updates, self._env_steps, self._parking.states(), waiting)

    def _receive(self) -> None:
        for queue, waiting in zip(self._queues, self._waiting):
            while queue.qsize():
                waiting.append(queue.get())

    def _chunk(self, num_updates: int) -> Report:
        """Makes some updates and reports them."""
        started, watch = time.perf_counter(), Stopwatch()
        metrics: list[Any] = []
        lags: list[np.ndarray] = []
        episodes, actor_compile_seconds = no_episodes(), 0.0
        actor_seconds: dict[str, float] = {}
        for _ in range(num_updates):
            with watch.measure("learner_wait_seconds"):
                unrolls = [
                    waiting.popleft() if waiting else queue.get() for queue, waiting in zip(self._queues, self._waiting)
                ]
            with watch.measure("learn_seconds" if self._compiled else "compile_seconds"):
                metrics.append(self._update(unrolls))
                self._compiled = True
            with watch.measure("learn_seconds"):
                if len(metrics) > 1:
                    # One update in hand and one dispatched: more would only let the lag grow.
                    jax.block_until_ready(metrics[-2])
            for unroll in unrolls:
                lags.append(self._updates - 1 - unroll.versions)
                self._env_steps += unroll.env_steps
                episodes = merge_episodes(episodes, unroll.episodes)
                for name, seconds in unroll.seconds.items():
                    actor_seconds[name] = actor_seconds.get(name, 0.0) + seconds / len(self._queues)
                actor_compile_seconds = max(actor_compile_seconds, unroll.seconds.get("compile_seconds", 0.0))
        with watch.measure("learn_seconds"):
            metrics = jax.device_get(metrics)
        # Actors compile first, the learner with their first unrolls.
        compile_seconds = actor_compile_seconds + watch.seconds.pop("compile_seconds", 0.0)
        seconds = time.perf_counter() - started - compile_seconds
        self._sizes.record(num_updates, seconds)
        means = {name: float(np.mean([update[name] for update in metrics])) for name in metrics[0]}
        means["policy_lag_mean"] = float(np.mean(lags))
        means["policy_lag_max"] = float(np.max(lags))
        timings = {**actor_seconds, **watch.seconds, "train_seconds": seconds, "compile_seconds": compile_seconds}
        return Report(self._updates, self._env_steps, means, episodes, timings)

    def _update(self, unrolls: list[Unroll]) -> dict[str, Array]:
        """Dispatches one update and publishes what it results in."""
        self._device, packed, metrics = self._program(self._hyper, self._device, self._join(unrolls), self._key)
        self._updates += 1
        self._store.publish(self._updates, packed)
        return metrics

    def _join(self, unrolls: list[Unroll]) -> tuple[Trajectory, ...]:
        """Brings the pieces of all actors into the order of the learner devices."""
        pieces = [piece for unroll in unrolls for piece in unroll.pieces]
        per_device = self._runner._pieces_per_device
        return tuple(shard_over(self._runner.mesh, pieces[rank::per_device]) for rank in range(per_device))
