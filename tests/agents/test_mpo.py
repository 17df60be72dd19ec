"""MPO on linear networks: Q(o) = (o, 2o) for two actions, Q(o, a) = o + 2a for continuous ones."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.agents.improvement import Candidates
from podracer.agents.mpo import MPO, Networks, Params, Targets
from podracer.agents.off_policy import ActorParams, join_sequence
from podracer.losses.mpo import inverse_positive_dual, positive_dual
from podracer.networks.config import NetworkConfig
from podracer.networks.distributions import DiagonalNormal
from podracer.spaces import ACTION_MASK, Box, Discrete, EnvSpec, MultiDiscrete
from podracer.types import Batch, PolicySnapshot, TimeStep
from tests.agents.linear import NOT_NORMALISED, SPEC, F, L, M, make_batch

NETWORK = NetworkConfig(hidden_sizes=())
DISCRETE = MPO(
    spec=SPEC,
    network=NETWORK,
    n_step=2,
    discount_factor=0.5,
    epsilon=0.1,
    epsilon_policy=0.01,
    initial_temperature=1.0,
    initial_multiplier=2.0,
)
CONTINUOUS = MPO(
    spec=EnvSpec("line", Box((1,), np.float32), Box((1,), np.float32, -3.0, 5.0)),
    network=NETWORK,
    n_step=1,
    discount_factor=0.5,
    num_samples=4000,
    epsilon_mean=0.01,
    epsilon_std=1e-3,
    initial_temperature=1.0,
    initial_multiplier=2.0,
    initial_std_multiplier=3.0,
)
KEY, PROGRESS = jax.random.key(0), jnp.float32(0.0)


def discrete_networks(probabilities=(0.25, 0.75)) -> Networks:
    policy = {"kernel": jnp.zeros((1, 2)), "bias": jnp.log(jnp.array(probabilities))}
    critic = {"kernel": jnp.array([[[1.0, 2.0]]]), "bias": jnp.zeros((1, 2))}
    return Networks({"params": {"head": {"Dense_0": policy}}}, {"params": {"critics": {"Dense_0": critic}}})


def continuous_networks(mean=0.0, std=1.0, by_action=2.0) -> Networks:
    def constant(x):
        return {"kernel": jnp.zeros((1, 1)), "bias": jnp.array([x], jnp.float32)}

    policy = {"Dense_0": constant(mean), "Dense_1": constant(np.log(std))}
    critic = {"kernel": jnp.array([[[1.0], [by_action]]]), "bias": jnp.zeros((1, 1))}
    return Networks({"params": {"head": policy}}, {"params": {"critics": {"Dense_0": critic}}})


def learner_state(agent: MPO, online: Networks, target: Networks | None = None):
    """A state before the first update."""
    state = agent.init_learner(KEY)
    params = Params(*online, state.trained.params.duals)
    return state._replace(trained=state.trained._replace(params=params), target_params=target or online)


def discrete_batch(step_type, reward, discount, observation) -> Batch:
    return make_batch(step_type, reward, discount, observation, action=[1, 0, 0], extras={})


def side_by_side(*batches: Batch) -> Batch:
    steps = jax.tree.map(lambda *leaves: jnp.concatenate(leaves, 1), *(batch.trajectory.steps for batch in batches))
    probabilities = jnp.concatenate([batch.probabilities for batch in batches])
    return Batch(batches[0].trajectory._replace(steps=steps), (), probabilities)


def transition(observation=1.0, action=0.0, next_observation=3.0) -> Batch:
    """One transition with reward 1 and a continuous action."""
    batch = make_batch([F, M], [0, 1], [1, 1], [observation, next_observation], [0, 0], {})
    steps = batch.trajectory.steps._replace(action=jnp.full((2, 1, 1), action))
    return batch._replace(trajectory=batch.trajectory._replace(steps=steps))


@pytest.mark.parametrize(
    ("step_type", "reward", "discount", "observation", "target"),
    [
        # V(3) = .25 · 3 + .75 · 6 = 5.25:  1 + .5 · 2 + .25 · 5.25
        pytest.param([F, M, M], [0, 1, 2], [1, 1, 1], [1, 2, 3], 3.3125, id="two steps"),
        # A truncation after one step, the rest is padding:  1 + .5 · 5.25
        pytest.param([M, L, F], [0, 1, 0], [1, 1, 1], [1, 3, 3], 3.625, id="truncated"),
        pytest.param([M, L, F], [0, 1, 0], [1, 0, 1], [1, 3, 3], 1.0, id="a true end"),
        pytest.param([F, M, L], [0, 1, 2], [1, 1, 0], [1, 2, 3], 2.0, id="a true end after two"),
    ],
)
def test_A01_A08_the_critic_learns_n_step_returns_of_the_target_policy(
    step_type, reward, discount, observation, target
):
    batch = discrete_batch(step_type, reward, discount, observation)
    # Another policy online: it has no part in the target.
    state = learner_state(DISCRETE, discrete_networks((0.9, 0.1)), discrete_networks())
    _, output = jax.jit(DISCRETE.update)(state, batch, KEY, progress=PROGRESS)
    error = target - 2.0  # Q(1, 1) = 2
    np.testing.assert_allclose(output.priorities, [abs(error)], rtol=1e-5)
    np.testing.assert_allclose(output.metrics["critic_loss"], 0.5 * error**2, rtol=1e-5)
    np.testing.assert_allclose(output.metrics["q_value"], 2.0, rtol=1e-6)


def test_golden_loss_of_a_discrete_policy():
    state = learner_state(DISCRETE, discrete_networks((0.5, 0.5)), discrete_networks())
    batch = discrete_batch([F, M, M], [0, 1, 2], [1, 1, 1], [1, 2, 3])
    _, output = jax.jit(DISCRETE.update)(state, batch, KEY, progress=PROGRESS)
    # η = 1, Q = (1, 2): weights ∝ [.25 e, .75 e²] = [.67957, 5.54179], normaliser 6.22136
    # KL(π' ‖ π) = .25 log .5 + .75 log 1.5 = .130812;  likelihood −log .5 = .693147
    np.testing.assert_allclose(output.metrics["policy_loss"], 0.693147 + 2 * 0.130812, rtol=1e-5)
    np.testing.assert_allclose(output.metrics["kl_policy"], 0.130812, rtol=1e-5)
    # .1 + log 6.22136 + 2 (.01 − .130812)
    np.testing.assert_allclose(output.metrics["dual_loss"], 0.1 + 1.827988 - 0.241624, rtol=1e-5)
    # .10923 log(.10923 / .25) + .89077 log(.89077 / .75) = −.090442 + .153215
    np.testing.assert_allclose(output.metrics["kl_improved"], 0.062783, rtol=1e-3)


def test_golden_loss_of_a_continuous_policy():
    # Two samples of N(0, 1), at −1 and 1, with values 0 and log 3 and η = 1: weights [.25, .75].
    target = DiagonalNormal(jnp.zeros((1, 1)), jnp.ones((1, 1)))
    action, log_prior = jnp.array([[[-1.0]], [[1.0]]]), jnp.full((2, 1), -np.log(2.0))
    candidates = Candidates(target, action, log_prior, jnp.array([[0.0], [np.log(3.0)]]))
    agent = dataclasses.replace(CONTINUOUS, penalise_bounds=False)
    params = Params(*continuous_networks(mean=0.5, std=2.0), agent.init_duals())
    joined = join_sequence(transition().trajectory.steps, NOT_NORMALISED, 0.5)
    metrics = agent.loss(params, joined, Targets(jnp.zeros((1,)), jnp.ones((1,)), candidates))[1].metrics
    # With c = ½ log 2π = .918939: of N(.5, 1), .25 (1.5²/2 + c) + .75 (.5²/2 + c) = .375 + c
    # of N(0, 2), 1/8 + log 2 + c;  sum .375 + .125 + .693147 + 1.837877 = 3.031024
    # KL by the mean ½ · .5² = .125;  by the deviation log 2 + 1/8 − ½ = .318147;  2 · .125 + 3 · .318147 = 1.204441
    np.testing.assert_allclose(metrics["policy_loss"], 3.031024 + 1.204441, rtol=1e-5)
    # .1 + log((1 + 3) / 2) + 2 (.01 − .125) + 3 (.001 − .318147)
    np.testing.assert_allclose(metrics["dual_loss"], 0.1 + 0.693147 - 0.23 - 0.951441, rtol=1e-4)


def test_A33_the_sampled_action_is_recorded():
    # mean 1.7, deviation e⁻⁵
    policy = continuous_networks(mean=1.7, std=np.exp(-5)).policy
    snapshot = PolicySnapshot(ActorParams(policy, NOT_NORMALISED, jnp.array(True)), PROGRESS, jnp.int32(1))
    timestep = TimeStep(jnp.full((8,), M), jnp.zeros((8,)), jnp.ones((8,)), jnp.ones((8, 1)))
    _, output = CONTINUOUS.act(snapshot, (), timestep, KEY)
    np.testing.assert_allclose(output.action, 1.7, atol=0.05)
    assert np.unique(output.action).size == 8
    _, output = CONTINUOUS.act(snapshot, (), timestep, KEY, evaluation=True)
    np.testing.assert_allclose(output.action, 1.7, rtol=1e-6)


@pytest.mark.parametrize("action", [-7.0, 0.3, 1.7])
def test_A33_E05_the_critic_values_what_the_environment_is_given(action):
    state = learner_state(CONTINUOUS, continuous_networks())
    _, output = jax.jit(CONTINUOUS.update)(state, transition(action=action), KEY, progress=PROGRESS)
    np.testing.assert_allclose(output.metrics["q_value"], 1.0 + 2.0 * np.clip(action, -1, 1), rtol=1e-5)


def test_A33_the_target_averages_clipped_samples():
    # a ~ N(0, 1): clip(a, −1, 1) has mean 0 and deviation .7184; 2 a over 4000 samples: .0227.
    # y = 1 + .5 (3 + 2 · 0) = 2.5, and Q(1, 0) = 1. From N(1, 1) on: E[clip(a)] = .6, worked out below.
    state = learner_state(CONTINUOUS, continuous_networks())
    _, output = jax.jit(CONTINUOUS.update)(state, transition(), KEY, progress=PROGRESS)
    np.testing.assert_allclose(output.priorities, [1.5], atol=5 * 0.5 * 0.0227)
    draws = np.clip(np.random.default_rng(0).normal(1.0, 1.0, 1_000_000), -1, 1)
    state = learner_state(CONTINUOUS, continuous_networks(mean=1.0))
    _, output = jax.jit(CONTINUOUS.update)(state, transition(), KEY, progress=PROGRESS)
    np.testing.assert_allclose(output.priorities, [1.5 + np.mean(draws)], atol=5 * 0.5 * 0.0227)


@pytest.mark.parametrize(("penalise_bounds", "slope"), [(True, 1.0), (False, 0.0)])
def test_E05_the_penalty_pulls_the_policy_to_its_bounds(penalise_bounds, slope):
    agent = dataclasses.replace(CONTINUOUS, penalise_bounds=penalise_bounds)
    state = learner_state(agent, continuous_networks(mean=6.0, by_action=0.0))  # all values are alike

    def loss(params):
        joined = join_sequence(transition().trajectory.steps, NOT_NORMALISED, 0.5)
        targets = agent.targets(state.target_params, joined, jnp.ones((1,)), KEY)
        return agent.loss(params, joined, targets)[0]

    gradient = jax.jit(jax.grad(loss))(state.trained.params).policy["params"]["head"]["Dense_0"]["bias"]
    # The slope by the mean is the sum over the objectives of mean − Σ weights a. Weights ∝ exp(−(a − 1)) of samples
    # of N(6, 1) have mean 5; without them and with values alike, the two are as far as 4000 samples happen to be.
    np.testing.assert_allclose(gradient, [slope], atol=5 * 2 / np.sqrt(4000))


def test_A14_A33_actions_far_outside_are_finite():
    state = learner_state(CONTINUOUS, continuous_networks(mean=1e4, std=7.0))
    state, output = jax.jit(CONTINUOUS.update)(state, transition(action=1e6), KEY, progress=PROGRESS)
    for leaf in jax.tree.leaves((state, output.metrics)):
        assert np.all(np.isfinite(leaf))


@pytest.mark.parametrize(
    ("online", "rises"), [((0.25, 0.75), False), ((0.26, 0.74), False), ((0.5, 0.5), True), ((0.9, 0.1), True)]
)
def test_the_multiplier_rises_when_the_policy_has_left_its_bound(online, rises):
    # KL from (.25, .75): 0, .0003, .13, 1.2; the bound is .01
    state = learner_state(DISCRETE, discrete_networks(online), discrete_networks())
    batch = discrete_batch([F, M, M], [0, 1, 2], [1, 1, 1], [1, 2, 3])
    after, output = jax.jit(DISCRETE.update)(state, batch, KEY, progress=PROGRESS)
    before = positive_dual(state.trained.params.duals["policy"])
    np.testing.assert_allclose(output.metrics["dual_policy"], before)
    assert (positive_dual(after.trained.params.duals["policy"]) > before) == rises


def test_multipliers_of_mean_and_deviation_are_apart():
    agent = dataclasses.replace(CONTINUOUS, num_samples=2)
    batch = transition()
    for online, moved in ((continuous_networks(mean=1.0), "mean"), (continuous_networks(std=2.0), "std")):
        state = learner_state(agent, online, continuous_networks())
        after, _ = jax.jit(agent.update)(state, batch, KEY, progress=PROGRESS)
        before, after = state.trained.params.duals, after.trained.params.duals
        rises = {name: bool(after[name][0] > before[name][0]) for name in ("mean", "std")}
        assert rises == {name: name == moved for name in ("mean", "std")}


def test_duals_stay_where_they_can_come_back_from():
    state = learner_state(DISCRETE, discrete_networks())
    duals = jax.tree.map(lambda dual: jnp.full_like(dual, -50.0), state.trained.params.duals)
    trained = state.trained._replace(params=state.trained.params._replace(duals=duals))
    batch = discrete_batch([F, M, M], [0, 1, 2], [1, 1, 1], [1, 2, 3])
    after, _ = jax.jit(DISCRETE.update)(state._replace(trained=trained), batch, KEY, progress=PROGRESS)
    assert all(dual >= -18.0 for dual in jax.tree.leaves(after.trained.params.duals))


def test_A29_targets_move_on_the_count_of_updates():
    agent = dataclasses.replace(DISCRETE, target_period=3)
    batch = discrete_batch([F, M, M], [0, 1, 2], [1, 1, 1], [1, 2, 3])
    update, state = jax.jit(agent.update), learner_state(agent, discrete_networks())
    expected = state.target_params
    for count in range(1, 8):
        state, _ = update(state, batch, KEY, progress=PROGRESS)
        if count in (3, 6):
            expected = state.trained.params.networks
        assert int(state.updates) == count
        jax.tree.map(np.testing.assert_array_equal, state.target_params, expected)


def test_rows_without_a_transition_do_not_count():
    real = discrete_batch([F, M, M], [0, 1, 2], [1, 1, 1], [1, 2, 3])
    both = side_by_side(real, discrete_batch([L, F, M], [9, 0, 9], [1, 1, 1], [7, 8, 9]))
    state, update = learner_state(DISCRETE, discrete_networks((0.5, 0.5))), jax.jit(DISCRETE.update)
    alone, joined = (update(state, batch, KEY, progress=PROGRESS) for batch in (real, both))
    jax.tree.map(lambda *x: np.testing.assert_allclose(*x, rtol=1e-5), alone[0], joined[0])
    jax.tree.map(lambda *x: np.testing.assert_allclose(*x, rtol=1e-5), alone[1].metrics, joined[1].metrics)
    assert joined[1].priorities[1] == 0


def test_importance_weights_are_of_the_critic_alone():
    batch = discrete_batch([F, M, M], [0, 1, 2], [1, 1, 1], [1, 2, 3])
    agent = dataclasses.replace(DISCRETE, importance_exponent=0.5)
    state, update = learner_state(agent, discrete_networks((0.5, 0.5))), jax.jit(agent.update)
    one = update(state, batch, KEY, progress=PROGRESS)[1].metrics
    # (.1 / .1)^β and (.1 / .4)^β:  β = .5 at the start: (1 + .5) / 2;  1 at the end: (1 + .25) / 2
    for progress, weight in ((0.0, 0.75), (1.0, 0.625)):
        uneven = side_by_side(batch, batch)._replace(probabilities=jnp.array([0.1, 0.4]))
        metrics = update(state, uneven, KEY, progress=jnp.float32(progress))[1].metrics
        np.testing.assert_allclose(metrics["critic_loss"], weight * one["critic_loss"], rtol=1e-5)
        np.testing.assert_allclose(metrics["policy_loss"], one["policy_loss"], rtol=1e-5)
        np.testing.assert_allclose(metrics["dual_loss"], one["dual_loss"], rtol=1e-5)


def test_A35_another_key_draws_other_samples():
    agent = dataclasses.replace(CONTINUOUS, num_samples=3)
    state, update = learner_state(agent, continuous_networks()), jax.jit(agent.update)
    losses = [
        float(update(state, transition(), jax.random.key(seed), progress=PROGRESS)[1].metrics["critic_loss"])
        for seed in (1, 1, 2)
    ]
    assert losses[0] == losses[1] != losses[2]


def test_E05_actions_are_uniform_until_something_is_learnt():
    timestep = TimeStep(jnp.full((4000,), M), jnp.zeros((4000,)), jnp.ones((4000,)), jnp.ones((4000, 1)))
    state = learner_state(CONTINUOUS, continuous_networks(mean=5.0))
    after, _ = jax.jit(CONTINUOUS.update)(state, transition(), KEY, progress=PROGRESS)
    drawn = []
    for learner in (state, after):
        snapshot = PolicySnapshot(CONTINUOUS.actor_params(learner), PROGRESS, jnp.int32(0))
        drawn.append(CONTINUOUS.act(snapshot, (), timestep, KEY)[1].action)
    assert np.all(np.abs(drawn[0]) <= 1)
    np.testing.assert_allclose([np.mean(drawn[0]), np.var(drawn[0])], [0, 1 / 3], atol=0.05)
    np.testing.assert_allclose(np.mean(drawn[1]), 5.0, atol=0.1)


def test_A18_illegal_actions_are_neither_taken_nor_valued():
    space = {"observation": Box((1,), np.float32), ACTION_MASK: Box((3,), np.bool_)}
    agent = MPO(spec=EnvSpec("masked", space, Discrete(3)), network=NetworkConfig(hidden_sizes=(8,)), n_step=1)
    mask = jnp.array([[1, 0, 1], [0, 1, 0]], bool)
    observation = {"observation": jnp.ones((2, 1)), ACTION_MASK: mask}
    state = agent.init_learner(KEY)
    candidates = agent.candidates(state.target_params, observation, KEY)
    q_values = agent.critic_model.apply(state.target_params.critic, observation)[0]
    np.testing.assert_allclose(candidates.value[1], q_values[1, 1], rtol=1e-5)
    assert np.all(np.abs(candidates.value) < 10)
    timestep = TimeStep(jnp.full((2,), M), jnp.zeros((2,)), jnp.ones((2,)), observation)
    for learner in (state, state._replace(updates=jnp.int32(1))):
        snapshot = PolicySnapshot(agent.actor_params(learner), PROGRESS, jnp.int32(0))
        action = np.array([agent.act(snapshot, (), timestep, jax.random.key(i))[1].action for i in range(30)])
        assert set(np.unique(action[:, 0])) == {0, 2} and np.all(action[:, 1] == 1)


@pytest.mark.parametrize("initial", [1e-2, 1.0, 1000.0])
def test_dual_variables_begin_as_they_are_set(initial):
    agent = dataclasses.replace(CONTINUOUS, initial_temperature=initial)
    duals = jax.tree.map(positive_dual, agent.init_duals())
    np.testing.assert_allclose([duals["temperature"], duals["penalty_temperature"]], initial, rtol=1e-5)
    np.testing.assert_allclose([duals["mean"][0], duals["std"][0]], [2.0, 3.0], rtol=1e-5)
    np.testing.assert_allclose(agent.init_duals()["temperature"], inverse_positive_dual(initial))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_step": 0}, r"agent.n_step=0 is too few; use at least 1"),
        ({"batch_size": 0}, r"agent.batch_size=0 is too few"),
        ({"num_samples": 0}, r"agent.num_samples=0 is too few"),
        ({"target_period": 0}, r"agent.target_period=0"),
    ],
)
def test_settings_without_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(DISCRETE, **settings)


@pytest.mark.parametrize(
    ("spec", "network", "message"),
    [
        (EnvSpec("x", SPEC.observation, MultiDiscrete((2, 3))), NETWORK, "MultiDiscrete"),
        (SPEC, NetworkConfig(core="gru"), r"network.core=gru.*network.core=none"),
        (CONTINUOUS.spec, NetworkConfig(policy="tanh_normal"), r"network.policy=tanh_normal.*state_normal"),
    ],
)
def test_what_it_cannot_learn_is_refused(spec, network, message):
    with pytest.raises(ValueError, match=message):
        MPO(spec=spec, network=network).init_learner(KEY)
