"""Critics are independent of each other, read the action, and take any leading dimensions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.networks.config import NetworkConfig
from podracer.networks.critics import critics
from podracer.spaces import ACTION_MASK, Box, Discrete, EnvSpec, MultiDiscrete

VECTOR = Box((3,), np.float32)
IMAGE = Box((10, 10, 4), np.uint8)
ACTION = Box((2,), np.float32, -1.0, 1.0)
NETWORK = NetworkConfig(hidden_sizes=(8,), convolution="patches")


def _spec(observation, action=ACTION):
    return EnvSpec("test", observation, action)


def _draw(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(4,), (5, 4), (2, 5, 4)])
@pytest.mark.parametrize("num_atoms", [1, 7])
def test_the_values_of_continuous_actions_have_the_leading_dimensions_of_the_observation(key, shape, num_atoms):
    network = critics(NETWORK, _spec(VECTOR), 3, num_atoms)
    observation, action = _draw((*shape, 3)), _draw((*shape, 2), 1)
    params = network.init(key, observation, action)
    values = network.apply(params, observation, action)
    assert values.shape == (3, *shape) + ((7,) if num_atoms > 1 else ())
    # Each row by itself.
    index = (-1,) * len(shape)
    alone = network.apply(params, observation[index][None], action[index][None])
    np.testing.assert_allclose(alone[:, 0], values[(slice(None), *index)], rtol=1e-5, atol=1e-6)


def test_critics_have_parameters_and_gradients_of_their_own(key):
    network = critics(NETWORK, _spec(VECTOR), 2)
    observation, action = _draw((6, 3)), _draw((6, 2), 1)
    params = network.init(key, observation, action)
    kernels = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim == 3]
    assert len(kernels) == 2 and all(kernel.shape[0] == 2 for kernel in kernels)
    assert all(np.max(np.abs(kernel[0] - kernel[1])) > 0.01 for kernel in kernels)
    gradients = jax.grad(lambda params: jnp.sum(network.apply(params, observation, action)[0]))(params)
    assert any(np.any(leaf[0] != 0) for leaf in jax.tree.leaves(gradients))
    assert all(np.all(leaf[1] == 0) for leaf in jax.tree.leaves(gradients))


def test_a_golden_value_without_hidden_layers():
    network = critics(NetworkConfig(hidden_sizes=()), _spec(Box((1,), np.float32)), 2)
    dense = {"kernel": jnp.array([[[1.0], [2.0], [3.0]], [[4.0], [0.0], [0.0]]]), "bias": jnp.array([[0.5], [0.0]])}
    params = {"params": {"critics": {"Dense_0": dense}}}
    values = network.apply(params, jnp.array([[2.0]]), jnp.array([[1.0, -1.0]]))
    # 1·2 + 2·1 − 3·1 + .5;  4·2
    np.testing.assert_allclose(values, [[1.5], [8.0]])


@pytest.mark.parametrize(
    "space", [VECTOR, IMAGE, {"image": IMAGE, "vector": VECTOR}], ids=["vector", "image", "image_and_vector"]
)
def test_every_value_depends_on_the_action(key, space):
    network = critics(NETWORK, _spec(space), 2)
    observation = jax.tree.map(lambda leaf: np.abs(_draw((4, *leaf.shape))).astype(leaf.dtype), space)
    action = _draw((4, 2), 1)
    params = jax.jit(network.init)(key, observation, action)
    for critic in range(2):
        slopes = jax.grad(lambda action, critic=critic: jnp.sum(network.apply(params, observation, action)[critic]))(
            action
        )
        assert slopes.shape == (4, 2) and np.all(slopes != 0)


def test_A18_all_discrete_actions_are_valued_and_illegal_ones_lowest(key):
    space = {"vector": VECTOR, ACTION_MASK: Box((4,), np.bool_)}
    network = critics(NETWORK, _spec(space, Discrete(4)), 2)
    mask = np.array([[1, 0, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]], bool)
    observation = {"vector": _draw((3, 3)), ACTION_MASK: mask}
    params = network.init(key, observation)
    values = network.apply(params, observation)
    assert values.shape == (2, 3, 4)
    is_legal = mask | ~mask.any(-1, keepdims=True)  # none is legal at an end
    np.testing.assert_array_equal(np.asarray(values) == np.finfo(np.float32).min, np.broadcast_to(~is_legal, (2, 3, 4)))
    assert network.apply(params, jax.tree.map(lambda x: x[None], observation)).shape == (2, 1, 3, 4)


@pytest.mark.parametrize(
    ("config", "action", "num_atoms", "message"),
    [
        (NetworkConfig(core="gru"), ACTION, 1, r"network.core=gru.*use network.core=none"),
        (NETWORK, MultiDiscrete((2, 3)), 1, r"MultiDiscrete.*agent=ppo"),
        (NETWORK, Discrete(2), 51, r"needs continuous actions.*Discrete"),
        (NETWORK, Box((2, 2), np.float32, -1.0, 1.0), 1, r"shape \(2, 2\).*flatten"),
    ],
)
def test_what_cannot_be_valued_is_refused(config, action, num_atoms, message):
    with pytest.raises(ValueError, match=message):
        critics(config, _spec(VECTOR, action), 2, num_atoms)
