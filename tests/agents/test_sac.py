import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.agents.off_policy import ActorParams, join_sequence
from podracer.agents.parts import Statistics
from podracer.agents.sac import SAC, Params
from podracer.envs.autoreset import AutoReset
from podracer.envs.probe import ContinuousAction
from podracer.envs.wrappers import RecordEpisodes
from podracer.networks.config import NetworkConfig
from podracer.runners.unroll import ActorCarry, unroll_scan
from podracer.spaces import Box, EnvSpec, MultiDiscrete
from podracer.types import PolicySnapshot, StepType, TimeStep
from tests.agents.transitions import CONTINUOUS, DISCRETE, NETWORK, F, L, M, critics_params, dense, make_batch

STATISTICS = Statistics((), ())
AGENT = SAC(spec=CONTINUOUS, network=NETWORK, discount_factor=0.5)
DISCRETE_AGENT = SAC(spec=DISCRETE, network=NETWORK, discount_factor=0.5)
KEY = jax.random.key(3)


def policy_params(mean=(0.5, 0.0), log_std=-1.0):
    """Of a normal with mean m₀ s + m₁ before the squashing."""
    return {"params": {"head": {"Dense_0": dense([[mean[0]]], [mean[1]]), "Dense_1": dense([[0.0]], [log_std])}}}


def discrete_params(log_temperature=0.0):
    """Of Q₁(s, ·) = (s, 2s), Q₂(s, ·) = (2s, s), and probabilities (¼, ¾)."""
    q_params = {"params": {"critics": {"Dense_0": dense([[[1.0, 2.0]], [[2.0, 1.0]]], [[0.0, 0.0], [0.0, 0.0]])}}}
    policy = {"params": {"head": {"Dense_0": dense([[0.0, 0.0]], np.log([0.25, 0.75]))}}}
    return Params(policy, q_params, jnp.float32(log_temperature))


def test_golden_discrete_losses():
    # Two transitions, and a row that joins two episodes.
    batch = make_batch(
        observation=[[1, 1, 9], [2, 2, 9]],
        action=[[1, 0, 0], [0, 0, 0]],
        reward=[[0, 0, 0], [1, 1, 50]],
        discount=[[1, 1, 1], [1, 0, 1]],
        step_type=[[F, M, L], [M, L, F]],
        is_continuous=False,
    )
    params = discrete_params()
    total, (metrics, priorities) = loss(DISCRETE_AGENT, params, params.critics, batch)
    # H = −¼ log ¼ − ¾ log ¾ = .562335. V(2) = 2 + H, V(1) = 1 + H, for min(Q₁, Q₂) = s for both actions.
    # Targets 1 + .5 V(2) = 2.281168, and 1 after the true end. Q₁, Q₂ are 2, 1 for action 1, and 1, 2 for action 0.
    errors = np.array([[0.281168, 1.281168], [0.0, -1.0]])
    np.testing.assert_allclose(metrics["critics_loss"], 0.5 * np.sum(errors**2) / 2, rtol=1e-5)
    np.testing.assert_allclose(priorities[:2], np.mean(np.abs(errors), -1), rtol=1e-5)
    np.testing.assert_allclose(metrics["policy_loss"], -1.562335, rtol=1e-6)
    np.testing.assert_allclose([metrics["entropy"], metrics["q_value"]], [0.562335, 1.5], rtol=1e-5)
    np.testing.assert_allclose(total, metrics["critics_loss"] + metrics["policy_loss"], rtol=1e-6)  # log α is 0


