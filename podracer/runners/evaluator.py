"""Unbiased evaluation: a fixed quota of episodes for every environment, exactly as many as asked for.

Keeping the first N episodes that finish would favour short ones. Evaluation has seeds of its own and
touches neither the randomness nor the statistics of training.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podracer.agent import Agent
from podracer.envs.base import BatchedEnv, HostEnv
from podracer.randomness import Role, host_seeds, run_key, shard_key
from podracer.types import Array, PolicySnapshot, TimeStep


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
    """The raw returns and lengths of exactly `num_episodes` episodes."""

    returns: np.ndarray  # [N] f32
    lengths: np.ndarray  # [N] int32, agent decisions
    unfinished: int  # episodes asked for that had not ended at `max_steps`


class _Tally(NamedTuple):
    """Episodes finished so far, by environment and rank."""

    count: Array  # [E] int32
    returns: Array  # [E, Q] f32
    lengths: Array  # [E, Q] int32


def quotas(num_episodes: int, num_envs: int) -> np.ndarray:
    """Shares episodes out to environments before they run: `[E]` int32, sum `num_episodes`."""
    num_envs = min(num_envs, num_episodes)
    return np.full(num_envs, num_episodes // num_envs, np.int32) + (np.arange(num_envs) < num_episodes % num_envs)


def _empty(quota: np.ndarray, xp) -> _Tally:
    shape = len(quota), int(quota.max())
    return _Tally(xp.zeros(len(quota), xp.int32), xp.zeros(shape, xp.float32), xp.zeros(shape, xp.int32))


def _take(tally: _Tally, quota: Array, timestep: TimeStep, xp, *, unfinished: bool = False) -> _Tally:
    """Notes the episodes that ended on this step (or, if `unfinished`, are still running), up to the quota."""
    episode = timestep.extras
    taken = (unfinished | episode.ended) & (tally.count < quota)
    slot = taken[:, None] & (xp.arange(tally.returns.shape[1])[None] == tally.count[:, None])
    return _Tally(
        tally.count + taken.astype(xp.int32),
        xp.where(slot, episode.episode_return[:, None], tally.returns),
        xp.where(slot, episode.episode_length[:, None], tally.lengths),
    )


def _result(tally: _Tally, unfinished: int) -> EvaluationResult:
    kept = np.arange(tally.returns.shape[1])[None] < tally.count[:, None]
    return EvaluationResult(np.asarray(tally.returns)[kept], np.asarray(tally.lengths)[kept], unfinished)


# Takes a policy, and a function that says whether to end early (asked where the host steps).
Evaluate = Callable[[PolicySnapshot, Callable[[], bool]], EvaluationResult]


def jax_evaluator(agent: Agent, env: BatchedEnv, config: EvaluationConfig) -> Evaluate:
    """Evaluates in JAX environments, as one compiled program."""
    quota = quotas(config.num_episodes, config.num_envs)
    num_envs, limit = len(quota), config.max_steps * int(quota.max())
    key = run_key(config.seed)

    def running(tally: _Tally) -> Array:
        return jnp.sum(jnp.maximum(jnp.asarray(quota) - tally.count, 0))

    @jax.jit
    def run(policy: PolicySnapshot) -> tuple[_Tally, Array]:
        env_state, timestep = env.reset(shard_key(key, Role.ENV_RESET, 0), num_envs)
        indices = jnp.arange(num_envs, dtype=jnp.int32)
        actor_state = agent.init_actor(shard_key(key, Role.INIT_ACTOR, 0), indices, num_envs)

        def step(carry):
            t, env_state, timestep, actor_state, tally = carry
            act_key = jax.random.fold_in(shard_key(key, Role.ACT, 0), t)
            env_key = jax.random.fold_in(shard_key(key, Role.ENV_STEP, 0), t)
            actor_state, output = agent.act(
                policy, actor_state, timestep._replace(extras=()), act_key, evaluation=config.greedy
            )
            env_state, timestep = env.step(env_key, env_state, output.action)
            return t + 1, env_state, timestep, actor_state, _take(tally, jnp.asarray(quota), timestep, jnp)

        def proceeds(carry):
            return (carry[0] < limit) & (running(carry[-1]) > 0)

        start = jnp.int32(0), env_state, timestep, actor_state, _empty(quota, jnp)
        _, _, timestep, _, tally = jax.lax.while_loop(proceeds, step, start)
        unfinished = running(tally)
        return _take(tally, jnp.asarray(quota), timestep, jnp, unfinished=True), unfinished

    def evaluate(policy: PolicySnapshot, stopping: Callable[[], bool]) -> EvaluationResult:
        del stopping  # a compiled program runs to its end
        tally, unfinished = jax.device_get(run(policy))
        return _result(tally, int(unfinished))

    return evaluate


def host_evaluator(agent: Agent, make_env: Callable[[int], HostEnv], config: EvaluationConfig) -> Evaluate:
    """Evaluates in host environments; `make_env` makes a number of them at the first evaluation, and they are kept."""
    quota = quotas(config.num_episodes, config.num_envs)
    num_envs, limit = len(quota), config.max_steps * int(quota.max())
    key = shard_key(run_key(config.seed), Role.ACT, 0)
    envs: list[HostEnv] = []

    @jax.jit
    def act(policy, actor_state, timestep, t):
        state, output = agent.act(policy, actor_state, timestep, jax.random.fold_in(key, t), evaluation=config.greedy)
        return state, output.action

    def evaluate(policy: PolicySnapshot, stopping: Callable[[], bool]) -> EvaluationResult:
        if not envs:
            envs.append(make_env(num_envs))
        env = envs[0]
        timestep = env.reset(host_seeds(config.seed, np.arange(num_envs), evaluation=True))
        actor_state = agent.init_actor(
            shard_key(run_key(config.seed), Role.INIT_ACTOR, 0), jnp.arange(num_envs, dtype=jnp.int32), num_envs
        )
        tally = _empty(quota, np)
        for t in range(limit):
            actor_state, action = act(policy, actor_state, timestep._replace(extras=()), np.int32(t))
            timestep = env.step(np.asarray(action))
            tally = _take(tally, quota, timestep, np)
            if np.all(tally.count >= quota) or stopping():
                break
        unfinished = int(np.sum(np.maximum(quota - tally.count, 0)))
        return _result(_take(tally, quota, timestep, np, unfinished=True), unfinished)

    return evaluate
