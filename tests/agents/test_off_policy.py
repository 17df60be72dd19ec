import jax
import jax.numpy as jnp
import numpy as np

from podracer.agents.off_policy import uniform_actions
from podracer.spaces import ACTION_MASK, Box, Discrete, to_env_action


def test_E05_warm_up_is_uniform_over_the_bounds_of_each_dimension(key):
    low, high = np.array([0.0, -0.4, -3.0]), np.array([10.0, 0.4, 1.0])  # float64
    space = Box((3,), np.float64, low, high)
    canonical = uniform_actions(space, jnp.zeros((20_000, 2)), key)
    np.testing.assert_allclose(to_env_action(space, np.array([[-1.0] * 3, [0.0] * 3, [1.0] * 3]), np)[:, 0], [0, 5, 10])
    actions = to_env_action(space, np.asarray(canonical), np)
    assert canonical.dtype == jnp.float32
    assert np.all((low <= actions) & (actions <= high))
    # A tenth of the draws in each tenth of the range: deviation √(.1 · .9 / 20000) = .0021.
    tenths = ((actions - low) / (high - low) * 10).astype(int).clip(0, 9)
    shares = np.stack([np.mean(tenths == tenth, axis=0) for tenth in range(10)])
    np.testing.assert_allclose(shares, 0.1, atol=5 * 0.0021)


def test_A18_warm_up_takes_every_legal_action_as_often_and_no_other(key):
    mask = np.tile(np.array([[1, 0, 1, 1], [0, 1, 0, 0]], bool), (10_000, 1))
    actions = np.asarray(uniform_actions(Discrete(4), {"x": mask[:, :1], ACTION_MASK: mask}, key))
    assert np.all(actions[1::2] == 1)
    np.testing.assert_allclose(np.bincount(actions[::2], minlength=4) / 10_000, [1 / 3, 0, 1 / 3, 1 / 3], atol=0.025)
    assert set(np.unique(uniform_actions(Discrete(4), mask, key))) == set(range(4))


def test_another_key_draws_other_actions():
    space = Box((1,), np.float32, -1.0, 1.0)
    draws = [uniform_actions(space, jnp.zeros((4, 1)), jax.random.key(seed)) for seed in (0, 1)]
    assert not np.any(draws[0] == draws[1])
