"""Policies without a value, for every kind of action and any leading dimensions."""

import jax
import numpy as np
import pytest

from podracer.networks.config import NetworkConfig
from podracer.networks.distributions import Categorical, DiagonalNormal, TanhNormal
from podracer.networks.policies import deterministic_policy, policy_network
from podracer.spaces import ACTION_MASK, Box, Discrete, EnvSpec

VECTOR = Box((3,), np.float32)
ACTION = Box((2,), np.float32, -1.0, 1.0)
NETWORK = NetworkConfig(hidden_sizes=(8,), convolution="patches")


def _spec(observation, action=ACTION):
    return EnvSpec("test", observation, action)


def _draw(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(
    ("config", "action", "continuous", "kind", "action_shape"),
    [
        (NETWORK, ACTION, "tanh_normal", TanhNormal, (2,)),
        (NETWORK, ACTION, "normal", DiagonalNormal, (2,)),
        (NETWORK, ACTION, "state_normal", DiagonalNormal, (2,)),
        (NetworkConfig(policy="tanh_normal"), ACTION, "tanh_normal", TanhNormal, (2,)),
        (NETWORK, Discrete(4), "tanh_normal", Categorical, ()),
    ],
)
@pytest.mark.parametrize("shape", [(4,), (5, 4)])
def test_the_distribution_is_the_one_asked_for(key, config, action, continuous, kind, action_shape, shape):
    network = policy_network(config, _spec(VECTOR, action), continuous)
    observation = _draw(*shape, 3)
    policy = network.apply(network.init(key, observation), observation)
    assert isinstance(policy, kind)
    assert policy.sample(key).shape == (*shape, *action_shape)
    assert policy.entropy().shape == shape


@pytest.mark.parametrize(("continuous", "depends"), [("normal", False), ("state_normal", True), ("tanh_normal", True)])
def test_the_deviation_depends_on_the_observation_where_it_should(key, continuous, depends):
    network = policy_network(NETWORK, _spec(VECTOR), continuous)
    observation = _draw(2, 3)
    std = network.apply(network.init(key, observation), observation).std
    assert np.all(std[0] != std[1]) == depends


def test_an_unbounded_policy_begins_as_wide_as_uniform_actions(key):
    network = policy_network(NETWORK, _spec(VECTOR), "state_normal")
    observation = _draw(50, 3)
    policy = network.apply(network.init(key, observation), observation)
    # Uniform on [-1, 1]: variance 4 / 12
    np.testing.assert_allclose(policy.std, np.sqrt(1 / 3), rtol=0.1)


def test_a_deterministic_policy_stays_in_bounds_and_begins_in_their_middle(key):
    network = deterministic_policy(NETWORK, _spec({"image": Box((10, 10, 4), np.uint8), "vector": VECTOR}))
    observation = {"image": np.full((5, 4, 10, 10, 4), 255, np.uint8), "vector": _draw(5, 4, 3)}
    params = jax.jit(network.init)(key, observation)
    action = network.apply(params, observation)
    assert action.shape == (5, 4, 2)
    assert np.all(np.abs(action) < 0.2)
    wild = network.apply(jax.tree.map(lambda x: 1000 * x, params), observation)
    assert np.all(np.abs(wild) <= 1) and np.any(np.abs(wild) == 1)


def test_A18_illegal_actions_have_no_probability(key):
    space = {"vector": VECTOR, ACTION_MASK: Box((4,), np.bool_)}
    network = policy_network(NETWORK, _spec(space, Discrete(4)), "tanh_normal")
    mask = np.array([[[1, 0, 1, 1], [0, 0, 0, 1]]], bool)  # [1, 2, 4]
    observation = {"vector": _draw(1, 2, 3), ACTION_MASK: mask}
    policy = network.apply(network.init(key, observation), observation)
    np.testing.assert_array_equal(np.exp(policy.log_probs) > 0, mask)


@pytest.mark.parametrize(
    ("make", "config", "action", "message"),
    [
        (policy_network, NetworkConfig(core="lstm"), ACTION, r"network.core=lstm.*use network.core=none"),
        (policy_network, NetworkConfig(policy="normal"), ACTION, r"network.policy=normal.*use network.policy=auto"),
        (deterministic_policy, NetworkConfig(core="gru"), ACTION, r"network.core=gru.*use network.core=none"),
        (deterministic_policy, NetworkConfig(policy="normal"), ACTION, r"network.policy=normal.*no distribution"),
        (deterministic_policy, NETWORK, Discrete(2), r"needs continuous actions.*Discrete"),
        (deterministic_policy, NETWORK, Box((2, 2), np.float32, -1.0, 1.0), r"shape \(2, 2\).*flatten"),
    ],
)
def test_what_does_not_fit_is_refused(make, config, action, message):
    arguments = ("tanh_normal",) if make is policy_network else ()
    with pytest.raises(ValueError, match=message):
        make(config, _spec(VECTOR, action), *arguments)
