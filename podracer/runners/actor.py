"""The actor of Sebulba: a thread that steps a batch of host environments and acts on a device."""

import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from podracer.agent import Agent, hyper_parameters, with_hyper_parameters
from podracer.envs.base import HostEnv
from podracer.parallel.mesh import Plan
from podracer.randomness import Role, host_seeds, run_key, shard_key
from podracer.runner import Episodes, merge_episodes, no_episodes
from podracer.runners.activities import STEPPING, Activities
from podracer.runners.parking import ActorState, Parking
from podracer.runners.transport import ParameterStore, Unroll, split_batch
from podracer.runners.unroll import act_and_record, empty_buffer
from podracer.runners.workers import Channel
from podracer.trees import Arrays, from_arrays
from podracer.types import ArrayTree, PolicySnapshot, TimeStep, Trajectory, valid_transitions


@dataclass(frozen=True)
class ActorPrograms:
    """The compiled calls of an actor, shared by the actors of a process."""

    init: Callable  # (env_indices, key) -> actor_state
    act: Callable  # (hyper, policy, actor_state, timestep, buffer, start, t, key) -> (actor_state, action, buffer)
    buffer: Callable  # (policy, actor_state, timestep) -> buffer
    split: Callable  # trajectory -> pieces
    compiling: threading.Lock  # held in an actor's first call, so that threads do not compile the same twice

    @staticmethod
    def build(agent: Agent, num_envs: int, parts: int) -> "ActorPrograms":
        """Jits the programs.

        Args:
          agent: pure functions.
          num_envs: global number of environments.
          parts: pieces that an actor's trajectory is cut into.
        """

        def act(hyper, policy, actor_state, timestep, buffer, start, t, key):
            # Acting and recording are one dispatch; the buffer is donated, so it is written in place.
            return act_and_record(
                with_hyper_parameters(agent, hyper),
                policy,
                actor_state,
                timestep,
                buffer,
                t,
                jax.random.fold_in(key, start + t),
            )

        def buffer(policy, actor_state, timestep):
            return empty_buffer(agent, policy, actor_state, timestep, agent.unroll_length)

        def init(env_indices, key):
            return agent.init_actor(key, env_indices, num_envs)

        # With arguments that they do not use, `init` and `buffer` commit what they make to the actor's device, as
        # what `act` returns is; otherwise `act` would be compiled again for the one and for the other.
        return ActorPrograms(
            init=jax.jit(init, keep_unused=True),
            act=jax.jit(act, donate_argnums=4),
            buffer=jax.jit(buffer, keep_unused=True),
            split=jax.jit(lambda trajectory: split_batch(trajectory, parts)),
            compiling=threading.Lock(),
        )


class Stopwatch:
    """Sums seconds by activity."""

    def __init__(self):
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, name: str):
        started = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


