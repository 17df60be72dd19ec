import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.agents.exploration import epsilon_ladder, explore, scheduled_epsilon
from podracer.spaces import ACTION_MASK, Discrete


@pytest.mark.parametrize(
    ("progress", "fraction", "expected"),
    [(0.0, 1.0, 1.0), (0.5, 1.0, 0.55), (1.0, 1.0, 0.1), (0.1, 0.2, 0.55), (0.6, 0.2, 0.1), (0.0, 0.0, 0.1)],
)
def test_A30_epsilon_falls_linearly_with_the_budget(progress, fraction, expected):
    constant = scheduled_epsilon(jnp.float32(progress), 1.0, 0.1, fraction)
    traced = jax.jit(scheduled_epsilon)(jnp.float32(progress), 1.0, 0.1, fraction)
    np.testing.assert_allclose([constant, traced], expected, rtol=1e-5)


def test_the_ladder_golden():
    # ε = .4, α = 7: .4, .4^(1 + 7/2), .4⁸; every device has its own rungs.
    ladder = [0.4, 0.4**4.5, 0.4**8]
    np.testing.assert_allclose(epsilon_ladder(0.4, 7.0, jnp.arange(3), 3), ladder, rtol=1e-5)
    np.testing.assert_allclose(epsilon_ladder(0.4, 7.0, jnp.array([2, 0]), 3), [ladder[2], ladder[0]], rtol=1e-5)
    np.testing.assert_allclose(epsilon_ladder(0.4, 7.0, jnp.array([0]), 1), [0.4], rtol=1e-6)


def test_A18_every_environment_explores_legal_actions_at_its_own_rate():
    size = 40_000
    mask = jnp.broadcast_to(jnp.array([True, False, True, True]), (size, 4))
    epsilon = jnp.where(jnp.arange(size) % 2 == 0, 0.75, 0.0)
    actions = explore(
        jax.random.key(0), jnp.full((size,), 2, jnp.int32), epsilon, Discrete(4), {"x": epsilon, ACTION_MASK: mask}
    )
    assert actions.dtype == jnp.int32
    assert np.all(actions[1::2] == 2)
    # Of 20,000: a quarter stays, and of the rest each legal action gets a third; deviation √(.25 · .75 / 20000) = .003.
    shares = np.bincount(actions[::2], minlength=4) / 20_000
    np.testing.assert_allclose(shares, [0.25, 0.0, 0.5, 0.25], atol=5 * 0.003)
