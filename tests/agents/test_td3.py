import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.agents.off_policy import ActorParams, join_sequence
from podracer.agents.parts import Statistics
from podracer.agents.td3 import TD3, Params
from podracer.envs.autoreset import AutoReset
from podracer.envs.probe import ContinuousAction
from podracer.envs.wrappers import RecordEpisodes
from podracer.networks.config import NetworkConfig
from podracer.runners.unroll import ActorCarry, unroll_scan
from podracer.types import PolicySnapshot, StepType, TimeStep
from tests.agents.transitions import CONTINUOUS, DISCRETE, NETWORK, F, L, M, critics_params, dense, make_batch

STATISTICS = Statistics((), ())
AGENT = TD3(spec=CONTINUOUS, network=NETWORK, discount_factor=0.5)
DDPG = dataclasses.replace(AGENT, num_critics=1, policy_period=1, target_period=1, target_noise=0.0)
D4PG = dataclasses.replace(DDPG, distribution="categorical", num_atoms=3, value_min=0.0, value_max=2.0)
KEY = jax.random.key(3)


def policy_params(slope=0.5, bias=0.0):
    """Of π(s) = tanh(slope · s + bias)."""
    return {"params": {"head": dense([[slope]], [bias])}}


def critics_loss(agent, params, target_params, batch, weight=1.0):
    transition = join_sequence(batch.trajectory.steps, STATISTICS, agent.discount_factor)
    count, weight = jnp.sum(transition.valid, dtype=jnp.float32), jnp.full(transition.valid.shape, weight)
    return jax.jit(agent.critics_loss)(params, target_params, transition, weight, KEY, count)


@functools.cache
def compiled(agent):
    return jax.jit(agent.init_learner), jax.jit(functools.partial(agent.update, progress=jnp.float32(0.0)))


def init(agent):
    return compiled(agent)[0](KEY)


def updated(agent, state, batch, key=KEY):
    return compiled(agent)[1](state, batch, key)


# The second is truncated, the third truly ends, the fourth joins two episodes.
BATCH = make_batch(
    observation=[[1, 2, 1, 9], [3, -1, 4, 9]],
    action=[[0.5, -1.0, 1.0, 0], [0, 0, 0, 0]],
    reward=[[0, 0, 0, 0], [1, 2, 3, 50]],
    discount=[[1, 1, 1, 1], [1, 1, 0, 1]],
    step_type=[[F, M, M, L], [M, L, L, F]],
)


def test_golden_loss_of_the_critics():
    params = critics_params((1, 2, 0), (-1, 1, 0.5))
    targets = Params(policy_params(), critics_params((2, 0, 0), (0, 3, 1)))
    loss, (metrics, priorities) = critics_loss(AGENT, params, targets, BATCH)
    s, a, next_s = np.array([1, 2, 1]), np.array([0.5, -1, 1]), np.array([3, -1, 4])
    noise = np.clip(0.2 * np.asarray(jax.random.normal(KEY, (4, 1)))[:3, 0], -0.5, 0.5)
    next_a = np.clip(np.tanh(0.5 * next_s) + noise, -1, 1)
    target = np.array([1, 2, 3]) + np.array([0.5, 0.5, 0]) * np.minimum(2 * next_s, 3 * next_a + 1)
    q = np.stack([s + 2 * a, -s + a + 0.5])
    np.testing.assert_allclose(loss, np.mean(np.sum(0.5 * (q - target) ** 2, 0)), rtol=1e-5)
    np.testing.assert_allclose(priorities[:3], np.mean(np.abs(q - target), 0), rtol=1e-5)
    np.testing.assert_allclose(metrics["q_value"], np.mean(q), rtol=1e-5)
    half, _ = critics_loss(AGENT, params, targets, BATCH, weight=0.5)
    np.testing.assert_allclose(half, 0.5 * loss, rtol=1e-6)


def test_without_noise_and_twin_it_is_ddpg():
    params = critics_params((1, 2, 0))
    targets = Params(policy_params(), critics_params((0, 3, 1)))
    loss, _ = critics_loss(DDPG, params, targets, BATCH)
    # y = 1 + .5 (3 tanh 1.5 + 1), 2 + .5 (3 tanh −.5 + 1), 3;  Q = 2, 0, 3
    np.testing.assert_allclose(loss, 0.5 * ((2.857722 - 2) ** 2 + (1.806824 - 0) ** 2 + 0) / 3, rtol=1e-5)


def test_A08_several_steps_bootstrap_with_the_power_of_the_discount_that_is_left():
    agent = dataclasses.replace(DDPG, n_step=2)
    assert agent.sequence_length == 3
    # Two steps; one that is truncated, and padded as the replay does; one that truly ends.
    batch = make_batch(
        observation=[[1, 1, 1], [2, 4, 4], [3, 4, 4]],
        action=[[0, 0, 0]] * 3,
        reward=[[0, 0, 0], [1, 1, 1], [2, 0, 0]],
        discount=[[1, 1, 1], [1, 1, 0], [1, 1, 1]],
        step_type=[[M, M, M], [M, L, L], [M, F, F]],
    )
    targets = Params(policy_params(0.0), critics_params((10, 0, 0)))
    _, (_, priorities) = critics_loss(agent, critics_params((0, 0, 0)), targets, batch)
    # 1 + .5 · 2 + .25 · 30;  1 + .5 · 40;  1
    np.testing.assert_allclose(priorities, [9.5, 21.0, 1.0], rtol=1e-6)


