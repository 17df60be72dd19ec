import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import podracer
from podracer import api
from podracer.agents.ppo import PPO
from podracer.config import load_config
from podracer.networks.config import NetworkConfig
from podracer.policy import Policy
from podracer.runners.learn import snapshot
from podracer.spaces import Box, Discrete, EnvSpec
from podracer.types import ActorOutput
from tests.runners.doubles import RecordingAgent


@dataclasses.dataclass(frozen=True, kw_only=True)
class Remembers(RecordingAgent):
    """Greedily acts on the number of steps since FIRST, from a memory that act resets; samples coins."""

    def init_actor(self, key, env_indices, num_envs):
        return jnp.zeros(env_indices.shape, jnp.int32)

    def act(self, policy, state, timestep, key, *, evaluation=False):
        age = jnp.where(timestep.is_first, 0, state + 1)
        coin = jax.random.randint(key, age.shape, 0, 2, jnp.int32)
        return age, ActorOutput(age if evaluation else coin, {})


def make_policy(agent):
    return Policy(
        agent, jax.jit(lambda key: snapshot(agent, agent.init_learner(key), jnp.int32(1), 2))(jax.random.key(0))
    )


OBSERVATION = np.zeros((3, 1), np.float32)


def test_the_memory_goes_from_call_to_call_and_starts_again_on_first():
    policy = make_policy(Remembers(spec=EnvSpec("ages", Box((1,), np.float32), Discrete(100, start=5))))
    # Discrete counts from 5.
    assert policy(OBSERVATION).tolist() == [5, 5, 5]
    assert policy(OBSERVATION).tolist() == [6, 6, 6]
    assert policy(OBSERVATION, np.array([False, True, False])).tolist() == [7, 5, 7]
    assert policy(OBSERVATION).tolist() == [8, 6, 8]


def test_samples_follow_the_seed():
    def samples(seed):
        policy = make_policy(Remembers())
        return np.stack([policy(OBSERVATION, greedy=False, seed=seed) for _ in range(20)])

    np.testing.assert_array_equal(samples(0), samples(0))
    assert (samples(0) != samples(1)).any()
    assert len(np.unique(samples(0), axis=0)) > 1  # each call draws anew


def test_continuous_actions_are_in_the_environments_range():
    spec = EnvSpec("box", Box((1,), np.float32), Box((2,), np.float32, -3.0, 5.0))
    policy = make_policy(PPO(spec=spec, network=NetworkConfig(hidden_sizes=(4,))))
    for greedy in (True, False):
        action = policy(OBSERVATION, greedy=greedy)
        assert action.shape == (3, 2) and action.dtype == np.float32
        assert (action >= -3.0).all() and (action <= 5.0).all()


def test_the_callers_observation_may_change_afterwards():
    policy = make_policy(Remembers())
    observation = OBSERVATION.copy()
    first = policy(observation)
    observation[:] = np.nan
    assert first.tolist() == [0, 0, 0]


@pytest.mark.slow
def test_a_loaded_policy_acts_as_the_evaluation_of_its_run(tmp_path):
    settings = ["runner=anakin", "mesh.learner=1", "env=probe", "env.id=memory", "env.num_envs=8", "network=gru"]
    settings += ["agent.unroll_length=8", "agent.num_minibatches=1", "network.hidden_sizes=[8]", "network.core_size=4"]
    settings += ["logger=quiet", "total_env_steps=640", "evaluation.num_evaluations=0", "agent.learning_rate=0.01"]
    result = api.train(load_config(settings), tmp_path)
    policy = podracer.load_policy(tmp_path)
    # All episodes there are: the cue is -1 or 1, 0 while it waits, and the answer is asked for at step 3.
    cues = np.array([-1.0, 1.0], np.float32)
    for time in range(4):
        observation = np.stack([cues if time == 0 else 0 * cues, np.full(2, time == 3, np.float32)], axis=1)
        answer = policy(observation, np.full(2, time == 0))
    returns = cues * (2 * answer - 1)
    # 128 evaluation episodes with either cue: what the two give, in unknown shares.
    assert returns.min() <= result["final_return"] <= returns.max()
    assert returns.min() != returns.max() or result["final_return"] == returns[0]
