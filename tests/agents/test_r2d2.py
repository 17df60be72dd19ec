import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from podracer.agents.off_policy import LearnerState
from podracer.agents.optimiser import Trained
from podracer.agents.parts import Statistics
from podracer.agents.r2d2 import R2D2
from podracer.envs.autoreset import AutoReset
from podracer.envs.probe import Counter
from podracer.envs.wrappers import RecordEpisodes
from podracer.networks.config import NetworkConfig
from podracer.runners.unroll import ActorCarry, unroll_scan
from podracer.types import Batch, PolicySnapshot, TimeStep
from tests.agents.transitions import DISCRETE, NETWORK, F, L, M, dense, make_batch

STATISTICS = Statistics((), ())
PLAIN = R2D2(
    spec=DISCRETE,
    network=NETWORK,
    unroll_length=4,
    sequence_period=4,
    burn_in_length=0,
    learning_length=4,
    n_step=2,
    discount_factor=0.5,
    double=False,
    rescale_values=False,
    priority_max_share=0.75,
)
RECURRENT = dataclasses.replace(
    PLAIN,
    network=NetworkConfig(hidden_sizes=(8,), core="lstm", core_size=8),
    unroll_length=12,
    sequence_period=12,
    burn_in_length=5,
)
KEY = jax.random.key(3)


def params(kernel):
    """Of Q(o) = kernel · o."""
    return {"params": {"head": {"Dense_0": dense([kernel], [0.0, 0.0])}}}


def scored(agent, batch, online, target):
    """The loss, the metrics and the priorities of a batch."""
    state = LearnerState(Trained(online, ()), target, jnp.int32(1), STATISTICS)
    sequences = agent.sequences(state, batch, KEY, jnp.float32(0.0))
    count = jnp.sum(sequences.transitions.valid, dtype=jnp.float32)
    loss, (metrics, priorities) = agent.loss(online, target, sequences, count, KEY)
    return loss, metrics, priorities


def sequence(end_discount):
    """An episode of two steps that ends with o = 3, and the beginning of the next one; action 0 throughout."""
    return make_batch(
        observation=[[1], [2], [3], [4], [5]],
        action=[[0]] * 5,
        reward=[[0], [1], [2], [0], [4]],
        discount=[[1], [1], [end_discount], [1], [1]],
        step_type=[[F], [M], [L], [F], [M]],
        is_continuous=False,
    )


@pytest.mark.parametrize(
    ("double", "end_discount", "targets"),
    [
        # γ = ½, target network (3o, o), best values 9 at 3 and 15 at 5; the last sequence step bootstraps after one.
        (False, 1.0, [1 + 0.5 * 2 + 0.25 * 9, 2 + 0.5 * 9, 4 + 0.5 * 15]),
        (False, 0.0, [1 + 0.5 * 2, 2, 4 + 0.5 * 15]),
        # The online network (o, 2o) chooses action 1: 3 at 3 and 5 at 5.
        (True, 1.0, [1 + 0.5 * 2 + 0.25 * 3, 2 + 0.5 * 3, 4 + 0.5 * 5]),
    ],
)
def test_A01_A08_golden_loss_and_priorities_over_an_episode_end(double, end_discount, targets):
    agent = dataclasses.replace(PLAIN, double=double)
    loss, metrics, priorities = scored(agent, sequence(end_discount), params([1.0, 2.0]), params([3.0, 1.0]))
    error = np.array(targets) - [1, 2, 4]  # Q(o, 0) = o on the three steps that are transitions
    np.testing.assert_allclose(loss, np.mean(0.5 * error**2), rtol=1e-6)
    np.testing.assert_allclose(metrics["q_value"], 7 / 3, rtol=1e-6)
    # η = ¾
    np.testing.assert_allclose(priorities, [0.75 * np.max(np.abs(error)) + 0.25 * np.mean(np.abs(error))], rtol=1e-6)