def categorical_params(*logits):
    """Of critics whose distributions are the same everywhere."""
    kernel = np.zeros((len(logits), 2, 3))
    return {"params": {"critics": {"Dense_0": dense(kernel, logits)}}}


def test_A13_golden_loss_of_a_distribution():
    # Atoms 0, 1, 2; the target critic has (.2, .3, .5), and γ is ½: r + ½ z.
    batch = make_batch(
        observation=[[0, 0, 0]] * 2,
        action=[[0, 0, 0]] * 2,
        reward=[[0, 0, 0], [1.0, 0.5, 0.5]],
        discount=[[1, 1, 1], [1, 1, 0]],
        step_type=[[F, F, F], [M, L, L]],
    )
    targets = Params(policy_params(0.0), categorical_params(np.log([0.2, 0.3, 0.5])))
    loss, (metrics, priorities) = critics_loss(D4PG, categorical_params([0.0, 0.0, 0.0]), targets, batch)
    # 1, 1.5, 2 with (.2, .3, .5): (0, .35, .65);  .5, 1, 1.5: (.1, .65, .25);  the end, .5: (.5, .5, 0)
    divergence = [
        np.sum([p * np.log(p / (1 / 3)) for p in target if p])
        for target in ([0, 0.35, 0.65], [0.1, 0.65, 0.25], [0.5, 0.5, 0])
    ]
    np.testing.assert_allclose(priorities, divergence, rtol=1e-5)
    np.testing.assert_allclose(loss, np.mean(divergence), rtol=1e-5)
    np.testing.assert_allclose(metrics["q_value"], 1.0, rtol=1e-6)


def test_of_several_distributions_the_one_of_the_lowest_mean_counts():
    agent = dataclasses.replace(D4PG, num_critics=2)
    low, high = np.log([0.2, 0.6, 0.2]), np.log([0.3, 0.1, 0.6])  # means 1 and 1.3
    batch = make_batch([[0]] * 2, [[0]] * 2, [[0], [0.0]], [[1], [1]], [[F], [M]])
    online = categorical_params([0.0, 0.0, 0.0], [1.0, 0.0, 0.0])
    losses = [
        critics_loss(agent, online, Params(policy_params(0.0), categorical_params(*order)), batch)[0]
        for order in ([low, high], [high, low], [low, low], [high, high])
    ]
    np.testing.assert_allclose(losses[:2], [losses[2]] * 2, rtol=1e-6)
    assert abs(losses[3] - losses[2]) > 0.01


@pytest.mark.parametrize("distribution", ["none", "categorical"])
def test_the_policy_climbs_the_first_critic(distribution):
    agent = dataclasses.replace(AGENT, distribution=distribution, num_atoms=3, value_min=0.0, value_max=2.0)
    if distribution == "none":
        params = critics_params((0, 2, 0), (0, -5, 0))
    else:  # the logit of the highest atom grows with the action; in the second critic that of the lowest
        kernel = np.zeros((2, 2, 3))
        kernel[0, 1, 2] = kernel[1, 1, 0] = 1.0
        params = {"params": {"critics": {"Dense_0": dense(kernel, np.zeros((2, 3)))}}}
    transition = join_sequence(BATCH.trajectory.steps, STATISTICS, 0.5)
    loss, gradient = jax.value_and_grad(agent.policy_loss)(
        policy_params(0.0, 0.1), params, transition, jnp.float32(3.0)
    )
    a = np.tanh(0.1)
    # −2a, of slope −2 (1 − a²);  −(1 + 2 eᵃ) / (2 + eᵃ), of slope −3 eᵃ / (2 + eᵃ)² (1 − a²)
    e = np.exp(a)
    value, slope = (2 * a, 2.0) if distribution == "none" else ((1 + 2 * e) / (2 + e), 3 * e / (2 + e) ** 2)
    np.testing.assert_allclose(loss, -value, rtol=1e-5)
    np.testing.assert_allclose(gradient["params"]["head"]["bias"], [-slope * (1 - a**2)], rtol=1e-5)


def changes(before, after):
    return {
        name: not jax.tree.all(jax.tree.map(np.array_equal, *pair))
        for name, *pair in zip(before._fields, before, after)
    }


def test_the_policy_and_the_targets_are_delayed_on_the_counter_of_updates():
    agent = dataclasses.replace(AGENT, policy_period=3, target_period=2)
    state, moved = init(agent), []
    for _ in range(6):
        before, (state, _) = state, updated(agent, state, BATCH)
        changed = changes(before.trained.params, state.trained.params)
        # The optimiser of the policy, too, takes a step only with it.
        assert changes(before.trained.opt_state, state.trained.opt_state) == changed
        assert changed["critics"]
        moved.append((changed["policy"], any(changes(before.target_params, state.target_params).values())))
    assert moved == [(False, False), (False, True), (True, False), (False, True), (False, False), (True, True)]
    assert state.trained.opt_state.policy.count == 2 and state.trained.opt_state.critics.count == state.updates == 6


