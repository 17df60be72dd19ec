"""Doubles that keep account: an environment that counts its steps, an agent that records what it acted with."""

import dataclasses
import threading
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from podracer.envs.host_stream import NextStepStream
from podracer.faults import FaultsConfig
from podracer.parallel import collectives
from podracer.parallel.mesh import MeshConfig, Topology, plan
from podracer.parallel.placement import LEARNER_AXIS, actor_devices, learner_mesh
from podracer.replay.on_policy import OnPolicy
from podracer.runner import Due
from podracer.runners.sebulba import Sebulba, SebulbaConfig
from podracer.runners.unroll import example_trajectory
from podracer.spaces import Box, Discrete, EnvSpec
from podracer.types import ActorOutput, UpdateOutput, valid_transitions

SPEC = EnvSpec("counting", Box((1,), np.float32), Discrete(2))
FAR = 10**9


class EnvError(Exception):
    pass


class CountingEnv:
    """A HostEnv whose observations are t, the number of its steps so far; episodes last 3, 4, 5, ... by row."""

    spec = SPEC

    def __init__(self, num_envs, *, raises_at=None, step_seconds=0.0):
        self.num_envs = num_envs
        self.steps = self.transitions = self.closes = self.steps_after_close = 0
        self.seeds = None
        self.actions = []
        self._raises_at, self._step_seconds = raises_at, step_seconds
        self._stream = NextStepStream(num_envs)
        self._lengths = np.arange(num_envs) + 3
        self._age = np.zeros(num_envs, int)

    def reset(self, seeds):
        self.seeds = seeds
        return self._stream.first(self._observation())

    def step(self, action):
        self.steps += 1
        self.steps_after_close += self.closes
        if self.steps == self._raises_at:
            raise EnvError(f"broke at step {self.steps}")
        time.sleep(self._step_seconds)
        self.actions.append(np.array(action))
        restarting = self._stream.restarting.copy()
        self.transitions += int(np.sum(~restarting))
        self._age = np.where(restarting, 0, self._age + 1)
        ended = self._age == self._lengths
        return self._stream.step(self._observation(), np.ones(self.num_envs), ended, np.zeros(self.num_envs, bool))

    def close(self):
        self.closes += 1

    def _observation(self):
        return np.full((self.num_envs, 1), self.steps, np.float32)


class Factory:
    """Makes environments and remembers them, by shard."""

    def __init__(self, num_envs, make=CountingEnv, **kwargs):
        self._num_envs, self._make, self._kwargs = num_envs, make, kwargs
        self.envs = {}

    def __call__(self, shard):
        kwargs = {name: value(shard) if callable(value) else value for name, value in self._kwargs.items()}
        self.envs[shard] = self._make(self._num_envs, **kwargs)
        return self.envs[shard]


@dataclass(frozen=True, kw_only=True)
class RecordingAgent:
    """Its parameters depend on all it has seen, its steps record what it acted with."""

    spec: EnvSpec = SPEC
    network: Any = None
    axis_name: str | None = None

    unroll_length: int = 4
    learning_rate: float = 0.5
    raises_at_update: int = -1

    traceable: ClassVar[frozenset[str]] = frozenset({"learning_rate"})

    @property
    def sequence_length(self):
        return self.unroll_length + 1

    def init_learner(self, key):
        return {"weight": jax.random.normal(key, (3,)), "updates": jnp.zeros((), jnp.int32)}

    def actor_params(self, state):
        return state

    def init_actor(self, key, env_indices, num_envs):
        return {"index": env_indices}

    def act(self, policy, state, timestep, key, *, evaluation=False):
        batch_size = timestep.reward.shape[0]
        action = jax.random.randint(key, (batch_size,), 0, 2, jnp.int32)
        if evaluation:
            action = jnp.ones_like(action)
        weight = jnp.broadcast_to(policy.params["weight"][0], (batch_size,))
        version = jnp.broadcast_to(policy.version, (batch_size,))
        return state, ActorOutput(action, {"weight": weight, "version": version, "index": state["index"]})

    def update(self, state, batch, key, *, progress):
        steps = batch.trajectory.steps
        columns = jnp.sum(steps.timestep.observation[..., 0] * (1.0 + steps.action), 0)  # [B]
        seen = jnp.mean(columns * (1.0 + steps.extras["index"][0])) + jax.random.normal(key, ())
        seen = collectives.pmean(seen, self.axis_name)
        valid = valid_transitions(steps.timestep.step_type, steps.timestep.discount)
        metrics = {
            "seen": seen,
            "progress": progress,
            "valid": collectives.psum(jnp.sum(valid, dtype=jnp.float32), self.axis_name),
            "version": collectives.pmean(jnp.mean(steps.extras["version"].astype(jnp.float32)), self.axis_name),
            "index": collectives.pmean(jnp.mean(steps.extras["index"].astype(jnp.float32)), self.axis_name),
        }
        if self.raises_at_update >= 0:
            jax.debug.callback(_raise_at, state["updates"], self.raises_at_update)
        weight = 0.9 * state["weight"] + self.learning_rate * jnp.tanh(seen)
        return {"weight": weight, "updates": state["updates"] + 1}, UpdateOutput(metrics)


class LossError(Exception):
    pass


def _raise_at(updates, limit):
    if updates == limit:
        raise LossError(f"broke at update {limit}")


def make_plan(
    runner="sebulba", *, actors=(0,), learners=(0,), threads=1, envs_per_actor=4, updates=5, unroll_length=4, seed=0
):
    """A plan of the test's eight devices."""
    num_actors = len(actors) * threads if runner == "sebulba" else len(learners)
    num_envs = num_actors * envs_per_actor
    mesh = (
        MeshConfig(actor_ids=actors, learner_ids=learners) if runner == "sebulba" else MeshConfig(learner_ids=learners)
    )
    return plan(
        runner=runner,
        topology=Topology(devices_per_host=8, cores_per_host=2),
        mesh=mesh,
        num_envs=num_envs,
        unroll_length=unroll_length,
        total_env_steps=num_envs * unroll_length * updates,
        seed=seed,
        threads_per_device=threads,
    )


def make_sebulba(make_env, agent=None, *, config=None, faults=None, **plan_settings):
    """A Sebulba of doubles; `make_env` is a `Factory` or the like."""
    agent = agent or RecordingAgent()
    run_plan = make_plan(unroll_length=agent.unroll_length, **plan_settings)
    if run_plan.learners > 1:
        agent = dataclasses.replace(agent, axis_name=LEARNER_AXIS)
    example = example_trajectory(agent, agent.spec, run_plan.num_envs, run_plan.envs_per_learner)
    return Sebulba(
        agent,
        make_env,
        OnPolicy(),
        run_plan,
        learner_mesh(run_plan),
        tuple(actor_devices(run_plan)),
        example,
        config or SebulbaConfig(),
        faults or FaultsConfig(),
    )


def due_at_end(updates):
    """Asks for nothing before the end, and there for everything."""
    return Due(FAR, snapshot=True, state=True)


def run_all(runner, due=due_at_end, state=None):
    """All reports of a run."""
    return list(runner.run(runner.init() if state is None else state, due))


def run_threads():
    """The names of the threads that runners have started and that are alive."""
    names = ("actor-", "learner", "anakin", "evaluator", "init")
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(names)]
