"""Anakin: environment and agent in one compiled program, replicated over a mesh of devices.

    for each update: unroll T steps on every device; learn, with gradients averaged over the devices

Many updates are one call. The state is donated, and the next call is dispatched before the metrics of
the last one are read, so that the devices never wait for the host.

"Podracer architectures for scalable Reinforcement Learning", Hessel et al., arXiv 2104.06272, section 2.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from podracer.agent import Agent, hyper_parameters, with_hyper_parameters
from podracer.envs.base import BatchedEnv
from podracer.parallel import collectives
from podracer.parallel.mesh import Plan
from podracer.parallel.spmd import REPLICATED, axis_name, put, shardings, spmd
from podracer.randomness import Role, run_key, shard_key
from podracer.replay.base import Replay
from podracer.runner import Due, Report
from podracer.runners.learn import Learned, learn, mean_metrics, snapshot
from podracer.runners.pacing import ChunkSizes
from podracer.runners.restoring import restore_device
from podracer.runners.unroll import ActorCarry, UnrollSums, example_trajectory, merge_sums, to_episodes, unroll_scan
from podracer.runners.workers import Reports, Stopped, Workers
from podracer.trees import Arrays, subtree
from podracer.types import Array, ArrayTree, PolicySnapshot


@dataclass(frozen=True, kw_only=True)
class AnakinConfig:
    """Settings of `runner=anakin`."""

    updates_per_call: int | None = None
    """Updates a call of the compiled program, and so a row of metrics; None aims at one second a call."""

    def __post_init__(self):
        if self.updates_per_call is not None and self.updates_per_call < 1:
            raise ValueError(f"runner.updates_per_call={self.updates_per_call} is too small; use at least 1, or null")


class DeviceState(NamedTuple):
    """Everything that the compiled program carries."""

    learner: ArrayTree  # replicated
    replay: ArrayTree  # [D * ...] one shard a device
    actor: ActorCarry  # [D * B, ...]
    updates: Array  # [] int32


class AnakinState(NamedTuple):
    device: DeviceState
    updates: int
    env_steps: int  # a Python integer: it outgrows 32 bits


class Totals(NamedTuple):
    """What a call sums over its updates."""

    learned: Learned  # the same on every device
    unrolls: UnrollSums  # [D] each


@dataclass(frozen=True)
class Anakin:
    """Runs an agent in JAX environments. See `podracer.runner.Runner`."""

    agent: Agent
    env: BatchedEnv
    replay: Replay
    plan: Plan
    mesh: Mesh
    config: AnakinConfig = AnakinConfig()

    def init(self) -> AnakinState:
        """Makes the state of a new run on the mesh."""
        specs = self._specs()
        init = spmd(self._init, self.mesh, REPLICATED, specs)
        program = jax.jit(init, out_shardings=shardings(self.mesh, specs))
        return AnakinState(program(run_key(self.plan.seed)), 0, 0)

    def restore(self, arrays: Arrays) -> AnakinState:
        """Puts a saved state on the mesh."""
        example = jax.eval_shape(lambda: self.init().device)
        device = restore_device(subtree(arrays, "device"), example, self.replay, self.mesh.size)
        device = put(device, self.mesh, self._specs())
        return AnakinState(device, int(arrays["updates"]), int(arrays["env_steps"]))

    def run(self, state: AnakinState, due: Callable[[int], Due]) -> Iterator[Report]:
        """Trains until the budget is spent; one report a call of the compiled program."""
        with Workers() as workers:
            reports: Reports[Report] = Reports(workers)
            workers.start("anakin", _Thread(self, state, due, reports).run)
            yield from reports

    def program(self) -> Callable[..., tuple[DeviceState, Totals]]:
        """The jitted program: `(hyper, state, num_updates, key) -> (state, totals)`, the state donated."""
        specs = self._specs()
        out_specs = specs, Totals(REPLICATED, PartitionSpec(self.mesh.axis_names[0]))
        chunk = spmd(self._chunk, self.mesh, (REPLICATED, specs, REPLICATED, REPLICATED), out_specs)
        return jax.jit(chunk, donate_argnums=1)

    def _specs(self) -> DeviceState:
        shard = PartitionSpec(self.mesh.axis_names[0])
        return DeviceState(learner=REPLICATED, replay=shard, actor=shard, updates=REPLICATED)

    def _init(self, key: jax.Array) -> DeviceState:
        """One device's share of a new state."""
        shard, num_envs = self._shard(), self.plan.envs_per_actor
        learner_state = self.agent.init_learner(shard_key(key, Role.INIT_LEARNER, 0))
        env_state, timestep = self.env.reset(shard_key(key, Role.ENV_RESET, shard), num_envs)
        env_indices = shard * num_envs + jnp.arange(num_envs, dtype=jnp.int32)
        actor_state = self.agent.init_actor(shard_key(key, Role.INIT_ACTOR, shard), env_indices, self.plan.num_envs)
        carry = ActorCarry(env_state, timestep, actor_state)
        example = example_trajectory(self.agent, self.env.spec, self.plan.num_envs, num_envs)
        return DeviceState(learner_state, self.replay.init(example), carry, jnp.zeros((), jnp.int32))

    def _shard(self) -> Array:
        return collectives.axis_index(axis_name(self.mesh))

    def _chunk(
        self, hyper: dict[str, Array], state: DeviceState, num_updates: Array, key: jax.Array
    ) -> tuple[DeviceState, Totals]:
        """`num_updates` times unroll and learn, on one device."""
        agent = with_hyper_parameters(self.agent, hyper)
        keys = {role: shard_key(key, role, self._shard()) for role in (Role.ACT, Role.ENV_STEP, Role.LEARN)}

        @jax.jit  # traced once for its shapes and the loop
        def update(state: DeviceState) -> tuple[DeviceState, Totals]:
            policy = snapshot(agent, state.learner, state.updates, self.plan.updates)
            start = state.updates * agent.unroll_length
            actor, trajectory, sums = unroll_scan(
                agent, self.env, policy, state.actor, keys[Role.ACT], keys[Role.ENV_STEP], start
            )
            learn_key = jax.random.fold_in(keys[Role.LEARN], state.updates)
            learner, replay, learned = learn(
                agent, self.replay, state.learner, state.replay, trajectory, learn_key, policy.progress
            )
            return DeviceState(learner, replay, actor, state.updates + 1), Totals(learned, sums)

        def accumulate(_, carry):
            state, totals = carry
            state, latest = update(state)
            learned = jax.tree.map(jnp.add, totals.learned, latest.learned)
            return state, Totals(learned, merge_sums(totals.unrolls, latest.unrolls))

        _, shapes = jax.eval_shape(update, state)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        unrolls = zeros.unrolls._replace(return_min=jnp.full((), jnp.inf), return_max=jnp.full((), -jnp.inf))
        state, totals = jax.lax.fori_loop(0, num_updates, accumulate, (state, zeros._replace(unrolls=unrolls)))
        return state, totals._replace(unrolls=jax.tree.map(lambda leaf: leaf[None], totals.unrolls))


