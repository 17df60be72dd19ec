"""EnvPool as a `HostEnv`: its own environments, and scripted pools that play its protocol."""

import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces as gym

from podracer.envs import envpool
from podracer.envs.base import EnvConfig
from podracer.envs.envpool_host import EnvPoolHost
from podracer.envs.host_checks import check_host_env
from podracer.randomness import host_seeds
from podracer.types import StepType

FIRST, MID, LAST = StepType.FIRST, StepType.MID, StepType.LAST


def make(env_id, num_envs=2, num_threads=1, **config):
    return envpool.make(EnvConfig(suite="envpool", id=env_id, **config), num_envs, num_threads)


class ScriptedPool:
    """Returns rows of a script, `(reward, raw reward, terminated, truncated, game over)`, for one environment."""

    def __init__(self, script, env_ids=None):
        self.script = iter(script)
        self.env_ids = env_ids
        self.time = 0

    def _info(self, raw=0.0, game_over=False):
        env_id = np.array([0], np.int32) if self.env_ids is None else self.env_ids
        return {"env_id": env_id, "reward": np.float32([raw]), "terminated": np.int32([game_over])}

    def reset(self):
        return np.float32([[self.time]]), self._info()

    def step(self, action):
        del action
        self.time += 1
        reward, raw, terminated, truncated, game_over = next(self.script)
        return (
            np.float32([[self.time]]),
            np.float32([reward]),
            np.array([terminated]),
            np.array([truncated]),
            self._info(raw, game_over),
        )

    def close(self):
        pass


def scripted(pool, *, has_lives=True, num_envs=1):
    spec = SimpleNamespace(
        observation_space=gym.Box(-np.inf, np.inf, (1,)),
        action_space=gym.Discrete(2),
        action_array_spec={"action": SimpleNamespace(dtype=np.int32)},
        config=SimpleNamespace(max_episode_steps=4),
    )
    return EnvPoolHost("Scripted-v0", spec, lambda seeds: pool, num_envs, has_lives=has_lives)


def play(env, num_steps):
    action = np.zeros(env.num_envs, np.int32)
    return [env.reset(np.arange(env.num_envs)), *(env.step(action) for _ in range(num_steps))]


def column(timesteps, get):
    return [get(timestep)[0] for timestep in timesteps]


# Reward 5 a step, clipped to 1. A life is lost at step 2, the limit is reached at step 4 with lives
# left, the next game is over after two steps, the sixth in all. After each of these comes a row that resets.
PLAY, LIFE_LOST, LIMIT, GAME_OVER, RESET = (
    (1.0, 5.0, False, False, False),
    (1.0, 5.0, True, False, False),
    (1.0, 5.0, False, True, False),
    (1.0, 5.0, True, False, True),
    (0.0, 0.0, False, False, False),
)


def test_B15_returns_are_raw_and_over_whole_games_not_lives():
    script = [PLAY, LIFE_LOST, RESET, PLAY, LIMIT, RESET, PLAY, GAME_OVER, RESET]
    timesteps = play(scripted(ScriptedPool(script)), len(script))
    step_types = [FIRST, MID, LAST, FIRST, MID, LAST, FIRST, MID, LAST, FIRST]
    assert column(timesteps, lambda t: t.step_type) == step_types
    assert column(timesteps, lambda t: t.discount) == [1, 1, 0, 1, 1, 1, 1, 1, 0, 1]
    # What is learnt from is clipped, and 0 where nothing was done.
    assert column(timesteps, lambda t: t.reward) == [0, 1, 1, 0, 1, 1, 0, 1, 1, 0]
    # 4 steps of 5 up to the limit, the reset after the lost life not counted; then 2 steps of 5.
    assert column(timesteps, lambda t: t.extras.episode_return) == [0, 5, 10, 10, 15, 20, 0, 5, 10, 0]
    assert column(timesteps, lambda t: t.extras.episode_length) == [0, 1, 2, 2, 3, 4, 0, 1, 2, 0]
    ended = column(timesteps, lambda t: t.extras.ended)
    assert np.flatnonzero(ended).tolist() == [5, 8]


def test_B15_without_episodic_life_a_lost_life_ends_nothing():
    timesteps = play(scripted(ScriptedPool([PLAY, PLAY, PLAY, LIMIT])), 4)
    assert column(timesteps, lambda t: t.step_type) == [FIRST, MID, MID, MID, LAST]