def test_golden_rescaled_targets():
    # Without ε h(x) = √(x + 1) − 1, and h⁻¹(y) = (y + 1)² − 1 of the best values 9 at 3 and 15 at 5.
    agent = dataclasses.replace(PLAIN, rescale_values=True, rescaling_epsilon=0.0)
    loss, _, _ = scored(agent, sequence(1.0), params([1.0, 2.0]), params([3.0, 1.0]))
    at_3, at_5 = 10**2 - 1, 16**2 - 1
    targets = np.sqrt(np.array([1 + 0.5 * 2 + 0.25 * at_3, 2 + 0.5 * at_3, 4 + 0.5 * at_5]) + 1) - 1
    np.testing.assert_allclose(loss, np.mean(0.5 * (targets - [1, 2, 4]) ** 2), rtol=1e-5)


def test_A26_weights_are_those_of_whole_sequences():
    batch = jax.tree.map(lambda *leaves: jnp.concatenate(leaves, 1), sequence(1.0).trajectory, sequence(0.0).trajectory)
    agent = dataclasses.replace(PLAIN, importance_exponent=1.0)
    networks = params([1.0, 2.0]), params([3.0, 1.0])
    alone = [scored(PLAIN, sequence(discount), *networks)[0] for discount in (1.0, 0.0)]
    loss, _, priorities = scored(agent, Batch(batch, jnp.arange(2), jnp.array([0.4, 0.1])), *networks)
    np.testing.assert_allclose(loss, (0.25 * alone[0] + alone[1]) / 2, rtol=1e-6)
    assert priorities.shape == (2,)


@functools.cache
def unrolled():
    """A state whose networks differ, and an unroll over several episodes."""
    env = AutoReset(RecordEpisodes(Counter(num_steps=4, truncates=True)))

    def unroll(key):
        state = RECURRENT.init_learner(key)
        state = state._replace(target_params=jax.tree.map(lambda x: x + 0.1, state.target_params))
        policy = PolicySnapshot(RECURRENT.actor_params(state), jnp.float32(0.0), jnp.int32(0))
        env_state, timestep = env.reset(key, 3)
        carry = ActorCarry(env_state, timestep, RECURRENT.init_actor(key, jnp.arange(3), 3))
        carry, _, _ = unroll_scan(RECURRENT, env, policy, carry, key, key, 0)
        _, trajectory, _ = unroll_scan(RECURRENT, env, policy, carry, key, key, RECURRENT.unroll_length)
        return state, trajectory

    return jax.jit(unroll)(KEY)


def recurrent_batch(steps=slice(0, 10)):
    state, trajectory = unrolled()
    trajectory = trajectory._replace(steps=jax.tree.map(lambda leaf: leaf[steps], trajectory.steps))
    return state, Batch(trajectory, jnp.arange(3), jnp.ones((3,)))


def test_A24_F05_the_burn_in_brings_the_stored_memory_up_to_date():
    state, batch = recurrent_batch()
    sequences = jax.jit(lambda: RECURRENT.sequences(state, batch, KEY, jnp.float32(0.0)))()
    steps, core = batch.trajectory.steps, batch.trajectory.actor_state.core
    for network, memory in (
        (state.trained.params, sequences.memory),
        (state.target_params, sequences.target_memory),
    ):
        expected = core
        for t in range(5):
            expected, _ = RECURRENT.model.apply(
                network, expected, steps.timestep.observation[t], steps.timestep.is_first[t]
            )
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), memory, expected)
    assert sequences.observation.shape == (5, 3, 1)
    np.testing.assert_array_equal(sequences.observation, steps.timestep.observation[5:])
    np.testing.assert_array_equal(sequences.action, steps.action[5:])


@functools.cache
def gradient_norm():
    """`(trajectory) -> []`, compiled once."""
    state, batch = recurrent_batch()

    def norm(trajectory):
        output = RECURRENT.update(state, batch._replace(trajectory=trajectory), KEY, progress=jnp.float32(0.0))[1]
        return output.metrics["gradient_norm"]

    return jax.jit(norm)


def test_F05_steps_of_the_burn_in_are_remembered_within_their_episode_and_not_learnt_from():
    trajectory = recurrent_batch()[1].trajectory
    timestep = trajectory.steps.timestep
    assert timestep.step_type[:6, 0].tolist() == [M, M, L, F, M, M]

    def norm(**leaves):
        steps = trajectory.steps._replace(timestep=timestep._replace(**leaves))
        return float(gradient_norm()(trajectory._replace(steps=steps)))

    assert norm() == norm(reward=timestep.reward.at[:6].add(1.0))  # reward 5 is of the action before
    assert norm() == norm(observation=timestep.observation.at[:3].add(1.0))
    assert norm() != norm(observation=timestep.observation.at[4].add(1.0))


