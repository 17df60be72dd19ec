import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.networks.action_values import CategoricalReturns, ExpectedReturns, QHead, QuantileReturns
from podracer.networks.config import NetworkConfig
from podracer.networks.models import q_network
from podracer.networks.noisy import NOISE
from podracer.spaces import ACTION_MASK, Box, Discrete, EnvSpec

RETURNS = [ExpectedReturns(), CategoricalReturns(5, -1.0, 1.0), QuantileReturns(4)]
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 6)), jnp.float32)
MASK = jnp.array([[[1, 0, 1, 1], [1, 1, 1, 1], [0, 0, 1, 0]], [[1, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 1]]], bool)


def head(returns=RETURNS[0], **settings):
    return QHead(**{"num_actions": 4, "returns": returns, "sizes": (), "activation": nn.relu, "duelling": False,
                    "noisy": False} | settings)  # fmt: skip


def random_params(module, *inputs):
    shapes = jax.eval_shape(module.init, jax.random.key(0), *inputs)
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), shapes)


def test_means_golden():
    # logits (0, log 2, 0): p = (¼, ½, ¼) on (-2, 0, 2); and (2 + 4 + 9) / 3
    logits = jnp.log(jnp.array([1.0, 2.0, 1.0]))
    np.testing.assert_allclose(CategoricalReturns(3, -2.0, 2.0).mean(logits), 0.0, atol=1e-6)
    np.testing.assert_allclose(CategoricalReturns(3, 0.0, 4.0).mean(logits), 2.0, rtol=1e-6)
    np.testing.assert_allclose(QuantileReturns(3).mean(jnp.array([2.0, 4.0, 9.0])), 5.0)
    np.testing.assert_allclose(CategoricalReturns(3, -2.0, 2.0).atoms, [-2, 0, 2])


@pytest.mark.parametrize("duelling", [False, True])
@pytest.mark.parametrize("returns", RETURNS)
def test_A18_illegal_actions_have_the_lowest_value_and_the_others_their_mean(returns, duelling):
    module = head(returns, sizes=(7,), duelling=duelling)
    params = random_params(module, X, None)
    values = module.apply(params, X, MASK)
    assert values.outputs.shape == (2, 3, 4, returns.num_outputs)
    assert jnp.all(jnp.isfinite(values.outputs))
    # Where none is legal all are: the last observation of an episode that was truncated has a value.
    is_legal = MASK | ~np.any(MASK, -1, keepdims=True)
    expected = np.where(is_legal, returns.mean(values.outputs), np.finfo(np.float32).min)
    np.testing.assert_allclose(values.q_value, expected, rtol=1e-6)
    unmasked = module.apply(params, X, None)
    np.testing.assert_allclose(unmasked.q_value, returns.mean(unmasked.outputs), rtol=1e-6)


def test_duelling_golden():
    # A = (1, 2, 6), V = 10: 10 + A − 3, and with the last action illegal 10 + A − 1.5.
    module = head(num_actions=3, duelling=True)
    bias = {"Dense_0": jnp.array([1.0, 2.0, 6.0]), "Dense_1": jnp.array([10.0])}
    layers = {name: {"kernel": jnp.zeros((6, len(b))), "bias": b} for name, b in bias.items()}
    apply = lambda mask: module.apply({"params": layers}, X[0, :1], mask)  # noqa: E731
    np.testing.assert_allclose(apply(None).q_value, [[8.0, 9.0, 13.0]])
    np.testing.assert_allclose(apply(jnp.array([[True, True, False]])).q_value[0, :2], [9.5, 10.5])
    np.testing.assert_allclose(apply(jnp.array([[False, False, False]])).outputs[..., 0], [[8.0, 9.0, 13.0]])


def test_a_duelling_network_learns_nothing_of_illegal_actions():
    module = head(duelling=True)
    params = random_params(module, X, None)
    mask = jnp.broadcast_to(jnp.array([True, True, False, True]), MASK.shape)
    value = lambda params: jnp.sum(module.apply(params, X, mask).q_value[..., 0])  # noqa: E731
    gradient = jax.grad(value)(params)["params"]["Dense_0"]["kernel"]
    np.testing.assert_array_equal(gradient[:, 2], 0.0)
    assert np.all(np.abs(gradient[:, 0]) > 0)


@pytest.mark.parametrize("core", ["none", "gru"])
def test_a_network_is_noisy_only_with_a_key(core):
    space = {"x": Box((3,), np.float32), ACTION_MASK: Box((4,), np.bool_)}
    config = NetworkConfig(hidden_sizes=(8,), head_sizes=(8,), core=core, core_size=8, duelling=True, noisy=True)
    network = q_network(config, EnvSpec("test", space, Discrete(4)), QuantileReturns(5))
    observation = {"x": X[..., :3], ACTION_MASK: MASK.at[1, 1, 2].set(True)}
    is_first, memory = jnp.zeros((2, 3), bool), network.initial_memory(3)
    params = random_params(network, memory, jax.tree.map(lambda x: x[0], observation), is_first[0])

    def unroll(*key):
        rngs = {NOISE: jax.random.key(*key)} if key else {}
        return network.apply(params, memory, observation, is_first, method="unroll", rngs=rngs)[1].q_value

    np.testing.assert_array_equal(unroll(), unroll())
    np.testing.assert_array_equal(unroll(1), unroll(1))
    legal = np.asarray(observation[ACTION_MASK])
    assert not np.any((unroll(1) == unroll(2)) & legal)
    assert not np.any((unroll(1) == unroll()) & legal)