def test_A03_a_truncation_bootstraps_from_its_own_last_observation():
    # The observation is the number of the call. V(o) = o, γ = 1, r = 0: δ = V(3) - V(2) = 1 at the truncated step.
    truncated, plain = (0.0, 0.0, False, True, False), (0.0, 0.0, False, False, False)
    timesteps = play(scripted(ScriptedPool([plain, plain, truncated, plain]), has_lives=False), 4)
    value = column(timesteps, lambda t: t.observation[:, 0])
    discount = column(timesteps, lambda t: t.discount)
    assert column(timesteps, lambda t: t.step_type) == [FIRST, MID, MID, LAST, FIRST]
    assert discount[3] * value[3] - value[2] == 1.0


def test_E03_a_game_over_on_the_step_of_the_limit_is_a_true_end():
    # EnvPool's `terminated` is False here, only `info` knows.
    (_, last) = play(scripted(ScriptedPool([(0.0, 0.0, False, True, True)])), 1)
    assert (last.step_type[0], last.discount[0], last.extras.ended[0]) == (LAST, 0.0, True)


@pytest.mark.parametrize("env_ids", [[], [1, 0], [0, 1, 2]], ids=["empty", "reordered", "too_many"])
def test_E10_a_batch_that_is_not_whole_and_in_order_is_refused(env_ids):
    pool = ScriptedPool([PLAY])
    env = scripted(pool, num_envs=2)
    pool.env_ids = np.arange(2)
    env.reset(np.arange(2))
    pool.env_ids = np.array(env_ids, np.int32)
    with pytest.raises(RuntimeError, match=f"returned {len(env_ids)} rows.*expected 2 rows"):
        env.step(np.zeros(2, np.int32))


@pytest.mark.parametrize("num_envs", [256, 300])
def test_E10_large_batches(num_envs):
    env = make("CartPole-v1", num_envs, num_threads=2)
    timesteps = play(env, 3)
    assert all(timestep.observation.shape == (num_envs, 4) for timestep in timesteps)
    env.close()


def test_E10_an_explicit_reset_starts_episodes_from_zero():
    env = make("CartPole-v1")
    assert play(env, 3)[-1].extras.episode_length.tolist() == [3, 3]
    timestep = env.reset(np.arange(2))
    assert timestep.is_first.all()
    assert timestep.extras.episode_return.tolist() == timestep.extras.episode_length.tolist() == [0, 0]
    assert env.step(np.zeros(2, np.int32)).extras.episode_return.tolist() == [1, 1]
    env.close()


@pytest.mark.parametrize(("user", "effective"), [(None, 500), (10, 10), (10_000, 10_000)])
def test_E03_the_users_limit_replaces_the_registered_one(user, effective):
    assert make("CartPole-v1", time_limit=user).spec.time_limit == effective


def test_E03_a_limit_of_5_truncates_the_fifth_step():
    env = make("Pendulum-v1", num_envs=1, time_limit=5)
    action = np.zeros((1, 1), np.float32)
    timesteps = [env.reset(np.arange(1)), *(env.step(action) for _ in range(6))]
    assert column(timesteps, lambda t: t.step_type) == [FIRST, MID, MID, MID, MID, LAST, FIRST]
    assert timesteps[5].discount[0] == 1.0
    assert timesteps[5].extras.episode_length[0] == 5
    env.close()


def test_B12_environments_of_different_actors_start_differently():
    observations = []
    for actor in range(2):
        env = make("CartPole-v1", num_envs=4)
        observations.append(env.reset(host_seeds(0, actor * 4 + np.arange(4))).observation)
        env.close()
    assert len(np.unique(np.concatenate(observations), axis=0)) == 8


def test_B12_seeds_of_runs_and_of_evaluation_are_disjoint():
    indices = np.arange(1000)
    seeds = [host_seeds(seed, indices, evaluation=evaluation) for seed in (0, 1) for evaluation in (False, True)]
    assert len(np.unique(seeds)) == 4 * 1000
    # EnvPool takes int32.
    assert np.min(seeds) >= 0 and np.max(seeds) < 2**31
    np.testing.assert_array_equal(seeds[0], host_seeds(0, indices))


def test_B12_the_same_seeds_give_the_same_episodes():
    first, again = (make("CartPole-v1", num_envs=3, num_threads=threads) for threads in (1, 2))
    for one, other in zip(play(first, 30), play(again, 30)):
        np.testing.assert_array_equal(one.observation, other.observation)


def test_B22_nothing_that_was_handed_out_changes_later():
    env = make("CartPole-v1")
    timesteps = [env.reset(np.arange(2))]
    copies = [timesteps[0].observation.copy()]
    for _ in range(200):
        timesteps.append(env.step(np.ones(2, np.int32)))
        copies.append(timesteps[-1].observation.copy())
    np.testing.assert_array_equal([timestep.observation for timestep in timesteps], copies)
    env.close()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "MiniGrid-Empty-5x5-v0", "Ant-v4"])
