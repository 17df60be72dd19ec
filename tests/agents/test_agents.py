"""What all agents have in common: legal actions, schedules, randomness, and the scale of rewards."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.agents import parts
from podracer.agents.impala import IMPALA
from podracer.agents.ppo import PPO
from podracer.agents.pqn import PQN
from podracer.envs.autoreset import AutoReset
from podracer.envs.probe import Counter
from podracer.envs.probe_structures import ActionMask
from podracer.envs.wrappers import RecordEpisodes
from podracer.networks.config import NetworkConfig
from podracer.replay.on_policy import OnPolicy
from podracer.runners.unroll import ActorCarry, unroll_scan
from podracer.spaces import ACTION_MASK
from podracer.types import PolicySnapshot, StepType, TimeStep

NETWORK = NetworkConfig(hidden_sizes=(8,), shared_torso=True)
COUNTER = RecordEpisodes(Counter(num_steps=3, truncates=True))


def unrolled(agent, env, num_envs=4):
    """The first state of the learner, and an unroll."""

    def unroll(key):
        state = agent.init_learner(key)
        policy = PolicySnapshot(agent.actor_params(state), jnp.float32(0.0), jnp.int32(0))
        env_state, timestep = env.reset(key, num_envs)
        memory = agent.init_actor(key, jnp.arange(num_envs), num_envs)
        carry = ActorCarry(env_state, timestep, memory)
        _, trajectory, _ = unroll_scan(agent, env, policy, carry, key, key, 0)
        return state, trajectory

    return jax.jit(unroll)(jax.random.key(0))


@pytest.mark.parametrize("make", [PPO, IMPALA, PQN])
def test_A18_no_illegal_action_is_taken(make):
    env, size = ActionMask(num_actions=5), 10_000
    agent = make(spec=env.spec, network=NETWORK)
    mask = jax.random.bernoulli(jax.random.key(1), 0.3, (size, 5)).at[:, 2].set(True)
    observation = {"observation": jnp.zeros((size, 1)), ACTION_MASK: mask}
    timestep = TimeStep(jnp.full((size,), StepType.MID), jnp.zeros((size,)), jnp.ones((size,)), observation)

    def act(key, evaluation):
        params = agent.actor_params(agent.init_learner(key))
        policy = PolicySnapshot(params, jnp.float32(0.0), jnp.int32(0))  # PQN's exploration is complete at the start
        memory = agent.init_actor(key, jnp.arange(size), size)
        return agent.act(policy, memory, timestep, key, evaluation=evaluation)[1]

    for evaluation in (False, True):
        output = jax.jit(act, static_argnums=1)(jax.random.key(2), evaluation)
        assert jnp.all(jnp.take_along_axis(mask, output.action[:, None], 1))
        assert all(jnp.all(jnp.isfinite(leaf)) for leaf in output.extras.values())
        if not evaluation:  # every action is taken where it is legal
            assert set(np.unique(output.action)) == set(range(5))
        if make is PQN:  # an illegal action is no maximum either
            assert jnp.all(output.extras["max_q_value"] > -1e3)


@pytest.mark.parametrize("make", [PPO, IMPALA, PQN])
@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_A22_rewards_are_scaled_by_the_deviation_of_the_discounted_return(make, autoreset):
    same_step = autoreset == "same_step"
    env = AutoReset(RecordEpisodes(Counter(num_steps=3, truncates=not same_step)), autoreset)
    # Two episodes of three steps; between them a reset, where that takes a step.
    agent = make(
        spec=env.spec,
        network=NETWORK,
        unroll_length=6 if same_step else 7,
        discount_factor=0.9,
        normalise_rewards=True,
    )
    state, trajectory = unrolled(agent, env, num_envs=1)
    statistics = parts.update_statistics(state.statistics, trajectory.steps, None)
    # 1, 1.9, 2.71 twice: mean 1.87, variance (.87² + .03² + .84²) / 3
    counted = statistics.discounted_return
    np.testing.assert_allclose(counted.count, 6)
    np.testing.assert_allclose([counted.mean, counted.variance], [1.87, 0.4878], rtol=1e-5)
    reward, _, valid = parts.transitions(trajectory.steps, statistics)
    # 1 / √.4878, without a mean
    np.testing.assert_allclose(reward[valid], 1.43179, rtol=1e-4)


@pytest.mark.parametrize(("make", "steps_per_update"), [(PPO, 4), (PQN, 4), (IMPALA, 1)])
def test_A31_the_learning_rate_is_stairs_and_logged_as_applied(make, steps_per_update, monkeypatch):
    module = importlib.import_module(make.__module__)
    applied, gradient_step = [], module.gradient_step

    def record(optimiser, trained, gradients, learning_rate, axis_name):
        jax.debug.callback(lambda rate: applied.append(float(rate)), learning_rate, ordered=True)
        return gradient_step(optimiser, trained, gradients, learning_rate, axis_name)

    monkeypatch.setattr(module, "gradient_step", record)
    epochs = {} if make is IMPALA else {"num_epochs": 2, "num_minibatches": 2}
    env = AutoReset(COUNTER)
    agent = make(spec=env.spec, network=NETWORK, unroll_length=4, learning_rate=0.1, **epochs)
    state, trajectory = unrolled(agent, env)
    _, batch = OnPolicy().sample(trajectory, jax.random.key(0))
    update = jax.jit(lambda state, progress: agent.update(state, batch, jax.random.key(0), progress=progress))
    logged = []
    for done in (0.0, 0.5):  # two updates
        state, output = update(state, jnp.float32(done))
        logged.append(float(output.metrics["learning_rate"]))
    jax.effects_barrier()
    np.testing.assert_allclose(logged, [0.1, 0.05], rtol=1e-6)
    np.testing.assert_allclose(applied, np.repeat([0.1, 0.05], steps_per_update), rtol=1e-6)


@pytest.mark.parametrize("make", [PPO, PQN])
def test_A35_minibatches_of_another_key_are_other_minibatches(make):
    env = AutoReset(COUNTER)
    agent = make(spec=env.spec, network=NETWORK, unroll_length=4, learning_rate=0.1, num_minibatches=2)
    state, trajectory = unrolled(agent, env)
    _, batch = OnPolicy().sample(trajectory, jax.random.key(0))
    update = jax.jit(lambda key: agent.update(state, batch, key, progress=jnp.float32(0.0))[0].trained.params)
    first, again, other = (jax.tree.leaves(update(jax.random.key(seed))) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again))
    assert any(not np.allclose(a, b, rtol=1e-5) for a, b in zip(first, other))