def test_A14_A16_golden_continuous_losses():
    batch = make_batch(
        observation=[[1, 2], [3, -1]],
        action=[[0.5, -1.0], [0, 0]],
        reward=[[0, 0], [1, 2]],
        discount=[[1, 1], [1, 1]],
        step_type=[[F, M], [M, L]],
    )
    temperature = 0.2
    params = Params(policy_params(), critics_params((1, 2, 0), (-1, 1, 0.5)), jnp.log(temperature))
    targets = critics_params((2, 0, 0), (0, 3, 1))
    _, (metrics, priorities) = loss(AGENT, params, targets, batch)

    def draw(state, key):
        noise, std = np.asarray(jax.random.normal(key, (2, 1)))[:, 0], np.exp(-1.0)
        pre_tanh = 0.5 * state + std * noise
        log_prob = -0.5 * noise**2 - np.log(std) - 0.5 * np.log(2 * np.pi) - np.log(1 - np.tanh(pre_tanh) ** 2)
        return np.tanh(pre_tanh), log_prob

    policy_key, next_key = jax.random.split(KEY)
    s, a, next_s = np.array([1.0, 2.0]), np.array([0.5, -1.0]), np.array([3.0, -1.0])
    next_a, next_log_prob = draw(next_s, next_key)
    next_value = np.minimum(2 * next_s, 3 * next_a + 1) - temperature * next_log_prob
    target = np.array([1.0, 2.0]) + 0.5 * next_value  # the second is truncated, and bootstraps
    q = np.stack([s + 2 * a, -s + a + 0.5])
    np.testing.assert_allclose(metrics["critics_loss"], np.mean(np.sum(0.5 * (q - target) ** 2, 0)), rtol=1e-5)
    np.testing.assert_allclose(priorities, np.mean(np.abs(q - target), 0), rtol=1e-5)
    new_a, log_prob = draw(s, policy_key)
    value = np.minimum(s + 2 * new_a, -s + new_a + 0.5)
    np.testing.assert_allclose(metrics["policy_loss"], np.mean(temperature * log_prob - value), rtol=1e-5)
    np.testing.assert_allclose(metrics["entropy"], np.mean(-log_prob), rtol=1e-5)
    gap = np.mean(-log_prob) + 1.0  # the target entropy of one dimension is −1
    np.testing.assert_allclose(metrics["temperature_loss"], np.log(temperature) * gap, rtol=1e-5)


def test_A26_importance_weights_scale_the_loss_of_the_critics_alone():
    batch, params = one_transition(), Params(policy_params(), critics_params((1, 2, 0), (-1, 1, 0.5)), jnp.float32(0.5))
    _, (whole, priorities) = loss(AGENT, params, params.critics, batch)
    _, (half, half_priorities) = loss(AGENT, params, params.critics, batch, weight=0.5)
    np.testing.assert_allclose(half.pop("critics_loss"), 0.5 * whole.pop("critics_loss"), rtol=1e-6)
    assert jax.tree.all(jax.tree.map(np.array_equal, half, whole))
    np.testing.assert_array_equal(half_priorities, priorities)
    state, batch = init(DISCRETE_AGENT), one_transition(is_continuous=False)
    uneven = batch._replace(probabilities=jnp.array([0.5, 0.25, 0.125, 0.125]))
    even, weighted = (updated(DISCRETE_AGENT, state, b)[1].metrics["critics_loss"] for b in (batch, uneven))
    # All four are the same transition: ((1/4)^.4 + (1/2)^.4 + 1 + 1) / 4
    np.testing.assert_allclose(weighted / even, (0.25**0.4 + 0.5**0.4 + 2) / 4, rtol=1e-5)


def one_transition(size=4, is_continuous=True):
    def row(value):
        return [[value] * size] * 2

    return make_batch(row(1.0), row(0.5), row(0.0), row(1.0), [[F] * size, [M] * size], is_continuous)


def test_each_loss_moves_only_what_is_its_own():
    params = Params(policy_params(), critics_params((1, 2, 0), (-1, 1, 0.5)), jnp.float32(0.5))
    batch = one_transition()

    def gradients(name):
        def metric(params):
            return loss(AGENT, params, params.critics, batch)[1].metrics[name]

        moved = jax.jit(jax.grad(metric))(params)
        return {
            field: any(np.any(leaf != 0) for leaf in jax.tree.leaves(tree)) for field, tree in moved._asdict().items()
        }

    assert gradients("critics_loss") == {"policy": False, "critics": True, "log_temperature": False}
    assert gradients("policy_loss") == {"policy": True, "critics": False, "log_temperature": False}
    assert gradients("temperature_loss") == {"policy": False, "critics": False, "log_temperature": True}