def test_E14_what_is_emitted_is_what_is_declared(env_id):
    env = make(env_id)
    check_host_env(env, num_steps=20)
    assert env.reset(np.arange(2)).is_first.all()
    env.close()


def test_float64_spaces_become_float32_for_the_agent_only():
    env = make("Ant-v4", num_envs=1)
    assert env.spec.observation.dtype == env.spec.action.dtype == np.float32
    assert env._actions(np.ones((1, 8), np.float32)).dtype == np.float64
    env.close()


@pytest.mark.parametrize(
    ("env_id", "action", "message"),
    [
        ("CartPole-v1", np.array([0, 2]), r"environment 1 is 2; actions have to be in \[0, 2\)"),
        ("CartPole-v1", np.array([-1, 0]), "environment 0 is -1"),
        ("CartPole-v1", np.zeros(3, int), r"shape \(2,\), got \(3,\)"),
        ("CartPole-v1", np.zeros(2, np.float32), "takes integer actions, got float32"),
        ("Pendulum-v1", np.array([[0.0], [np.nan]]), "environment 1 is .*nan.*; actions have to be finite"),
        ("Pendulum-v1", np.zeros((2, 1), int), "takes floating-point actions, got int64"),
        ("Pendulum-v1", np.zeros(2), r"shape \(2, 1\), got \(2,\)"),
    ],
)
def test_actions_are_checked_before_they_reach_envpool(env_id, action, message):
    env = make(env_id)
    env.reset(np.arange(2))
    with pytest.raises(ValueError, match=message):
        env.step(action)
    env.close()


def test_B10_starting_and_stopping_leaves_no_thread():
    def count():
        return len(os.listdir("/proc/self/task"))

    env, before = make("CartPole-v1", num_threads=2), count()
    for _ in range(5):
        env.reset(np.arange(2))
        env.reset(np.arange(2))
        assert count() > before
        env.close()
        assert count() == before
    env.close()


def test_steps_before_a_reset_are_refused():
    with pytest.raises(RuntimeError, match="has to be reset"):
        make("CartPole-v1").step(np.zeros(2, int))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"id": "Pong-v55"}, "no env.id='Pong-v55'; the nearest are Pong-v5"),
        (
            {"id": "Pong-v5", "kwargs": {"img_heigth": 42}},
            "no setting env.kwargs.img_heigth; did you mean 'img_height'",
        ),
        ({"id": "Pong-v5", "kwargs": {"seed": 1}}, "env.kwargs.seed is set by Podracer; use seed"),
        ({"id": "Pong-v5", "kwargs": {"max_episode_steps": 1}}, "use env.time_limit"),
        ({"id": "Pong-v5", "frame_stack": 2}, "use env.kwargs.stack_num=2"),
        ({"id": "Pong-v5", "preset": "impala", "reward_clip": 1.0}, "clips the rewards of Pong-v5 already"),
        ({"id": "CartPole-v1", "preset": "impala"}, "env.preset=impala is for Atari"),
        ({"id": "TicTacToe-v1"}, "has 2 players"),
    ],
)
def test_bad_configuration_is_refused_with_the_repair(config, message):
    with pytest.raises(ValueError, match=message):
        envpool.make(EnvConfig(suite="envpool", **config), 2, 1)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ImportError, match=r'pip install "podracer\[envpool\]"'):
        make("CartPole-v1")


@pytest.mark.parametrize(
    ("preset", "num_actions", "time_limit"),
    [("impala", 4, 27_000), ("baselines", 4, 100_000), ("machado18", 18, 3_600)],
)
def test_atari_presets(preset, num_actions, time_limit):
    env = make("Breakout-v5", preset=preset)
    assert (env.spec.action.num_values, env.spec.time_limit) == (num_actions, time_limit)
    assert make("Breakout-v5", preset=preset, time_limit=99).spec.time_limit == 99


def test_E06_a_lost_life_of_breakout_in_small_frames():
    env = make("Breakout-v5", num_envs=1, preset="impala", kwargs={"img_height": 42, "img_width": 42, "noop_max": 1})
    timestep = env.reset(np.arange(1))
    assert timestep.observation.shape == (1, *env.spec.observation.shape) == (1, 4, 42, 42)
    assert timestep.observation.dtype == np.uint8
    # The ball is started by FIRE (1) and lost, as nothing else is done.
    steps = 0
    while not timestep.is_last[0]:
        timestep = env.step(np.ones(1, np.int32))
        steps += 1
        assert steps < 200
    assert (timestep.discount[0], timestep.extras.ended[0], timestep.extras.episode_length[0]) == (0.0, False, steps)
    timestep = env.step(np.ones(1, np.int32))
    assert (timestep.is_first[0], timestep.extras.episode_length[0]) == (True, steps)
    env.close()
