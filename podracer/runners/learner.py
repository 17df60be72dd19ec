"""The learner of Sebulba: a thread that updates the agent with one unroll of every actor at a time."""

import collections
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding

from podracer.agent import hyper_parameters
from podracer.parallel.spmd import REPLICATED
from podracer.randomness import run_key
from podracer.runner import Due, Report, merge_episodes, no_episodes
from podracer.runners.activities import Activities
from podracer.runners.actor import Stopwatch
from podracer.runners.learn import Learned, mean_metrics, snapshot
from podracer.runners.pacing import ChunkSizes
from podracer.runners.parking import Parking
from podracer.runners.transport import ParameterStore, Unroll, shard_over
from podracer.runners.workers import Channel, Reports, Stopped, Workers
from podracer.trees import Arrays
from podracer.types import Array, ArrayTree, Trajectory

if TYPE_CHECKING:
    from podracer.runners.sebulba import Sebulba


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


class Learner:
    """What the learner thread does: `run` is its target."""

    def __init__(
        self,
        runner: "Sebulba",
        workers: Workers,
        store: ParameterStore,
        parking: Parking,
        activities: Activities,
        queues: list[Channel[Unroll]],
        state: SebulbaState,
        due: Callable[[int], Due],
        reports: Reports[Report],
    ):
        self._runner, self._workers, self._store, self._parking = runner, workers, store, parking
        self._activities, self._queues, self._due, self._reports = activities, queues, due, reports
        self._device, self._updates, self._env_steps = state.device, state.updates, state.env_steps
        self._waiting = [collections.deque(unrolls) for unrolls in state.waiting] or [
            collections.deque() for _ in queues
        ]
        hyper = hyper_parameters(runner.agent)
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
        publish = jax.jit(lambda state: self._runner.packed_snapshot(self._runner.agent, state))
        self._store.publish(self._updates, publish(self._device))
        total = self._runner.plan.updates
        while self._updates < total:
            due = self._due(self._updates)
            end = min(due.updates, total)
            if due.state and self._runner.lag is not None:
                # No actor has come that far: which unrolls there will be does not depend on timing.
                self._parking.close(end + self._runner.lag)
            report = self._chunk(min(self._sizes.next(), end - self._updates))
            is_due = self._updates == end
            if is_due and due.snapshot:
                report = report._replace(snapshot=self._take_snapshot(self._device))
            if is_due and due.state:
                report = report._replace(state=self._park())
            self._activities.begin("learner", "waiting for its report to be handled")
            self._reports.send(report, pause=report.snapshot is not None or report.state is not None)
            self._activities.progressed()
            if report.state is not None:
                self._parking.open()
        self._reports.end()

    def _park(self) -> SebulbaState:
        """Waits until every actor has stopped, and collects all that the run's future depends on."""
        if self._runner.lag is None:
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
        learned: list[Learned] = []
        lags: list[np.ndarray] = []
        counters = dict.fromkeys(("agent_updates", "skipped_updates", "restarted", "dropped"), 0)
        episodes, actor_compile_seconds = no_episodes(), 0.0
        actor_seconds: dict[str, float] = {}
        for _ in range(num_updates):
            with watch.measure("learner_wait_seconds"):
                unrolls = [self._take(actor) for actor in range(len(self._queues))]
            self._activities.begin("learner", "learning" if self._compiled else "compiling")
            with watch.measure("learn_seconds" if self._compiled else "compile_seconds"):
                learned.append(self._update(unrolls))
                self._compiled = True
            with watch.measure("learn_seconds"):
                if len(learned) > 1:
                    # One update in hand and one dispatched: more would only let the lag grow.
                    jax.block_until_ready(learned[-2])
            for unroll in unrolls:
                lags.append(self._updates - 1 - unroll.versions)
                self._env_steps += unroll.env_steps
                counters["restarted"] += unroll.restarts
                counters["dropped"] += unroll.dropped
                episodes = merge_episodes(episodes, unroll.episodes)
                for name, seconds in unroll.seconds.items():
                    actor_seconds[name] = actor_seconds.get(name, 0.0) + seconds / len(self._queues)
                actor_compile_seconds = max(actor_compile_seconds, unroll.seconds.get("compile_seconds", 0.0))
        with watch.measure("learn_seconds"):
            total = jax.tree.map(lambda *values: np.sum(values), *jax.device_get(learned))
        counters["agent_updates"], counters["skipped_updates"] = int(total.agent_updates), int(total.skipped)
        # Actors compile first, the learner with their first unrolls.
        compile_seconds = actor_compile_seconds + watch.seconds.pop("compile_seconds", 0.0)
        seconds = time.perf_counter() - started - compile_seconds
        self._sizes.record(num_updates, seconds)
        means = mean_metrics(total)
        means["policy_lag_mean"] = float(np.mean(lags))
        means["policy_lag_max"] = float(np.max(lags))
        timings = {**actor_seconds, **watch.seconds, "train_seconds": seconds, "compile_seconds": compile_seconds}
        return Report(self._updates, self._env_steps, means, episodes, timings, counters)

    def _take(self, actor: int) -> Unroll:
        if self._waiting[actor]:
            return self._waiting[actor].popleft()
        self._activities.begin("learner", f"waiting for an unroll of actor-{actor}")
        return self._queues[actor].get()

    def _update(self, unrolls: list[Unroll]) -> Learned:
        """Dispatches one update and publishes what it results in; says what was learnt."""
        self._device, packed, learned = self._program(self._hyper, self._device, self._join(unrolls), self._key)
        self._updates += 1
        self._store.publish(self._updates, packed)
        return learned

    def _join(self, unrolls: list[Unroll]) -> tuple[Trajectory, ...]:
        """Brings the pieces of all actors into the order of the learner devices."""
        pieces = [piece for unroll in unrolls for piece in unroll.pieces]
        per_device = self._runner.pieces_per_device
        return tuple(shard_over(self._runner.mesh, pieces[rank::per_device]) for rank in range(per_device))