def loss(agent, params, target_params, batch, weight=1.0):
    transition = join_sequence(batch.trajectory.steps, STATISTICS, agent.discount_factor)
    return jax.jit(agent.loss)(params, target_params, transition, jnp.full(transition.valid.shape, weight), KEY)


@functools.cache
def compiled(agent):
    return jax.jit(agent.init_learner), jax.jit(functools.partial(agent.update, progress=jnp.float32(0.0)))


def init(agent, key=KEY):
    return compiled(agent)[0](key)


def updated(agent, state, batch, key=KEY):
    return compiled(agent)[1](state, batch, key)


@pytest.mark.parametrize(("log_std", "falls"), [(0.0, True), (-5.0, False)])
def test_A28_the_temperature_moves_to_the_target_entropy(log_std, falls):
    state = init(AGENT)
    params = state.trained.params._replace(policy=policy_params((0.0, 0.0), log_std))
    state = state._replace(trained=state.trained._replace(params=params))
    state, output = updated(AGENT, state, one_transition(64))
    assert (output.metrics["entropy"] > AGENT.entropy_target) == falls
    assert (state.trained.params.log_temperature < params.log_temperature) == falls
    np.testing.assert_allclose(output.metrics["temperature"], 1.0)


def test_a_fixed_temperature_stays():
    agent = dataclasses.replace(AGENT, learn_temperature=False, initial_temperature=0.3)
    state = init(agent)
    for _ in range(3):
        state, output = updated(agent, state, one_transition())
    np.testing.assert_array_equal(state.trained.params.log_temperature, jnp.log(jnp.float32(0.3)))
    np.testing.assert_allclose(output.metrics["temperature"], 0.3, rtol=1e-6)


def test_A29_target_critics_follow_on_the_counter_of_updates():
    agent = dataclasses.replace(AGENT, target_period=2, target_tau=0.25)
    first = state = init(agent)
    state, _ = updated(agent, state, one_transition())
    assert jax.tree.all(jax.tree.map(np.array_equal, state.target_params, first.target_params))
    state, _ = updated(agent, state, one_transition())
    assert state.updates == 2
    for old, new, online in zip(
        *map(jax.tree.leaves, (first.target_params, state.target_params, state.trained.params.critics))
    ):
        np.testing.assert_allclose(new, 0.75 * old + 0.25 * online, rtol=1e-6)
        assert np.any(new != old)


def test_A35_another_key_draws_other_actions():
    state = init(AGENT)
    losses = [
        updated(AGENT, state, one_transition(), jax.random.key(seed))[1].metrics["policy_loss"] for seed in (1, 1, 2)
    ]
    assert losses[0] == losses[1] != losses[2]


def snapshot(agent, params, has_learnt=True):
    return PolicySnapshot(ActorParams(params, STATISTICS, jnp.array(has_learnt)), jnp.float32(0.0), jnp.int32(0))


def test_A33_E05_saturated_actions_are_recorded_as_they_were_squashed(key):
    timestep = TimeStep(
        jnp.full((4,), M), jnp.zeros((4,)), jnp.ones((4,)), jnp.array([[-100.0], [100.0], [0.0], [0.0]])
    )
    _, output = AGENT.act(snapshot(AGENT, policy_params((1.0, 0.0))), (), timestep, key)
    np.testing.assert_array_equal(output.action[:2, 0], [-1.0, 1.0])
    assert np.all(np.abs(output.action[2:]) < 1.0) and output.action[2] != output.action[3]
    _, output = AGENT.act(snapshot(AGENT, policy_params((1.0, 0.3))), (), timestep, key, evaluation=True)
    np.testing.assert_allclose(output.action[2:], np.tanh(0.3), rtol=1e-6)
    # And such a transition is learnt from without a NaN.
    batch = make_batch([[100.0], [-100.0]], [[1.0], [0.0]], [[0.0], [1.0]], [[1.0], [1.0]], [[F], [M]])
    state, _ = updated(AGENT, init(AGENT, key), batch)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize("has_learnt", [False, True])
