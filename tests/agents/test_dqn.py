import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.agents.dqn import DQN, Rows
from podracer.agents.off_policy import ActorParams, LearnerState, join_sequence
from podracer.agents.optimiser import Trained
from podracer.agents.parts import Statistics
from podracer.networks.config import NetworkConfig
from podracer.spaces import ACTION_MASK, Box, Discrete, EnvSpec
from podracer.types import PolicySnapshot, StepType, TimeStep
from tests.agents.transitions import DISCRETE, NETWORK, F, L, M, dense, make_batch

STATISTICS = Statistics((), ())
AGENT = DQN(spec=DISCRETE, network=NETWORK, discount_factor=0.5, double=False)
KEY = jax.random.key(3)


def params(kernel, bias):
    """Of a network of one observation o: outputs kernel · o + bias, those of an action side by side."""
    return {"params": {"head": {"Dense_0": dense([kernel], bias)}}}


ONLINE, TARGET = params([1.0, 2.0], [0.0, 0.0]), params([3.0, 1.0], [0.0, 0.0])


def targets(agent, batch, online=ONLINE, target=TARGET):
    state = LearnerState(Trained(online, ()), target, jnp.int32(1), STATISTICS)
    transition = join_sequence(batch.trajectory.steps, STATISTICS, agent.discount_factor)
    return agent.targets(state, transition, KEY)


def one_step(step_type=M, discount=1.0, size=1):
    """o = 1, action 1, reward 1, then o = 2; as many of them as asked for."""
    columns = [[1, 2], [1, 0], [0, 1], [1, discount], [F, step_type]]
    return make_batch(*([[first] * size, [second] * size] for first, second in columns), is_continuous=False)


@pytest.mark.parametrize(
    ("double", "step_type", "discount", "expected"),
    [
        (False, M, 1.0, 4.0),  # the target network's best at 2 is 6: 1 + .5 · 6
        (True, M, 1.0, 2.0),  # the online network chooses action 1, the target network values it 2: 1 + .5 · 2
        (True, L, 1.0, 2.0),  # A01: a truncation bootstraps
        (True, L, 0.0, 1.0),  # A01: a true end does not
    ],
)
def test_A01_golden_targets(double, step_type, discount, expected):
    agent = dataclasses.replace(AGENT, double=double)
    np.testing.assert_allclose(targets(agent, one_step(step_type, discount)), [[expected]], rtol=1e-6)


def test_A08_targets_of_three_steps():
    # r = (1, 2, 4), γ = .9, and Q = 10 of the last observation that there is. Columns: no end, a true end and a
    # truncation after the second step; what comes after the end is padding.
    batch = make_batch(
        observation=[[1, 1, 1], [1, 1, 1], [7, 10, 10], [10, 10, 10]],
        action=[[0, 0, 0]] * 4,
        reward=[[0, 0, 0], [1, 1, 1], [2, 2, 2], [4, 0, 0]],
        discount=[[1, 1, 1], [1, 1, 1], [1, 0, 1], [1, 1, 1]],
        step_type=[[F, F, F], [M, M, M], [M, L, L], [M, F, F]],
        is_continuous=False,
    )
    agent = dataclasses.replace(AGENT, n_step=3, discount_factor=0.9)
    assert agent.sequence_length == 4
    value = params([1.0, 0.0], [0.0, 0.0])
    # 1 + .9 · 2 + .81 · 4 + .729 · 10;  1 + .9 · 2;  1 + .9 · 2 + .81 · 10
    expected = [[13.33], [2.8], [10.9]]
    np.testing.assert_allclose(targets(agent, batch, value, value), expected, rtol=1e-6)


def test_munchausen_golden():
    # τ = 1, α = ½. Target network: Q(1) = (3, 1), Q(2) = (6, 2).
    # bonus ½ log π(1|1) = ½ (1 − log(e³ + e)), soft value at 2: log(e⁶ + e²)
    agent = dataclasses.replace(
        AGENT, munchausen=True, munchausen_temperature=1.0, munchausen_scale=0.5, munchausen_clip=-9.0
    )
    bonus, value = 0.5 * (1 - np.log(np.exp(3) + np.exp(1))), np.log(np.exp(6) + np.exp(2))
    np.testing.assert_allclose(targets(agent, one_step()), [[1 + bonus + 0.5 * value]], rtol=1e-6)
    clipped = dataclasses.replace(agent, munchausen_clip=-0.1)
    np.testing.assert_allclose(targets(clipped, one_step()), [[1 - 0.05 + 0.5 * value]], rtol=1e-6)