def test_A29_target_networks_move_by_tau():
    agent = dataclasses.replace(DDPG, target_tau=0.25)
    before = init(agent)
    after, _ = updated(agent, before, BATCH)
    expected = jax.tree.map(lambda old, new: 0.75 * old + 0.25 * new, before.target_params, after.trained.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), after.target_params, expected)
    assert all(changes(before.target_params, after.target_params).values())


def test_A35_another_key_smooths_by_other_noise():
    losses = [updated(AGENT, init(AGENT), BATCH, jax.random.key(seed))[1].metrics["critics_loss"] for seed in (1, 1, 2)]
    assert losses[0] == losses[1] != losses[2]


def snapshot(params, has_learnt=True):
    return PolicySnapshot(ActorParams(params, STATISTICS, jnp.array(has_learnt)), jnp.float32(0.0), jnp.int32(0))


def test_A33_noise_is_added_before_the_action_is_bounded_and_recorded(key):
    size = 20_000
    observation = jnp.where(jnp.arange(size) % 2, 100.0, 0.0)[:, None]
    timestep = TimeStep(jnp.full((size,), M), jnp.zeros((size,)), jnp.ones((size,)), observation)
    agent = dataclasses.replace(AGENT, exploration_noise=0.2)
    _, output = agent.act(snapshot(policy_params(1.0)), (), timestep, key)
    middle, edge = output.action[::2, 0], output.action[1::2, 0]
    np.testing.assert_allclose([np.mean(middle), np.std(middle)], [0.0, 0.2], atol=0.01)
    np.testing.assert_allclose(np.mean(edge == 1.0), 0.5, atol=0.02)
    assert np.max(edge) == 1.0
    _, greedy = agent.act(snapshot(policy_params(1.0), has_learnt=False), (), timestep, key, evaluation=True)
    np.testing.assert_array_equal(greedy.action, jnp.tanh(observation))
    # Uniform before the first update.
    _, output = agent.act(snapshot(policy_params(1.0), has_learnt=False), (), timestep, key)
    np.testing.assert_allclose(np.std(output.action), 2 / np.sqrt(12), atol=0.01)


def test_A33_E05_the_environment_gets_the_recorded_action_in_its_own_range(key):
    env = AutoReset(RecordEpisodes(ContinuousAction(low=0.0, high=10.0, target=5.0)))
    agent = TD3(spec=env.spec, network=NETWORK, unroll_length=40, exploration_noise=1.0)

    def unroll(key):
        policy = PolicySnapshot(
            agent.actor_params(agent.init_learner(key))._replace(has_learnt=jnp.array(True)), 0.0, 0
        )
        carry = ActorCarry(*env.reset(key, 50), agent.init_actor(key, jnp.arange(50), 50))
        return unroll_scan(agent, env, policy, carry, key, key, 0)[1]

    steps = jax.jit(unroll)(key).steps
    action, reward = steps.action[:-1, :, 0], steps.timestep.reward[1:]
    acted = steps.timestep.step_type[:-1] != StepType.LAST
    np.testing.assert_allclose(reward[acted], -np.square(5.0 * action[acted]), rtol=1e-4, atol=1e-4)
    assert np.max(np.abs(action)) == 1.0  # a third of the noise is beyond the bounds


def test_actors_act_at_random_until_the_first_update():
    state = init(AGENT)
    assert not AGENT.actor_params(state).has_learnt
    state, _ = updated(AGENT, state, BATCH)
    assert AGENT.actor_params(state).has_learnt


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, r"agent.batch_size=0.*at least 1"),
        ({"n_step": 0}, r"agent.n_step=0.*at least 1"),
        ({"num_critics": 0}, r"agent.num_critics=0.*at least 1"),
        ({"policy_period": 0}, r"agent.policy_period=0.*at least 1"),
        ({"num_atoms": 1}, r"agent.num_atoms=1.*at least 2"),
        ({"value_min": 1.0, "value_max": 1.0}, r"agent.value_min=1.0 is not below agent.value_max=1.0"),
        ({"target_period": 0}, r"agent.target_period=0"),
        ({"target_tau": -0.1}, r"agent.target_tau=-0.1"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        TD3(spec=CONTINUOUS, network=NETWORK, **settings)


@pytest.mark.parametrize(
    ("spec", "network", "message"),
    [
        (CONTINUOUS, NetworkConfig(core="lstm"), r"network.core=lstm.*use network.core=none"),
        (CONTINUOUS, NetworkConfig(policy="tanh_normal"), r"network.policy=tanh_normal.*no distribution"),
        (DISCRETE, NETWORK, r"needs continuous actions, but line has Discrete"),
    ],
)
def test_what_it_cannot_do_is_refused(spec, network, message):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(TD3(spec=spec, network=network).init_learner, KEY)