class _Call(NamedTuple):
    """A call of the program that was dispatched and not read yet."""

    updates: int  # total at its end
    num_updates: int
    totals: Totals
    snapshot: PolicySnapshot | None
    state: DeviceState | None


class _Thread:
    """What compiles the program and calls it: `run` is the thread's target."""

    def __init__(self, runner: Anakin, state: AnakinState, due: Callable[[int], Due], reports: Reports[Report]):
        self._runner, self._due, self._reports = runner, due, reports
        self._device, self._updates, self._env_steps = state
        self._sizes = ChunkSizes(runner.config.updates_per_call)
        self._completed = 0.0  # when the last call that was read had ended
        self._compile_seconds = 0.0
        total = runner.plan.updates
        self._take_snapshot = jax.jit(lambda s: snapshot(runner.agent, s.learner, s.updates, total))

    def run(self) -> None:
        """Calls the program until the budget is spent."""
        program = self._compile()
        pending: _Call | None = None
        while self._updates < self._runner.plan.updates:
            call = self._dispatch(program)
            try:
                if pending is not None:
                    self._reports.send(self._read(pending))
            except Stopped:
                jax.block_until_ready(self._device)  # a process that exits while its devices compute may crash
                raise
            pending = call
            if call.snapshot is not None or call.state is not None:
                # Whoever asked works on the same devices: training pauses, so that neither is timed with the other.
                self._reports.send(self._read(call), pause=True)
                pending, self._completed = None, time.monotonic()
        if pending is not None:
            self._reports.send(self._read(pending))
        self._reports.end()

    def _compile(self) -> Callable[[DeviceState, int], tuple[DeviceState, Totals]]:
        """Compiles ahead, so that it is timed apart, and puts the program's constant arguments in place."""
        started = time.monotonic()
        runner = self._runner
        hyper = {name: np.float32(value) for name, value in hyper_parameters(runner.agent).items()}
        # On the mesh once, not from the first device at every call.
        hyper, key = jax.device_put((hyper, run_key(runner.plan.seed)), NamedSharding(runner.mesh, REPLICATED))
        program = runner.program()
        if not jax.config.jax_disable_jit:
            program = program.lower(hyper, self._device, np.int32(1), key).compile()
        self._completed = time.monotonic()
        self._compile_seconds = self._completed - started
        return lambda device, num_updates: program(hyper, device, np.int32(num_updates), key)

    def _dispatch(self, program: Callable[[DeviceState, int], tuple[DeviceState, Totals]]) -> _Call:
        due = self._due(self._updates)
        end = min(due.updates, self._runner.plan.updates)
        num_updates = min(self._sizes.next(), end - self._updates)
        self._device, totals = program(self._device, num_updates)
        self._updates += num_updates
        is_due = self._updates == end
        return _Call(
            self._updates,
            num_updates,
            totals,
            self._take_snapshot(self._device) if is_due and due.snapshot else None,
            self._device if is_due and due.state else None,
        )

    def _read(self, call: _Call) -> Report:
        """Waits for a call and reports it."""
        totals = jax.device_get(call.totals)
        now = time.monotonic()
        seconds, self._completed = now - self._completed, now
        self._sizes.record(call.num_updates, seconds)
        self._env_steps += int(totals.unrolls.env_steps.sum(dtype="int64"))
        compile_seconds, self._compile_seconds = self._compile_seconds, 0.0
        return Report(
            updates=call.updates,
            env_steps=self._env_steps,
            metrics=mean_metrics(totals.learned),
            episodes=to_episodes(totals.unrolls),
            timings={"train_seconds": seconds, "compile_seconds": compile_seconds},
            counters={
                "agent_updates": int(totals.learned.agent_updates),
                "skipped_updates": int(totals.learned.skipped),
            },
            snapshot=call.snapshot,
            state=None if call.state is None else AnakinState(call.state, call.updates, self._env_steps),
        )