def test_F05_no_gradient_flows_into_the_burn_in():
    state, batch = recurrent_batch()

    def loss(network, burn_in_network):
        start = state._replace(trained=Trained(burn_in_network, ()))
        sequences = RECURRENT.sequences(start, batch, KEY, jnp.float32(0.0))
        count = jnp.sum(sequences.transitions.valid, dtype=jnp.float32)
        return RECURRENT.loss(network, state.target_params, sequences, count, KEY)[0]

    @jax.jit
    def norms(network):
        stopped = jax.grad(loss)(network, network)
        return optax.tree.norm(stopped), optax.tree.norm(jax.grad(lambda network: loss(network, network))(network))

    stopped, through = norms(state.trained.params)
    np.testing.assert_allclose(gradient_norm()(batch.trajectory), stopped, rtol=1e-5)
    assert abs(float(stopped - through)) > 1e-3 * float(stopped)


def test_a_network_without_memory_needs_none_stored():
    agent = dataclasses.replace(PLAIN, sequence_period=3, burn_in_length=2, learning_length=2)
    networks = params([1.0, 2.0]), params([3.0, 1.0])
    loss, _, _ = scored(agent, sequence(1.0), *networks)
    # The steps from o = 3 on, of which one is a transition: 4 + .5 · 15 − 4
    np.testing.assert_allclose(loss, 0.5 * 7.5**2, rtol=1e-6)


def test_every_environment_has_its_own_epsilon():
    agent = dataclasses.replace(PLAIN, epsilon_base=0.4, epsilon_exponent=7.0)
    memory = agent.init_actor(KEY, jnp.array([2, 0]), 3)
    np.testing.assert_allclose(memory.epsilon, [0.4**8, 0.4], rtol=1e-5)
    size = 4000
    state = jax.jit(agent.init_learner)(KEY)
    timestep = TimeStep(jnp.full((size,), M), jnp.zeros((size,)), jnp.ones((size,)), jnp.ones((size, 1)))
    policy = PolicySnapshot(agent.actor_params(state), jnp.float32(0.0), jnp.int32(0))
    policy = policy._replace(params=policy.params._replace(params=params([1.0, 2.0]), has_learnt=jnp.array(True)))
    memory = memory._replace(epsilon=jnp.where(jnp.arange(size) % 2 == 0, 0.5, 0.0))
    after, output = agent.act(policy, memory, timestep, KEY)
    # Half of the random actions are 0; deviation √(.25 · .75 / 2000) = .0097
    np.testing.assert_allclose([np.mean(output.action[i::2] == 0) for i in (0, 1)], [0.25, 0.0], atol=5 * 0.0097)
    np.testing.assert_array_equal(after.epsilon, memory.epsilon)
    nothing_learnt = policy._replace(params=policy.params._replace(has_learnt=jnp.array(False)))
    _, output = agent.act(nothing_learnt, memory, timestep, KEY)
    np.testing.assert_allclose(np.mean(output.action == 0), 0.5, atol=0.05)
    _, greedy = agent.act(nothing_learnt, memory, timestep, KEY, evaluation=True)
    assert np.all(greedy.action == 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sequence_period": 6}, r"sequence_period=6 is no multiple of agent.unroll_length=12.*sequence_period=12"),
        ({"sequence_period": 31}, r"use agent.sequence_period=36, or agent.unroll_length=31"),
        ({"learning_length": 0}, r"agent.learning_length=0 is too few; use at least 1"),
        ({"burn_in_length": -1}, r"agent.burn_in_length=-1 is too few; use at least 0"),
        ({"target_period": 0}, r"agent.target_period=0"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(RECURRENT, **settings)


def test_a_network_without_memory_may_start_a_sequence_anywhere():
    agent = dataclasses.replace(PLAIN, sequence_period=3)
    assert (agent.sequence_length, agent.transitions_per_sequence) == (5, 4)