@pytest.mark.parametrize(
    ("reward", "discount", "expected"),
    [
        (1.0, 0.0, [0, 1, 0]),
        (1.0, 1.0, [0, 0.2, 0.8]),
        (0.5, 1.0, [0.1, 0.25, 0.65]),
        (5.0, 1.0, [0, 0, 1]),
        (-5.0, 1.0, [1, 0, 0]),
    ],
)
def test_A13_golden_categorical_targets(reward, discount, expected):
    # Atoms (0, 1, 2); the better action, of mean 1.3, has p = (.2, .3, .5), the other (1, 0, 0).
    agent = DQN(
        spec=DISCRETE, network=NETWORK, discount_factor=1.0, distribution="categorical", num_atoms=3, value_min=0.0,
        value_max=2.0,
    )  # fmt: skip
    network = params([0.0] * 6, [*np.log([0.98, 0.01, 0.01]), *np.log([0.2, 0.3, 0.5])])
    batch = make_batch([[1], [2]], [[0], [0]], [[0], [reward]], [[1], [discount]], [[F], [M]], is_continuous=False)
    np.testing.assert_allclose(targets(agent, batch, network, network), [expected], atol=1e-6)


def test_golden_quantile_targets():
    # θ of the actions at 2: (0, 2) and (−1, 5) of the larger mean: 1 + .5 θ
    agent = dataclasses.replace(AGENT, distribution="quantile", num_quantiles=2)
    network = params([0.0] * 4, [0.0, 2.0, -1.0, 5.0])
    np.testing.assert_allclose(targets(agent, one_step(), network, network), [[0.5, 3.5]], rtol=1e-6)


def test_the_loss_of_several_quantities_is_that_of_the_action_taken():
    rows = Rows(jnp.ones((1, 1)), jnp.array([1]), jnp.array([[1.0, 3.0]]), jnp.ones((1,)), jnp.array([True]))
    agent = dataclasses.replace(AGENT, distribution="quantile", num_quantiles=2, huber_threshold=None)
    network = params([0.0] * 4, [9.0, 9.0, 0.0, 4.0])
    loss, (metrics, priorities) = agent.loss(network, rows, jnp.float32(1.0), KEY)
    # θ = (0, 4), t = (1, 3), τ = (¼, ¾): ½ (¼ · 1 + ¼ · 3) + ½ (¼ · 3 + ¼ · 1)
    np.testing.assert_allclose([loss, *priorities], 1.0, rtol=1e-6)
    np.testing.assert_allclose(metrics["q_value"], 2.0)


@pytest.mark.parametrize(("threshold", "expected"), [(1.0, 1.5 + 2 * 0.125), (None, 2.0 + 2 * 0.125)])
def test_A26_golden_loss_weights_and_priorities(threshold, expected):
    rows = Rows(
        observation=jnp.array([[1.0], [2.0], [7.0]]),
        action=jnp.array([1, 0, 1]),
        target=jnp.array([[4.0], [1.5], [-50.0]]),
        weight=jnp.array([1.0, 2.0, 1.0]),
        valid=jnp.array([True, True, False]),
    )
    agent = dataclasses.replace(AGENT, huber_threshold=threshold)
    loss, (metrics, priorities) = agent.loss(ONLINE, rows, jnp.float32(2.0), KEY)
    # Errors 4 − 2 and 1.5 − 2; 2 − ½ or ½ · 2², and ½ · .5² of double weight
    np.testing.assert_allclose(loss, expected / 2, rtol=1e-6)
    np.testing.assert_allclose(priorities[:2], [2.0, 0.5], rtol=1e-6)
    np.testing.assert_allclose(metrics["q_value"], 2.0)


MASKED = EnvSpec("masked", {"x": Box((1,), np.float32), ACTION_MASK: Box((3,), np.bool_)}, Discrete(3))


@pytest.mark.parametrize(
    "settings",
    [
        {"double": False},
        {"double": True},
        {"munchausen": True},
        {"distribution": "categorical"},
        {"distribution": "categorical", "munchausen": True},
        {"distribution": "quantile"},
        {"distribution": "quantile", "munchausen": True},
    ],
)
def test_A18_an_illegal_action_is_worth_nothing_to_a_target(settings):
    # The second of three actions is illegal, and by far the best; without it the target is the same.
    sizes = {"num_atoms": 5, "num_quantiles": 2, "value_min": -3.0, "value_max": 3.0}
    settings = {"discount_factor": 0.5, "network": NETWORK, **sizes, **settings}
    mask = jnp.array([[[True, False, True]]] * 2)
    batch = one_step()
    legal = targets(DQN(spec=DISCRETE, **settings), batch, *(_network(settings, seed, 2) for seed in (0, 1)))
    timestep = batch.trajectory.steps.timestep
    timestep = timestep._replace(observation={"x": timestep.observation, ACTION_MASK: mask})
    steps = batch.trajectory.steps._replace(timestep=timestep, action=jnp.full((2, 1), 2))
    masked = targets(
        DQN(spec=MASKED, **settings),
        batch._replace(trajectory=batch.trajectory._replace(steps=steps)),
        *(_network(settings, seed, 3) for seed in (0, 1)),
    )
    assert jnp.all(jnp.isfinite(masked))
    np.testing.assert_allclose(masked, legal, rtol=1e-5, atol=1e-6)


