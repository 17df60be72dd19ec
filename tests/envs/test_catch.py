import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.envs.base import EnvConfig
from podracer.envs.catch import make
from podracer.envs.checks import check_env

CONFIG = EnvConfig(suite="catch")


def play(env, policy, seed: int):
    """One episode; `policy(board)` says -1, 0 or 1. Returns the rewards, discounts, and boards."""
    key = jax.random.key(seed)
    step = jax.jit(env.step)
    state, timestep = jax.jit(env.reset)(key)
    timesteps = [timestep]
    while not timestep.is_last:
        move = policy(np.asarray(timestep.observation))
        state, timestep = step(key, state, jnp.int32(move + 1))
        timesteps.append(timestep)
    return timesteps


def follow(board) -> int:
    paddle = int(np.argmax(board[-1]))
    ball = int(np.argmax(board[:-1].any(axis=0)))
    return int(np.sign(ball - paddle))


def test_follower_catches_every_ball_in_nine_steps():
    for seed in range(6):
        timesteps = play(make(CONFIG), follow, seed)
        assert [float(t.reward) for t in timesteps] == [0] * 9 + [1]
        assert [float(t.discount) for t in timesteps] == [1] * 9 + [0]


def test_ball_that_is_missed_costs_one():
    timesteps = play(make(CONFIG), lambda board: -follow(board) or 1, seed=1)
    assert timesteps[-1].reward == -1


def test_board_shows_ball_and_paddle():
    timesteps = play(make(CONFIG), lambda board: -1, seed=0)
    first, second = np.asarray(timesteps[0].observation), np.asarray(timesteps[1].observation)
    assert first.dtype == np.bool_
    np.testing.assert_array_equal(first.sum(axis=1), [1, 0, 0, 0, 0, 0, 0, 0, 0, 1])
    np.testing.assert_array_equal(second.sum(axis=1), [0, 1, 0, 0, 0, 0, 0, 0, 0, 1])
    assert np.argmax(first[-1]) == 2  # the middle of five
    assert np.argmax(second[-1]) == 1
    assert np.argmax(timesteps[9].observation[-1]) == 0  # the wall stops the paddle


def test_B12_ball_falls_in_every_column():
    columns = jax.vmap(lambda key: make(CONFIG).reset(key)[0].ball_column)(jax.random.split(jax.random.key(0), 500))
    counts = np.bincount(columns, minlength=5)
    assert counts.min() > 70  # 100 expected, standard deviation 9
    assert len(counts) == 5


def test_E14_spec_holds_for_other_sizes():
    check_env(make(CONFIG), num_steps=100)
    check_env(make(EnvConfig(suite="catch", kwargs={"rows": 4, "columns": 3})), num_steps=20)


def test_wrong_sizes_and_names_are_refused():
    with pytest.raises(ValueError, match="rows=1"):
        make(EnvConfig(suite="catch", kwargs={"rows": 1}))
    with pytest.raises(ValueError, match=r"env\.kwargs.*'height'.*rows"):
        make(EnvConfig(suite="catch", kwargs={"height": 1}))