def test_A33_E05_the_environment_gets_the_recorded_action_in_its_own_range(key, has_learnt):
    env = AutoReset(RecordEpisodes(ContinuousAction(low=0.0, high=10.0, target=5.0)))
    agent = SAC(spec=env.spec, network=NETWORK, unroll_length=40)

    def unroll(key):
        state = agent.init_learner(key)
        policy = PolicySnapshot(agent.actor_params(state)._replace(has_learnt=jnp.array(has_learnt)), 0.0, 0)
        carry = ActorCarry(*env.reset(key, 50), agent.init_actor(key, jnp.arange(50), 50))
        return unroll_scan(agent, env, policy, carry, key, key, 0)[1]

    steps = jax.jit(unroll)(key).steps
    action, reward = steps.action[:-1, :, 0], steps.timestep.reward[1:]
    assert np.all(np.abs(action) <= 1)
    acted = steps.timestep.step_type[:-1] != StepType.LAST
    np.testing.assert_allclose(reward[acted], -np.square(5.0 * action[acted]), rtol=1e-4, atol=1e-4)
    # Uniform until the first update: deviation 2 / √12 = .577; the policy begins with tanh(N(0, 1)): .628.
    np.testing.assert_allclose(np.std(action), 0.628 if has_learnt else 0.577, atol=0.02)
    assert np.max(np.abs(action)) > 0.99


def test_actors_act_at_random_until_the_first_update(key):
    state = init(AGENT, key)
    assert not AGENT.actor_params(state).has_learnt
    state, _ = updated(AGENT, state, one_transition())
    assert AGENT.actor_params(state).has_learnt


@pytest.mark.parametrize(
    ("spec", "settings", "message"),
    [
        (CONTINUOUS, {"batch_size": 0}, r"agent.batch_size=0.*at least 1"),
        (CONTINUOUS, {"num_critics": 0}, r"agent.num_critics=0.*at least 1"),
        (CONTINUOUS, {"target_period": 0}, r"agent.target_period=0"),
        (CONTINUOUS, {"target_tau": 2.0}, r"agent.target_tau=2.0"),
        (CONTINUOUS, {"initial_temperature": 0.0}, r"agent.initial_temperature=0.0 is not positive"),
        (CONTINUOUS, {"target_entropy": 0.7}, r"agent.target_entropy=0.7 is not below 0.6931.*use -1"),
        (DISCRETE, {"target_entropy": -2.0}, r"agent.target_entropy=-2.0 is not in \(0, 0.6931\).*0.3466"),
        (DISCRETE, {"target_entropy": 0.7}, r"agent.target_entropy=0.7 is not in \(0, 0.6931\)"),
        (DISCRETE, {"target_entropy_share": 1.0}, r"agent.target_entropy_share=1.0 is not in \(0, 1\)"),
    ],
)
def test_A28_bad_settings_are_refused(spec, settings, message):
    with pytest.raises(ValueError, match=message):
        SAC(spec=spec, network=NETWORK, **settings)


def test_A28_the_target_entropy_follows_from_the_actions():
    six = EnvSpec("six", Box((1,), np.float32), Box((6,), np.float32, -1.0, 1.0))
    assert SAC(spec=six, network=NETWORK).entropy_target == -6.0
    np.testing.assert_allclose(DISCRETE_AGENT.entropy_target, 0.346574, rtol=1e-5)
    share = dataclasses.replace(DISCRETE_AGENT, target_entropy_share=0.98)
    np.testing.assert_allclose(share.entropy_target, 0.98 * np.log(2))
    assert dataclasses.replace(DISCRETE_AGENT, target_entropy=0.1).entropy_target == 0.1


@pytest.mark.parametrize(
    ("spec", "network", "message"),
    [
        (CONTINUOUS, NetworkConfig(core="gru"), r"network.core=gru.*use network.core=none"),
        (CONTINUOUS, NetworkConfig(policy="normal"), r"network.policy=normal.*tanh_normal"),
        (EnvSpec("several", Box((1,), np.float32), MultiDiscrete((2, 3))), NETWORK, r"several has MultiDiscrete"),
    ],
)
def test_what_it_cannot_do_is_refused(spec, network, message):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(SAC(spec=spec, network=network).init_learner, KEY)
