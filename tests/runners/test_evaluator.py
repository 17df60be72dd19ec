import dataclasses
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.agents.ppo import PPO
from podracer.envs.autoreset import AutoReset
from podracer.envs.base import EnvConfig, restart, transition
from podracer.envs.host_stream import NextStepStream
from podracer.envs.wrappers import wrap
from podracer.networks.config import NetworkConfig
from podracer.randomness import host_seeds
from podracer.runners.evaluator import EvaluationConfig, JaxEvaluator, host_evaluator, quotas
from podracer.runners.learn import snapshot
from podracer.spaces import Box, Discrete, EnvSpec
from podracer.types import PolicySnapshot
from tests.runners.doubles import SPEC, RecordingAgent

LENGTHS = (1, 100)


@dataclasses.dataclass(frozen=True)
class UnequalJax:
    """Environments of length and return 1 (return 0) or `long`: each row keeps the length it drew first."""

    long: int = 100

    @cached_property
    def spec(self):
        return SPEC

    def reset(self, key):
        is_long = jax.random.bernoulli(key)
        return (is_long, jnp.int32(0)), restart(jnp.zeros((1,)))

    def step(self, key, state, action):
        is_long, age = state
        age = age + 1
        ended = age >= jnp.where(is_long, self.long, 1)
        reward = jnp.where(is_long, 1.0, 0.0)
        return (is_long, age), transition(reward, age.astype(jnp.float32)[None], terminated=ended)


class UnequalHost:
    """Row i has episodes of LENGTHS[i % 2] steps; the long ones are worth 1 a step, the short ones nothing."""

    spec = SPEC

    def __init__(self, num_envs, lengths=LENGTHS):
        self.num_envs, self.closes, self.seeds, self.steps = num_envs, 0, None, 0
        self._lengths = np.resize(lengths, num_envs)
        self._stream = NextStepStream(num_envs)
        self._age = np.zeros(num_envs, int)
        self.actions = []

    def reset(self, seeds):
        self.seeds = seeds
        return self._stream.first(np.zeros((self.num_envs, 1), np.float32))

    def step(self, action):
        self.steps += 1
        self.actions.append(action)
        self._age = np.where(self._stream.restarting, 0, self._age + 1)
        ended = self._age >= self._lengths
        reward = np.where(self._lengths > 1, 1.0, 0.0)
        return self._stream.step(np.zeros((self.num_envs, 1), np.float32), reward, ended, np.zeros(self.num_envs, bool))

    def close(self):
        self.closes += 1


def policy(agent=None, device=0):
    agent = agent or RecordingAgent()
    with jax.default_device(jax.devices()[device]):
        return jax.jit(lambda key: snapshot(agent, agent.init_learner(key), jnp.int32(3), 10))(jax.random.key(0))


def going_on():
    return False


def evaluate_jax(config, long=100, agent=None):
    env = AutoReset(wrap(UnequalJax(long), EnvConfig(suite="custom_jax")), "next_step", None)
    return JaxEvaluator(agent or RecordingAgent(), env, config)(policy(), going_on)


def evaluate_host(config, **kwargs):
    envs = []

    def make(num_envs):
        envs.append(UnequalHost(num_envs, **kwargs))
        return envs[-1]

    result = host_evaluator(RecordingAgent(), make, config)(policy(), going_on)
    assert [env.closes for env in envs] == [1]
    return result, envs[0]


@pytest.mark.parametrize("num_episodes", [1, 7, 8, 10])
@pytest.mark.parametrize("num_envs", [1, 3, 8, 128])
def test_B09_quotas_add_up_and_differ_by_one_at_most(num_episodes, num_envs):
    shares = quotas(num_episodes, num_envs)
    assert shares.sum() == num_episodes and shares.max() - shares.min() <= 1 and shares.min() >= 1
    assert len(shares) == min(num_episodes, num_envs)


@pytest.mark.parametrize("num_episodes", [1, 7, 8, 10])
def test_B09_exactly_as_many_episodes_as_asked_for(num_episodes):
    config = EvaluationConfig(num_episodes=num_episodes, num_envs=8)
    for result in (evaluate_jax(config, long=4), evaluate_host(config)[0]):
        assert len(result.returns) == len(result.lengths) == num_episodes
        assert result.unfinished == 0


def test_B10_the_mean_is_not_biased_to_short_episodes():
    result, _ = evaluate_host(EvaluationConfig(num_episodes=2, num_envs=2))
    # The first two episodes to finish are short ones, of return 0.
    assert sorted(result.returns.tolist()) == [0.0, 100.0] and result.returns.mean() == 50.0
    assert sorted(result.lengths.tolist()) == [1, 100]
    result = evaluate_jax(EvaluationConfig(num_episodes=64, num_envs=64))
    # Half of the 64 environments draw the long episode: 32 +- 4; the first 64 to finish would all be short.
    assert 20 <= (result.returns == 100.0).sum() <= 44
    np.testing.assert_array_equal(result.lengths, np.where(result.returns == 0.0, 1, 100))


