import jax.numpy as jnp
import numpy as np
import pytest

from podracer.spaces import Box, Discrete, MultiDiscrete, check_observation, to_env_action, zeros

BOTH = pytest.mark.parametrize("xp", [np, jnp])


@BOTH
@pytest.mark.parametrize("start", [10, -1, 0])
def test_E04_discrete_actions_count_from_start(xp, start):
    space = Discrete(2, start)
    np.testing.assert_array_equal(to_env_action(space, xp.asarray([0, 1]), xp), [start, start + 1])


@BOTH
def test_E04_each_dimension_counts_from_its_start(xp):
    space = MultiDiscrete((2, 3), (10, -1))
    np.testing.assert_array_equal(to_env_action(space, xp.asarray([1, 2]), xp), [11, 1])
    np.testing.assert_array_equal(to_env_action(MultiDiscrete((2, 3)), xp.asarray([1, 2]), xp), [1, 2])


@BOTH
@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 10.0, [0.0, 5.0, 10.0]),
        (-0.4, 0.4, [-0.4, 0.0, 0.4]),
        (-1.0, 1.0, [-1.0, 0.0, 1.0]),
    ],
)
def test_E05_bounded_actions_are_scaled_once(xp, low, high, expected):
    space = Box((1,), np.float32, low, high)
    action = to_env_action(space, xp.asarray([[-1.0], [0.0], [1.0]]), xp)
    np.testing.assert_allclose(action[:, 0], expected, atol=1e-7)
    assert action.dtype == np.float32


def test_E05_actions_beyond_are_clipped_and_bounds_are_per_dimension():
    space = Box((2,), np.float64, np.array([-1.0, 0.0]), np.array([3.0, 0.5]))
    action = to_env_action(space, np.array([[-7.0, 7.0], [0.5, -0.5]], np.float32), np)
    # Half of the way up from the middle: −1 + 0.75 · 4 = 2; a quarter of the way: 0.25 · 0.5 = 0.125.
    np.testing.assert_array_equal(action, [[-1.0, 0.5], [2.0, 0.125]])
    assert action.dtype == np.float64


@pytest.mark.parametrize(
    ("low", "high", "bounded"),
    [(-1.0, 1.0, True), (-np.inf, np.inf, False), (np.array([-1.0, -np.inf]), 1.0, False), (-3.4028235e38, 1.0, False)],
)
def test_E05_infinite_bounds_are_seen(low, high, bounded):
    assert Box((2,), np.float32, low, high).is_bounded is bounded


def test_E07_zeros_have_the_tree_of_the_spaces():
    space = {"img": Box((2, 2), np.uint8), "goal": (Discrete(3), Box((), np.float32))}
    tree = zeros(space, (4,))
    check_observation(space, tree, (4,), "env")
    with pytest.raises(ValueError, match=r"env declares \['goal'\]\[0\] as int32\(4,\) but emits int64\(4,\)"):
        check_observation(space, {**tree, "goal": (np.zeros(4, np.int64), tree["goal"][1])}, (4,), "env")
    with pytest.raises(ValueError, match="env declares observations"):
        check_observation(space, tree["img"], (4,), "env")