@dataclass
class ActorThread:
    """What one actor thread does: `run` is the thread's target."""

    index: int  # among this process's actors
    shard: int  # among all actors
    device: jax.Device
    learner_devices: tuple[jax.Device, ...]  # that its pieces go to, in order
    make_env: Callable[[int], HostEnv]  # from the shard
    agent: Agent
    programs: ActorPrograms
    plan: Plan
    store: ParameterStore
    queue: Channel[Unroll]
    lag: int | None  # unroll n acts on version n - lag; None acts on the newest
    parking: Parking
    activities: Activities
    refresh_each_step: bool
    first_version: int  # that there is
    saved: Arrays | None = None  # an `ActorState` to go on from; None begins

    _has_acted: bool = False

    def run(self) -> None:
        """Unrolls until the budget is spent."""
        # Threads do not inherit a default device: everything made here belongs on the actor's.
        with jax.default_device(self.device):
            self._begin("making its environments")
            env = self.make_env(self.shard)
            try:
                self._run(env)
            finally:
                env.close()
                self.activities.end(f"actor-{self.index}")

    def _run(self, env: HostEnv) -> None:
        sharding = SingleDeviceSharding(self.device)
        key = jax.device_put(run_key(self.plan.seed), sharding)
        hyper = hyper_parameters(self.agent)
        hyper = jax.device_put(hyper, sharding)
        act_key = shard_key(key, Role.ACT, self.shard)
        state = self._start(env, key, sharding)
        while state.next_unroll < self.plan.updates:
            self._begin("parked while the run is saved")
            self.parking.enter(self.index, state._replace(env=getattr(env, "state", None)))
            memory, timestep = self._unroll(env, state.next_unroll, hyper, act_key, state.memory, state.timestep)
            state = ActorState(state.next_unroll + 1, memory, timestep, None)
        self.parking.leave(self.index, state._replace(env=getattr(env, "state", None)))

    def _start(self, env: HostEnv, key: jax.Array, sharding: SingleDeviceSharding) -> ActorState:
        """Begins, or goes on from what was saved."""
        indices = self.shard * env.num_envs + np.arange(env.num_envs, dtype=np.int32)
        memory = self.programs.init(indices, shard_key(key, Role.INIT_ACTOR, self.shard))
        timestep = env.reset(host_seeds(self.plan.seed, indices, start=self.first_version))
        state = ActorState(self.first_version, memory, timestep, getattr(env, "state", None))
        if self.saved is None:
            return state
        saved = from_arrays(self.saved, state)
        state = state._replace(next_unroll=int(saved.next_unroll), memory=jax.device_put(saved.memory, sharding))
        if state.env is None:
            return state  # with the first steps of new episodes
        env.state = saved.env
        return state._replace(timestep=saved.timestep)

    def _unroll(
        self, env: HostEnv, index: int, hyper: dict, act_key: jax.Array, memory: ArrayTree, timestep: TimeStep
    ) -> tuple[ArrayTree, TimeStep]:
        """Acts for T steps and hands the trajectory over; returns the memory and timestep to go on from."""
        watch, record, unroll_length = Stopwatch(), HostRecord(), self.agent.unroll_length
        start, actor_state, restarts = np.int32(index * unroll_length), memory, getattr(env, "restarts", 0)
        self._begin("waiting for parameters")
        with watch.measure("actor_wait_seconds"):
            version, policy = self._policy(index)
        buffer = self.programs.buffer(policy, actor_state, timestep._replace(extras=()))
        for t in range(unroll_length + 1):
            if t and self.refresh_each_step:
                version, policy = self.store.newest(self.device)
            record.note(timestep, version, counts=t > 0)
            arguments = (hyper, policy, actor_state, timestep._replace(extras=()), buffer, start, np.int32(t), act_key)
            if not self._has_acted:
                self._has_acted = True
                self._begin("compiling")
                with watch.measure("compile_seconds"), self.programs.compiling:
                    next_state, action, buffer = self.programs.act(*arguments)
            else:
                with watch.measure("act_seconds"):
                    next_state, action, buffer = self.programs.act(*arguments)
            if t < unroll_length:
                actor_state = next_state
                with watch.measure("act_seconds"):
                    action = np.asarray(action)  # waits for the device
                self._begin(STEPPING)
                with watch.measure("env_seconds"):
                    timestep = env.step(action)
                self._begin("acting")
        with watch.measure("act_seconds"):
            # Afterwards nothing reads the environment's arrays, which it may write into at its next step.
            jax.block_until_ready(buffer)
        self._begin("waiting for the learner to take its unroll")
        restarts = getattr(env, "restarts", 0) - restarts
        with watch.measure("actor_wait_seconds"):
            pieces = self.programs.split(Trajectory(buffer, memory))
            pieces = tuple(jax.device_put(piece, device) for piece, device in zip(pieces, self.learner_devices))
            self.queue.put(
                Unroll(
                    self.index,
                    index,
                    pieces,
                    record.versions,
                    record.env_steps,
                    record.episodes,
                    restarts,
                    restarts * env.num_envs,
                    watch.seconds,
                )
            )
        return actor_state, timestep

    def _begin(self, what: str) -> None:
        self.activities.begin(f"actor-{self.index}", what)

    def _policy(self, index: int) -> tuple[int, PolicySnapshot]:
        if self.lag is None:
            return self.store.newest(self.device)
        version = max(self.first_version, index - self.lag)
        return version, self.store.get(version, self.device)


class HostRecord:
    """What the host notes of an unroll while the device records it."""

    def __init__(self):
        self._step_types: list[np.ndarray] = []
        self._discounts: list[np.ndarray] = []
        self._versions: list[int] = []
        self.episodes = no_episodes()

    def note(self, timestep: TimeStep, version: int, *, counts: bool) -> None:
        """Notes a timestep that is acted on; its episode end counts once, in the unroll that stepped to it."""
        # Copies, as an environment may write into its arrays again.
        self._step_types.append(np.array(timestep.step_type))
        self._discounts.append(np.array(timestep.discount))
        self._versions.append(version)
        ended = timestep.extras.ended
        if counts and ended.any():
            returns, lengths = timestep.extras.episode_return[ended], timestep.extras.episode_length[ended]
            episodes = Episodes(
                len(returns),
                float(returns.sum(dtype=np.float64)),
                int(lengths.sum()),
                float(returns.min()),
                float(returns.max()),
            )
            self.episodes = merge_episodes(self.episodes, episodes)

    @property
    def versions(self) -> np.ndarray:
        return np.asarray(self._versions)

    @property
    def env_steps(self) -> int:
        return int(valid_transitions(np.stack(self._step_types), np.stack(self._discounts)).sum())