def test_an_episode_that_does_not_end_in_time_counts_once_with_its_return_so_far():
    result, env = evaluate_host(EvaluationConfig(num_episodes=2, num_envs=2, max_steps=30))
    assert (sorted(result.returns.tolist()), sorted(result.lengths.tolist())) == ([0.0, 30.0], [1, 30])
    assert (result.unfinished, env.steps) == (1, 30)
    # At the limit of 1 step the short episode has just ended: it is not taken a second time as one in hand.
    result, _ = evaluate_host(EvaluationConfig(num_episodes=4, num_envs=2, max_steps=1), lengths=(2, 2))
    assert (result.returns.tolist(), result.unfinished) == ([2.0, 2.0], 2)
    result = evaluate_jax(EvaluationConfig(num_episodes=16, num_envs=16, max_steps=5), long=9)
    np.testing.assert_array_equal(result.lengths, np.where(result.returns == 0.0, 1, 5))
    assert result.unfinished == (result.lengths == 5).sum() > 0


def test_a_long_evaluation_is_many_calls_and_ends_early_when_told_to():
    config = EvaluationConfig(num_episodes=8, num_envs=8)
    # 600 steps are three calls of 256.
    assert set(evaluate_jax(config, long=600).lengths.tolist()) == {1, 600}
    looks = []
    env = AutoReset(wrap(UnequalJax(10**6), EnvConfig(suite="custom_jax")), "next_step", None)
    JaxEvaluator(RecordingAgent(), env, config)(policy(), lambda: looks.append(0) or len(looks) == 3)
    assert len(looks) == 3


def test_B12_evaluation_has_seeds_of_its_own():
    _, env = evaluate_host(EvaluationConfig(num_episodes=8, num_envs=8))
    _, same = evaluate_host(EvaluationConfig(num_episodes=8, num_envs=8))
    np.testing.assert_array_equal(env.seeds, same.seeds)
    for seed in range(20):
        assert not set(env.seeds.tolist()) & set(host_seeds(seed, np.arange(1024)).tolist())


def test_greedy_and_sampled_actions():
    _, env = evaluate_host(EvaluationConfig(num_episodes=2, num_envs=2))
    assert all((action == 1).all() for action in env.actions)  # the double's greedy action
    _, env = evaluate_host(EvaluationConfig(num_episodes=2, num_envs=2, greedy=False))
    assert 0 < np.mean(env.actions) < 1


@dataclasses.dataclass(frozen=True)
class RewardsOne:
    """One step, reward is the action; the observation is 5 in training's units."""

    @cached_property
    def spec(self):
        return EnvSpec("rewards_one", Box((1,), np.float32), Discrete(2), can_truncate=False)

    def reset(self, key):
        return jnp.int32(0), restart(jnp.full((1,), 5.0))

    def step(self, key, state, action):
        return state, transition(action, jnp.full((1,), 5.0), terminated=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActsOnStatistics(PPO):
    """Greedy action 1 exactly if the statistics that it acts with have seen 3 samples."""

    def act(self, policy, state, timestep, key, *, evaluation=False):
        state, output = super().act(policy, state, timestep, key, evaluation=evaluation)
        seen = policy.params.statistics.observation.count
        return state, output._replace(action=jnp.full_like(output.action, jnp.round(seen).astype(jnp.int32) == 3))


def test_B29_evaluation_acts_with_the_given_statistics_and_leaves_them_alone():
    network = NetworkConfig(hidden_sizes=(4,))
    agent = ActsOnStatistics(spec=RewardsOne().spec, network=network, normalise_observations=True)
    fresh = policy(agent)
    statistics = fresh.params.statistics.observation
    trained = fresh._replace(
        params=fresh.params._replace(
            statistics=fresh.params.statistics._replace(observation=statistics._replace(count=jnp.float32(3.0)))
        )
    )
    env = AutoReset(wrap(RewardsOne(), EnvConfig(suite="custom_jax")), "next_step", None)
    evaluate = JaxEvaluator(agent, env, EvaluationConfig(num_episodes=100, num_envs=10))
    before = jax.device_get(trained)
    assert evaluate(trained, going_on).returns.tolist() == [1.0] * 100
    assert evaluate(fresh, going_on).returns.tolist() == [0.0] * 100
    jax.tree.map(np.testing.assert_array_equal, before, jax.device_get(trained))


def test_evaluation_uses_one_device_of_the_learner():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[2:4]), ("learner",))
    replicated: PolicySnapshot = jax.device_put(
        policy(), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    )
    before = {id(array) for array in jax.live_arrays()}
    devices = set()

    def look():
        for array in jax.live_arrays():
            if id(array) not in before:
                devices.update(device.id for device in array.devices())
        return False

    env = AutoReset(wrap(UnequalJax(4), EnvConfig(suite="custom_jax")), "next_step", None)
    config = EvaluationConfig(num_episodes=4, num_envs=4)
    on_jax = JaxEvaluator(RecordingAgent(), env, config)(replicated, look)
    on_host = host_evaluator(RecordingAgent(), UnequalHost, config)(replicated, look)
    assert len(on_jax.returns) == len(on_host.returns) == 4
    # What stays on device 3 is the half of the snapshot that is looked at, not copied.
    assert 0 not in devices and 1 not in devices


@pytest.mark.parametrize("field", ["num_envs", "max_steps"])
def test_settings_that_are_too_small_are_refused(field):
    with pytest.raises(ValueError, match=f"evaluation.{field}=0 is too small; use at least 1"):
        EvaluationConfig(**{field: 0})
