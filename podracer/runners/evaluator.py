"""Unbiased evaluation: a fixed quota of episodes for every environment, exactly as many as asked for.

Keeping the first N episodes that finish would favour short ones. Evaluation has seeds of its own and
touches neither the randomness nor the statistics of training.
"""

import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podracer.agent import Agent, hyper_parameters, with_hyper_parameters
from podracer.envs.base import BatchedEnv, HostEnv
from podracer.randomness import Role, host_seeds, run_key, shard_key
from podracer.types import Array, ArrayTree, PolicySnapshot, TimeStep


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """How the agent is evaluated: some times during training, and at its end."""

    num_evaluations: int = 10
    """Periodic evaluations, spread evenly over the budget; 0 leaves the final one."""
    num_episodes: int = 128
    """Episodes of every evaluation; 0 turns all evaluation off."""
    num_envs: int = 128
    """Environments that run at a time, at most `num_episodes`."""
    greedy: bool = True
    """Take the most likely action; False samples as in training."""
    seed: int = 0
    """Seed of the evaluation's environments and actions, the same for every training seed."""
    max_steps: int = 30_000
    """Steps an environment has for each of its episodes; the one in hand after that counts with its return so far."""

    def __post_init__(self):
        for name, least in {"num_evaluations": 0, "num_episodes": 0, "num_envs": 1, "max_steps": 1}.items():
            if getattr(self, name) < least:
                raise ValueError(f"evaluation.{name}={getattr(self, name)} is too small; use at least {least}")


class EvaluationResult(NamedTuple):
    """The raw returns and lengths of exactly `num_episodes` episodes, if all of them ended in time."""

    returns: np.ndarray  # [N] f32
    lengths: np.ndarray  # [N] int32, agent decisions
    unfinished: int  # episodes asked for that had not ended at `max_steps`; those that had begun are among the above


class _Tally(NamedTuple):
    """Episodes finished so far, by environment and rank."""

    count: Array  # [E] int32
    returns: Array  # [E, Q] f32
    lengths: Array  # [E, Q] int32


class _Carry(NamedTuple):
    """Where an evaluation in JAX environments stands."""

    time: Array  # [] int32, steps taken
    env_state: ArrayTree  # [E, ...]
    timestep: TimeStep  # [E, ...]
    actor_state: ArrayTree  # [E, ...]
    tally: _Tally


