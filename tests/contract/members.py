"""A row of `AGENTS`, built and unrolled without a runner; each is compiled once a process."""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from podracer import build
from podracer.agent import Agent, hyper_parameters, with_hyper_parameters
from podracer.config import load_config
from podracer.envs.base import BatchedEnv
from podracer.replay import ring
from podracer.replay.on_policy import OnPolicy
from podracer.runners.unroll import ActorCarry, unroll_scan
from podracer.stores import replay_spec
from podracer.types import Array, ArrayTree, Batch, PolicySnapshot, Trajectory
from tests.contract.tables import AGENTS, SMALL

NUM_ENVS = 8
ENV_KEY, ACT_KEY = jax.random.key(1), jax.random.key(2)


def broken(agent: Agent, **methods: Callable) -> Agent:
    """The same agent with some of its methods replaced by wrong ones."""
    cls = type("Broken", (type(agent),), methods)
    return cls(**{field.name: getattr(agent, field.name) for field in dataclasses.fields(agent)})


class Experience(NamedTuple):
    """An actor in the middle of a run, whose statistics have seen something."""

    learner_state: ArrayTree
    policy: PolicySnapshot
    carry: ActorCarry
    start: int  # global timestep


@dataclass(frozen=True)
class Member:
    """An agent and its environments, with compiled functions; hyper-parameters are traced."""

    agent: Agent
    env: BatchedEnv

    @cached_property
    def hyper(self) -> dict[str, Array]:
        return {name: jnp.float32(value) for name, value in hyper_parameters(self.agent).items()}

    @cached_property
    def start(self) -> Callable[[], tuple[ArrayTree, ActorCarry]]:
        def start():
            env_state, timestep = self.env.reset(ENV_KEY, NUM_ENVS)
            actor_state = self.agent.init_actor(ACT_KEY, jnp.arange(NUM_ENVS, dtype=jnp.int32), NUM_ENVS)
            learner_state = self.agent.init_learner(jax.random.key(0))
            # Policies begin near uniform: away from there, a wrong input makes a difference.
            params = jax.tree.map(_nudge, learner_state.trained.params)
            learner_state = learner_state._replace(trained=learner_state.trained._replace(params=params))
            return learner_state, ActorCarry(env_state, timestep, actor_state)

        return jax.jit(start)

    @cached_property
    def unroll(self) -> Callable[..., tuple[ActorCarry, Trajectory]]:
        """`(policy, carry, start) -> (carry, trajectory)`."""

        def unroll(policy, carry, start):
            return unroll_scan(self.agent, self.env, policy, carry, ACT_KEY, ENV_KEY, start)[:2]

        return jax.jit(unroll)

    @cached_property
    def update(self) -> Callable[..., tuple[ArrayTree, dict[str, Array]]]:
        """`(hyper, learner_state, batch, key, progress) -> (learner_state, metrics)`."""

        def update(hyper, learner_state, batch, key, progress):
            agent = with_hyper_parameters(self.agent, hyper)
            learner_state, output = agent.update(learner_state, batch, key, progress=progress)
            return learner_state, output.metrics

        return jax.jit(update)

    def policy(self, learner_state: ArrayTree) -> PolicySnapshot:
        return PolicySnapshot(self.agent.actor_params(learner_state), jnp.float32(0.25), jnp.int32(1))

    @cached_property
    def experience(self) -> Experience:
        """One unroll and one update after the start."""
        learner_state, carry = self.start()
        carry, trajectory = self.unroll(self.policy(learner_state), carry, 0)
        learner_state, _ = self.update(self.hyper, learner_state, to_batch(self.agent, trajectory), ACT_KEY, 0.0)
        return Experience(learner_state, self.policy(learner_state), carry, self.agent.unroll_length)

    @cached_property
    def trajectory(self) -> Trajectory:
        """The unroll that follows."""
        _, policy, carry, start = self.experience
        return self.unroll(policy, carry, start)[1]


def make_member(overrides: tuple[str, ...], double: Callable[[Agent], Agent] = lambda agent: agent) -> Member:
    config = load_config([*SMALL, *overrides])
    environments = build.build_environments(config)
    agent = build.build_agent(config, environments, "cpu")
    return Member(double(agent), environments.batched)


@functools.cache
def member(name: str) -> Member:
    """The row of `AGENTS`."""
    return make_member(AGENTS[name])


def _nudge(x: Array) -> Array:
    return x + 0.3 * jnp.cos(jnp.arange(x.size) + 1.0).reshape(x.shape)


def to_batch(agent: Agent, trajectory: Trajectory) -> Batch:
    """What an agent learns from: a whole unroll, or every sequence that lies in it."""
    if not hasattr(agent, "batch_size"):
        return OnPolicy().sample(trajectory, ACT_KEY)[1]
    length, num_envs = agent.unroll_length, trajectory.steps.timestep.reward.shape[1]
    spec = replay_spec(agent, num_envs, num_devices=1)
    stored = ring.add(ring.init(trajectory, length, spec), trajectory, spec)
    rows = jnp.arange(0, length - spec.sequence_length + 1, spec.sequence_period)
    positions = (rows[:, None] * num_envs + jnp.arange(num_envs)[None]).reshape(-1)
    sequences = ring.read(stored, positions, spec)
    # Uneven, and the same however the environments are shared out.
    return Batch(sequences, positions, 1.0 / (3.0 + jnp.cos(sequences.steps.timestep.reward[-1])))


def leaves_with_names(tree: Any) -> list[tuple[str, Any]]:
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]
