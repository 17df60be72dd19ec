"""Anakin: environment and agent in one compiled program, replicated over a mesh of devices.

    for each update: unroll T steps on every device; learn, with gradients averaged over the devices

Many updates are one call. The state is donated, and the next call is dispatched before the metrics of
the last one are read, so that the devices never wait for the host.

"Podracer architectures for scalable Reinforcement Learning", Hessel et al., arXiv 2104.06272, section 2.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
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
from podracer.runners.chunks import AnakinState, Chunks, Totals
from podracer.runners.learn import learn, snapshot
from podracer.runners.restoring import restore_device
from podracer.runners.unroll import ActorCarry, example_trajectory, merge_sums, unroll_scan
from podracer.runners.workers import Reports, Workers
from podracer.trees import Arrays, subtree
from podracer.types import Array, ArrayTree, Key, PolicySnapshot


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
        init = spmd(self.init_device, self.mesh, REPLICATED, specs)
        program = jax.jit(init, out_shardings=shardings(self.mesh, specs))
        return AnakinState(program(hyper_parameters(self.agent), run_key(self.plan.seed)), 0, 0)

    def restore(self, arrays: Arrays) -> AnakinState:
        """Puts a saved state on the mesh."""
        example = jax.eval_shape(lambda: self.init().device)
        device = restore_device(subtree(arrays, "device"), example, self.replay, self.mesh.size)
        device = put(device, self.mesh, self._specs())
        return AnakinState(device, int(arrays["updates"]), int(arrays["env_steps"]))

    def run(self, state: AnakinState, due: Callable[[int], Due]) -> Iterator[Report]:
        """Trains until the budget is spent; one report a call of the compiled program."""
        device, updates, env_steps = state
        with Workers() as workers:
            reports: Reports[Sequence[Report]] = Reports(workers)
            chunks = Chunks(self, device, updates, [env_steps], due, reports, self.config.updates_per_call)
            workers.start("anakin", chunks.run)
            for (report,) in reports:
                yield report

    def program(self) -> Callable[..., tuple[DeviceState, Totals]]:
        """The jitted program: `(hyper, state, num_updates, key) -> (state, totals)`, the state donated."""
        specs = self._specs()
        out_specs = specs, Totals(REPLICATED, PartitionSpec(self.mesh.axis_names[0]))
        chunk = spmd(self.chunk, self.mesh, (REPLICATED, specs, REPLICATED, REPLICATED), out_specs)
        return jax.jit(chunk, donate_argnums=1)

    def compile(self, state: DeviceState) -> Callable[[DeviceState, int], tuple[DeviceState, Totals]]:
        """Compiles the program, and puts its constant arguments in place; see `podracer.runners.chunks`."""
        # On the mesh once, not from the first device at every call.
        replicated = NamedSharding(self.mesh, REPLICATED)
        hyper, key = jax.device_put((hyper_parameters(self.agent), run_key(self.plan.seed)), replicated)
        return compiled(self.program(), hyper, state, key)

    def snapshots(self, state: DeviceState) -> Sequence[PolicySnapshot]:
        return [self._snapshot(state)]

    def split(self, tree: ArrayTree) -> Sequence[ArrayTree]:
        return [tree]

    @functools.cached_property
    def _snapshot(self) -> Callable[[DeviceState], PolicySnapshot]:
        return jax.jit(lambda state: snapshot(self.agent, state.learner, state.updates, self.plan.updates))

    def _specs(self) -> DeviceState:
        shard = PartitionSpec(self.mesh.axis_names[0])
        return DeviceState(learner=REPLICATED, replay=shard, actor=shard, updates=REPLICATED)

    def init_device(self, hyper: dict[str, Array], key: Key) -> DeviceState:
        """One device's share of a new state."""
        agent = with_hyper_parameters(self.agent, hyper)
        shard, num_envs = self._shard(), self.plan.envs_per_actor
        learner_state = agent.init_learner(shard_key(key, Role.INIT_LEARNER, 0))
        env_state, timestep = self.env.reset(shard_key(key, Role.ENV_RESET, shard), num_envs)
        env_indices = shard * num_envs + jnp.arange(num_envs, dtype=jnp.int32)
        actor_state = agent.init_actor(shard_key(key, Role.INIT_ACTOR, shard), env_indices, self.plan.num_envs)
        carry = ActorCarry(env_state, timestep, actor_state)
        example = example_trajectory(agent, self.env.spec, self.plan.num_envs, num_envs)
        return DeviceState(learner_state, self.replay.init(example), carry, jnp.zeros((), jnp.int32))

    def _shard(self) -> Array:
        return collectives.axis_index(axis_name(self.mesh))

    def chunk(
        self, hyper: dict[str, Array], state: DeviceState, num_updates: Array, key: Key
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


def compiled(
    program: Callable[..., tuple[ArrayTree, ArrayTree]], hyper: ArrayTree, state: ArrayTree, keys: Key
) -> Callable[[ArrayTree, int], tuple[ArrayTree, ArrayTree]]:
    """Compiles a program for the shapes of its arguments, of which the state and the number of updates are left."""
    if not jax.config.jax_disable_jit:
        program = program.lower(hyper, state, np.int32(1), keys).compile()
    return lambda state, num_updates: program(hyper, state, np.int32(num_updates), keys)