def quotas(num_episodes: int, num_envs: int) -> np.ndarray:
    """Shares episodes out to environments before they run: `[E]` int32, sum `num_episodes`."""
    num_envs = min(num_envs, num_episodes)
    return np.full(num_envs, num_episodes // num_envs, np.int32) + (np.arange(num_envs) < num_episodes % num_envs)


def _empty(quota: np.ndarray, xp) -> _Tally:
    shape = len(quota), int(quota.max())
    return _Tally(xp.zeros(len(quota), xp.int32), xp.zeros(shape, xp.float32), xp.zeros(shape, xp.int32))


def _take(tally: _Tally, quota: Array, timestep: TimeStep, xp, *, unfinished: bool = False) -> _Tally:
    """Notes the episodes that ended on this step (or, if `unfinished`, those in hand), up to the quota."""
    episode = timestep.extras
    wanted = ~episode.ended & (episode.episode_length > 0) if unfinished else episode.ended
    taken = wanted & (tally.count < quota)
    slot = taken[:, None] & (xp.arange(tally.returns.shape[1])[None] == tally.count[:, None])
    return _Tally(
        tally.count + taken.astype(xp.int32),
        xp.where(slot, episode.episode_return[:, None], tally.returns),
        xp.where(slot, episode.episode_length[:, None], tally.lengths),
    )


def _result(tally: _Tally, quota: np.ndarray, timestep: TimeStep) -> EvaluationResult:
    """Completes a tally, all on the host, by the episodes that are still in hand."""
    unfinished = int(np.sum(quota - tally.count))
    tally = _take(tally, quota, timestep, np, unfinished=True)
    kept = np.arange(tally.returns.shape[1])[None] < tally.count[:, None]
    return EvaluationResult(tally.returns[kept], tally.lengths[kept], unfinished)


# Takes a policy, and a function that says whether to end early; what is returned then is incomplete.
Evaluate = Callable[[PolicySnapshot, Callable[[], bool]], EvaluationResult]

# Steps of JAX environments between two looks at whether to end early.
_STEPS_PER_CALL = 256


class JaxEvaluator:
    """Evaluates in JAX environments, many steps a call of one compiled program; an `Evaluate`."""

    def __init__(self, agent: Agent, env: BatchedEnv, config: EvaluationConfig):
        self._agent, self._env, self._config = agent, env, config
        self._quota = quotas(config.num_episodes, config.num_envs)
        self._limit = config.max_steps * int(self._quota.max())
        self._hyper = hyper_parameters(agent)
        self._start, self._advance = jax.jit(self._start), jax.jit(self._advance)

    def of(self, agent: Agent) -> "JaxEvaluator":
        """The same, by the same compiled program, for an agent that differs in traceable fields alone."""
        evaluator = copy.copy(self)
        evaluator._hyper = hyper_parameters(agent)
        return evaluator

    def __call__(self, policy: PolicySnapshot, stopping: Callable[[], bool]) -> EvaluationResult:
        policy = _on_one_device(policy)
        with jax.default_device(_device(policy)):
            carry, is_running = self._start(self._hyper), True
            while is_running and not stopping():
                carry, is_running = self._advance(self._hyper, policy, carry)
        tally, timestep = jax.device_get((carry.tally, carry.timestep))
        return _result(tally, self._quota, timestep)

    def _start(self, hyper: dict[str, Array]) -> _Carry:
        key, num_envs = run_key(self._config.seed), len(self._quota)
        env_state, timestep = self._env.reset(shard_key(key, Role.ENV_RESET, 0), num_envs)
        indices = jnp.arange(num_envs, dtype=jnp.int32)
        agent = with_hyper_parameters(self._agent, hyper)
        actor_state = agent.init_actor(shard_key(key, Role.INIT_ACTOR, 0), indices, num_envs)
        return _Carry(jnp.int32(0), env_state, timestep, actor_state, _empty(self._quota, jnp))

    def _advance(self, hyper: dict[str, Array], policy: PolicySnapshot, carry: _Carry) -> tuple[_Carry, Array]:
        agent, key = with_hyper_parameters(self._agent, hyper), run_key(self._config.seed)
        act_key, env_key = shard_key(key, Role.ACT, 0), shard_key(key, Role.ENV_STEP, 0)
        end = carry.time + _STEPS_PER_CALL

        def proceeds(carry: _Carry) -> Array:
            return (carry.time < self._limit) & jnp.any(carry.tally.count < self._quota)

        def step(carry: _Carry) -> _Carry:
            time, env_state, timestep, actor_state, tally = carry
            actor_state, output = agent.act(
                policy,
                actor_state,
                timestep._replace(extras=()),
                jax.random.fold_in(act_key, time),
                evaluation=self._config.greedy,
            )
            env_state, timestep = self._env.step(jax.random.fold_in(env_key, time), env_state, output.action)
            return _Carry(time + 1, env_state, timestep, actor_state, _take(tally, self._quota, timestep, jnp))

        carry = jax.lax.while_loop(lambda carry: proceeds(carry) & (carry.time < end), step, carry)
        return carry, proceeds(carry)


def host_evaluator(agent: Agent, make_env: Callable[[int], HostEnv], config: EvaluationConfig) -> Evaluate:
    """Evaluates in host environments, of which `make_env` makes a number for every evaluation."""
    quota = quotas(config.num_episodes, config.num_envs)
    num_envs, limit = len(quota), config.max_steps * int(quota.max())

    @jax.jit
    def start() -> ArrayTree:
        key = shard_key(run_key(config.seed), Role.INIT_ACTOR, 0)
        return agent.init_actor(key, jnp.arange(num_envs, dtype=jnp.int32), num_envs)

    @jax.jit
    def act(policy: PolicySnapshot, actor_state: ArrayTree, timestep: TimeStep, time: Array):
        key = jax.random.fold_in(shard_key(run_key(config.seed), Role.ACT, 0), time)
        state, output = agent.act(policy, actor_state, timestep, key, evaluation=config.greedy)
        return state, output.action

    def run(policy: PolicySnapshot, env: HostEnv, stopping: Callable[[], bool]) -> EvaluationResult:
        timestep = env.reset(host_seeds(config.seed, np.arange(num_envs), evaluation=True))
        actor_state, tally = start(), _empty(quota, np)
        for time in range(limit):
            actor_state, action = act(policy, actor_state, timestep._replace(extras=()), np.int32(time))
            timestep = env.step(np.asarray(action))
            tally = _take(tally, quota, timestep, np)
            if np.all(tally.count >= quota) or stopping():
                break
        return _result(tally, quota, timestep)

    def evaluate(policy: PolicySnapshot, stopping: Callable[[], bool]) -> EvaluationResult:
        policy = _on_one_device(policy)
        with jax.default_device(_device(policy)), contextlib.closing(make_env(num_envs)) as env:
            return run(policy, env, stopping)

    return evaluate


def _on_one_device(policy: PolicySnapshot) -> PolicySnapshot:
    """A snapshot as one device of the learner's mesh has it: the others need not do the same again."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), policy)


def _device(policy: PolicySnapshot) -> jax.Device:
    (device,) = policy.version.devices()
    return device