def _network(settings, seed, num_actions):
    """Random outputs of two actions; a third one of value 100, or all on the highest atom, between them."""
    num_outputs = {"none": 1, "categorical": 5, "quantile": 2}[settings.get("distribution", "none")]
    outputs = list(np.random.default_rng(seed).normal(size=(2, num_outputs)))
    if num_actions == 3:
        outputs.insert(1, np.eye(num_outputs)[-1] * 100)
    return params([0.0] * num_actions * num_outputs, np.concatenate(outputs))


def timesteps(size, observation=1.0):
    return TimeStep(
        jnp.full((size,), StepType.MID), jnp.zeros((size,)), jnp.ones((size,)), jnp.full((size, 1), observation)
    )


def act(agent, network, *, has_learnt=True, progress=1.0, evaluation=False, key=KEY, size=4000):
    policy = PolicySnapshot(
        ActorParams(network, STATISTICS, jnp.array(has_learnt)), jnp.float32(progress), jnp.int32(0)
    )
    return np.asarray(agent.act(policy, (), timesteps(size), key, evaluation=evaluation)[1].action)


def test_A30_actions_are_random_until_something_is_learnt_and_then_as_often_as_epsilon_says():
    agent = dataclasses.replace(AGENT, epsilon_start=1.0, epsilon_end=0.2, exploration_fraction=0.5)
    # Q = (1, 2): action 0 is chosen by chance alone, half of the time; deviation √(.25 / 4000) = .008
    shares = [np.mean(act(agent, ONLINE, **case) == 0) for case in ({"has_learnt": False}, {"progress": 0.25}, {})]
    np.testing.assert_allclose(shares, [0.5, 0.3, 0.1], atol=5 * 0.008)
    assert np.all(act(agent, ONLINE, has_learnt=False, evaluation=True) == 1)


def test_noisy_layers_explore_without_epsilon_and_not_in_evaluation():
    agent = DQN(spec=DISCRETE, network=NetworkConfig(hidden_sizes=(), noisy=True), epsilon_start=0.0, epsilon_end=0.0)
    network = jax.jit(agent.init_learner)(KEY).trained.params
    network["params"]["head"]["NoisyDense_0"]["mean"] = dense([[0.0, 0.1]], [0.0, 0.0])
    first, again, other = (act(agent, network, key=jax.random.key(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert 0.3 < np.mean(first) < 0.9
    assert np.all(act(agent, network, evaluation=True) == 1)


@pytest.mark.parametrize("noisy", [False, True])
def test_noise_is_of_the_key_of_the_update(noisy):
    agent = DQN(spec=DISCRETE, network=NetworkConfig(hidden_sizes=(), noisy=noisy))
    state = jax.jit(agent.init_learner)(KEY)
    update = jax.jit(lambda key: agent.update(state, one_step(), key, progress=jnp.float32(0.0))[1].priorities)
    first, again, other = (update(jax.random.key(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert np.array_equal(first, other) != noisy


@pytest.mark.parametrize("num_envs", [1, 4])
def test_A29_the_target_network_is_copied_every_so_many_updates(num_envs):
    agent, batch = dataclasses.replace(AGENT, target_period=3), one_step(size=num_envs)
    update = jax.jit(lambda state: agent.update(state, batch, KEY, progress=jnp.float32(0.0))[0])
    state = jax.jit(agent.init_learner)(KEY)
    assert not agent.actor_params(state).has_learnt
    copied = []
    for _ in range(10):
        before, state = state, update(state)
        if any(np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (before.target_params, state.target_params)))):
            jax.tree.map(np.testing.assert_array_equal, state.target_params, state.trained.params)
            copied.append(int(state.updates))
        assert agent.actor_params(state).has_learnt
    assert copied == [3, 6, 9]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_step": 0}, r"agent.n_step=0 is too few; use at least 1"),
        ({"num_atoms": 1}, r"agent.num_atoms=1 is too few; use at least 2"),
        ({"value_min": 3.0, "value_max": 1.0}, r"agent.value_min=3.0 is not below agent.value_max=1.0"),
        ({"huber_threshold": 0.0}, r"agent.huber_threshold=0.0 is not positive; use null"),
        ({"target_tau": 0.0}, r"agent.target_tau=0.0"),
        ({"network": NetworkConfig(core="gru")}, r"network.core=gru.*network.core=none"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(AGENT, **settings)
