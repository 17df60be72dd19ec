import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.agents.parts import ActorMemory, ActorParams, LearnerState
from podracer.agents.pqn import PQN, Rows
from podracer.runners.learn import progress
from podracer.types import PolicySnapshot, TimeStep
from tests.agents.linear import NETWORK, NOT_NORMALISED, SPEC, F, L, M, make_batch, q_params

AGENT = PQN(
    spec=SPEC,
    network=NETWORK,
    discount_factor=0.5,
    q_lambda=0.5,
    epsilon_start=1.0,
    epsilon_end=0.1,
    exploration_fraction=1.0,
)


def test_golden_loss():
    rows = Rows(
        observation=jnp.array([[1.0], [2.0], [7.0]]),
        is_first=jnp.array([True, False, False]),
        action=jnp.array([1, 0, 1]),
        target=jnp.array([3.0, 0.0, -50.0]),
        valid=jnp.array([True, True, False]),
    )
    loss, metrics = AGENT.loss(q_params(), rows, (), jnp.float32(2.0))
    # Q(1, 1) = 2, Q(2, 0) = 2: (½ (2 - 3)² + ½ (2 - 0)²) / 2 = (.5 + 2) / 2
    np.testing.assert_allclose(loss, 1.25, rtol=1e-6)
    np.testing.assert_allclose([metrics["q_loss"], metrics["q_value"]], [1.25, 2.0], rtol=1e-6)


@pytest.mark.parametrize(
    ("discount_at_end", "target"),
    [
        # G₁ = 2 + .5 · 6 = 5;  G₀ = 1 + .5 (.5 · 4 + .5 · 5) = 3.25
        (1.0, [3.25, 5.0, 0.0]),
        # G₁ = 2;  G₀ = 1 + .5 (.5 · 4 + .5 · 2) = 2.5
        (0.0, [2.5, 2.0, 0.0]),
    ],
)
def test_A01_A03_A05_targets_over_an_episode_end(discount_at_end, target):
    batch = make_batch(
        step_type=[F, M, L, F],
        reward=[0, 1, 2, 0],
        discount=[1, 1, discount_at_end, 1],
        observation=[0, 0, 0, 0],
        action=[0] * 4,
        extras={"max_q_value": [9.0, 4.0, 6.0, 100.0]},
    )
    rows = AGENT.rows(LearnerState((), NOT_NORMALISED), batch)
    np.testing.assert_allclose(rows.target, target, rtol=1e-6)
    assert rows.valid.tolist() == [True, True, False]


@pytest.mark.parametrize("num_envs", [1, 8])
@pytest.mark.parametrize("learners", [1, 4])
def test_A30_epsilon_follows_the_budget_alone(num_envs, learners):
    env_steps_per_update = 10 * num_envs * learners
    total = 6400 // env_steps_per_update
    halfway = 3200 // env_steps_per_update
    np.testing.assert_allclose(AGENT.epsilon(progress(jnp.int32(0), total)), 1.0)
    np.testing.assert_allclose(AGENT.epsilon(progress(jnp.int32(halfway), total)), 0.55, rtol=1e-6)
    np.testing.assert_allclose(AGENT.epsilon(progress(jnp.int32(total), total)), 0.1, rtol=1e-6)


def test_A30_epsilon_stays_at_its_end():
    agent = dataclasses.replace(AGENT, exploration_fraction=0.2)
    np.testing.assert_allclose([agent.epsilon(jnp.float32(p)) for p in (0.1, 0.2, 0.6)], [0.55, 0.1, 0.1], rtol=1e-5)


def test_A30_no_exploration_phase_is_finite_traced_or_not():
    constant = dataclasses.replace(AGENT, exploration_fraction=0.0)
    np.testing.assert_allclose(constant.epsilon(jnp.float32(0.0)), 0.1, rtol=1e-6)
    traced = jax.jit(lambda x: dataclasses.replace(AGENT, exploration_fraction=x).epsilon(jnp.float32(0.0)))
    np.testing.assert_allclose(traced(0.0), 0.1, rtol=1e-6)
    np.testing.assert_allclose(progress(jnp.int32(0), 1), 0.0)


@pytest.mark.parametrize("step_type", [F, M, L])
def test_A30_actions_are_random_as_often_as_epsilon_says_at_every_step(step_type):
    size = 20_000
    timestep = TimeStep(
        jnp.full((size,), step_type), jnp.zeros((size,)), jnp.ones((size,)), jnp.ones((size, 1), jnp.float32)
    )
    policy = PolicySnapshot(ActorParams(q_params(), NOT_NORMALISED), jnp.float32(0.5), jnp.int32(0))
    memory = ActorMemory((), ())
    _, output = AGENT.act(policy, memory, timestep, jax.random.key(0))
    # Q = (1, 2): action 1 unless a random action, with probability .55, is 0: .275, deviation √(.275 · .725 / 20000).
    assert abs(float(jnp.mean(output.action == 0)) - 0.275) < 5 * 0.0032
    _, greedy = AGENT.act(policy, memory, timestep, jax.random.key(0), evaluation=True)
    assert jnp.all(greedy.action == 1)
    np.testing.assert_allclose(output.extras["max_q_value"], 2.0)
