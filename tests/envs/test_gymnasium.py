"""Gymnasium environments as a `HostEnv`: single ones, and vector environments in every mode of resetting."""

import itertools

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as gym
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from podracer.envs.base import EnvConfig
from podracer.envs.gymnasium import make
from podracer.envs.gymnasium_loop import EnvLoop
from podracer.envs.gymnasium_spaces import action_space, convert_observation, observation_space
from podracer.envs.gymnasium_vector import VectorLoop
from podracer.envs.host_actions import HostActions
from podracer.envs.host_checks import check_host_env
from podracer.faults import EnvFault
from podracer.spaces import Discrete, MultiDiscrete
from podracer.types import StepType

FIRST, MID, LAST = StepType.FIRST, StepType.MID, StepType.LAST


class Counter(gymnasium.Env):
    """Counts 0, 1, 2, ...; reward 1 a step; ends or is truncated on reaching `end`."""

    observation_space = gym.Box(0.0, 1000.0, (1,), np.float32)

    def __init__(self, end=3, *, truncates=False, both=False, actions=None, observe=None):
        self.end, self.truncates, self.both = end, truncates, both
        self.action_space = actions or gym.Discrete(2)
        self.received = []
        self._count = np.zeros(1, np.float32)
        if observe is not None:
            self.observation_space, self._observe = observe
        self.stepped_after_end = False

    def _observe(self, count):
        return count.copy()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._count[:] = 0
        return self._observe(self._count), {}

    def step(self, action):
        self.stepped_after_end |= bool(self._count[0] >= self.end)
        self.received.append(action)
        self._count += 1
        over = bool(self._count[0] >= self.end)
        terminated, truncated = over and not self.truncates, over and (self.truncates or self.both)
        return self._observe(self._count), 1.0, terminated, truncated, {}


def play(env, num_steps, action=None):
    if action is None:
        action = np.zeros((env.num_envs, *env.spec.action.shape), env.spec.action.dtype)
    return [env.reset(np.arange(env.num_envs)), *(env.step(action) for _ in range(num_steps))]


def transitions(timesteps, row):
    """The tuples `(s, r, s', terminated, truncated)` that are no resets."""
    for before, after in itertools.pairwise(timesteps):
        if before.step_type[row] != LAST:
            is_last, discount = after.is_last[row], after.discount[row]
            yield (
                int(before.observation[row, 0]),
                float(after.reward[row]),
                int(after.observation[row, 0]),
                bool(is_last and discount == 0),
                bool(is_last and discount == 1),
            )


def counters(mode, ends=(3, 5), **kwargs):
    # `end=end` binds each limit at once.
    return VectorLoop(SyncVectorEnv([lambda end=end: Counter(end, **kwargs) for end in ends], autoreset_mode=mode), "c")


def test_E01_every_mode_of_resetting_gives_the_same_transitions():
    episode = [(0, 1.0, 1, False, False), (1, 1.0, 2, False, False), (2, 1.0, 3, True, False)]
    for env in (*map(counters, AutoresetMode), EnvLoop([Counter(3), Counter(5)], "c")):
        timesteps = play(env, 7)
        assert list(transitions(timesteps, 0)) == episode * 2
        # The neighbour, whose episodes have another length, is not moved by these resets.
        assert [int(x.observation[1, 0]) for x in timesteps] == [0, 1, 2, 3, 4, 5, 0, 1]
        assert [x.step_type[0] for x in timesteps] == [FIRST, MID, MID, LAST, FIRST, MID, MID, LAST]
        assert [float(x.extras.episode_return[0]) for x in timesteps] == [0, 1, 2, 3, 0, 1, 2, 3]
        assert [bool(x.extras.ended[0]) for x in timesteps] == [False, False, False, True] * 2


@pytest.mark.parametrize("mode", AutoresetMode)
def test_E01_truncation_and_episodes_of_one_step_in_every_mode(mode):
    timesteps = play(counters(mode, ends=(1, 2), truncates=True), 4)
    assert [int(x.observation[0, 0]) for x in timesteps] == [0, 1, 0, 1, 0]
    assert [x.step_type[0] for x in timesteps] == [FIRST, LAST, FIRST, LAST, FIRST]
    assert [int(x.observation[1, 0]) for x in timesteps] == [0, 1, 2, 0, 1]
    assert all((x.discount == 1).all() for x in timesteps)


def test_E01_no_environment_is_stepped_after_its_end():
    for env in (counters(AutoresetMode.DISABLED), counters(AutoresetMode.SAME_STEP)):
        play(env, 12)
        assert not any(single.stepped_after_end for single in env._env.envs)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_E07_trees_in_every_mode(mode):
    space = gym.Dict({"count": Counter.observation_space, "pair": gym.Tuple((gym.Discrete(9), gym.MultiBinary(2)))})

    def observe(count):
        return {"count": count.copy(), "pair": (int(count[0]), np.array([1, 0], np.int8))}

    timesteps = play(counters(mode, observe=(space, observe)), 4)
    assert [int(x.observation["count"][0, 0]) for x in timesteps] == [0, 1, 2, 3, 0]
    assert [int(x.observation["pair"][0][0]) for x in timesteps] == [0, 1, 2, 3, 0]
    assert timesteps[0].observation["pair"][1].dtype == np.bool_


class OwnVector(VectorEnv):
    num_envs = 1
    single_observation_space, single_action_space = Counter.observation_space, gym.Discrete(2)

    def __init__(self, mode):
        self.metadata = {} if mode is None else {"autoreset_mode": mode}


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        (None, "autoreset_mode.* is None"),
        ("Sometimes", "'Sometimes'.* one of .*NEXT_STEP"),
        (AutoresetMode.SAME_STEP, "OwnVector that resets on the same step.*construct it with autoreset_mode="),
    ],
)
def test_E01_a_mode_that_is_unknown_or_cannot_be_converted_is_refused(mode, message):
    with pytest.raises(ValueError, match=message):
        VectorLoop(OwnVector(mode), "own")


def test_A03_the_last_observation_of_a_truncated_episode_is_its_own():
    # V(o) = o, γ = 1: δ of the last step is r + V(3) - V(2) = 1 + 1.
    timesteps = play(EnvLoop([Counter(3, truncates=True)], "c"), 3)
    before, after = timesteps[2:]
    assert (after.discount[0], after.is_last[0]) == (1.0, True)
    assert after.reward[0] + after.discount[0] * after.observation[0, 0] - before.observation[0, 0] == 2.0


@pytest.mark.parametrize("is_vector", [False, True])
def test_B22_an_environment_that_returns_the_same_array_each_step(is_vector):
    def make_one():
        return Counter(9, observe=(Counter.observation_space, lambda count: count))

    env = VectorLoop(SyncVectorEnv([make_one], copy=False), "c") if is_vector else EnvLoop([make_one()], "c")
    assert [int(x.observation[0, 0]) for x in play(env, 5)] == [0, 1, 2, 3, 4, 5]


def test_E11_an_environment_whose_observation_changes_its_shape_is_named():
    def make_one(index):
        observe = lambda count: np.zeros((2 if index == 1 and count == 2 else 1,), np.float32)  # noqa: E731
        return Counter(9, observe=(Counter.observation_space, observe))

    env = EnvLoop([make_one(index) for index in range(3)], "c")
    with pytest.raises(EnvFault, match=r"environment 1 gave an observation \(2,\) that is \(1,\)"):
        play(env, 5)


def test_B22_environments_that_share_an_array():
    shared = np.zeros(1, np.float32)

    def observe(count):
        shared[:] = count
        return shared

    ends = (2, 9)
    env = EnvLoop([Counter(end, observe=(Counter.observation_space, observe)) for end in ends], "c")
    assert [x.observation[:, 0].tolist() for x in play(env, 4)] == [[0, 0], [1, 1], [2, 2], [0, 3], [1, 4]]


@pytest.mark.parametrize(("user", "effective"), [(None, 500), (10, 10), (10_000, 10_000)])
def test_E03_the_users_limit_replaces_the_registered_one(user, effective):
    env = make(EnvConfig(suite="gymnasium", id="CartPole-v1", time_limit=user), 1, 1)
    assert env.spec.time_limit == effective


def test_E03_a_limit_of_5_truncates_the_fifth_step():
    timesteps = play(make(EnvConfig(suite="gymnasium", id="Pendulum-v1", time_limit=5), 1, 1), 6)
    assert [x.step_type[0] for x in timesteps] == [FIRST, MID, MID, MID, MID, LAST, FIRST]
    assert timesteps[5].discount[0] == 1.0
    assert timesteps[5].extras.episode_length[0] == 5


def test_E03_terminated_and_truncated_together_is_a_true_end():
    last = play(EnvLoop([Counter(2, both=True)], "c"), 2)[-1]
    assert (last.step_type[0], last.discount[0]) == (LAST, 0.0)


@pytest.mark.parametrize("start", [10, -1])
def test_E04_a_discrete_space_that_does_not_start_at_0(start):
    single = Counter(9, actions=gym.Discrete(2, start=start))
    env = EnvLoop([single], "c")
    assert (env.spec.action.num_values, env.spec.action.start) == (2, start)
    env.reset(np.arange(1))
    for action in (0, 1):
        env.step(np.array([action], np.int32))
    assert single.received == [start, start + 1]


def test_E04_vectors_of_discrete_values_with_starts():
    single = Counter(9, actions=gym.MultiDiscrete([2, 3], start=[10, -1]))
    env = EnvLoop([single], "c")
    assert env.spec.action == MultiDiscrete((2, 3), (10, -1))
    env.reset(np.arange(1))
    env.step(np.array([[1, 2]], np.int32))
    assert single.received[0].tolist() == [11, 1]
    with pytest.raises(ValueError, match=r"environment 0 is \[2 2\]; actions have to be in \[0, \[2, 3\]\)"):
        env.step(np.array([[2, 2]], np.int32))


def test_vectors_of_bits_and_of_bounded_integers_are_multi_discrete():
    assert action_space(gym.MultiBinary(3), "e") == MultiDiscrete((2, 2, 2))
    assert action_space(gym.Box(np.array([0, -1]), np.array([3, 9]), dtype=np.int32), "e") == MultiDiscrete(
        (4, 11), (0, -1)
    )


@pytest.mark.parametrize(
    ("low", "high", "dtype", "expected"),
    [
        ([0.0], [10.0], np.float32, [[0.0], [5.0], [10.0]]),
        ([-0.4], [0.4], np.float64, [[-0.4], [0.0], [0.4]]),
        ([0.0, -1.0], [10.0, 3.0], np.float32, [[0.0, -1.0], [5.0, 1.0], [10.0, 3.0]]),
    ],
)
def test_E05_continuous_actions_are_scaled_once_to_the_true_bounds(low, high, dtype, expected):
    space = gym.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)
    single = Counter(9, actions=space)
    env = EnvLoop([single], "c")
    assert env.spec.action.dtype == np.float32
    env.reset(np.arange(1))
    for value in (-1.0, 0.0, 1.0, -7.0, 7.0):
        env.step(np.full((1, len(low)), value, np.float32))
    np.testing.assert_allclose(single.received[:3], expected, atol=1e-12)
    # What the policy sampled beyond [-1, 1] is clipped.
    np.testing.assert_array_equal(single.received[3:], [low, high])
    assert all(space.contains(action) for action in single.received)


def test_E05_scaled_actions_never_leave_the_bounds_by_rounding():
    rng = np.random.default_rng(0)
    low, high = np.sort(rng.normal(size=(2, 1000)).astype(np.float32), axis=0)
    assert (low + (high - low) > high).any()
    space = gym.Box(low, high, dtype=np.float32)
    convert = HostActions(action_space(space, "e"), space.dtype, 1, "e")
    assert space.contains(convert(np.ones((1, 1000), np.float32))[0])


@pytest.mark.parametrize("high", [np.inf, np.finfo(np.float32).max])
def test_E05_an_infinite_bound_is_refused(high):
    with pytest.raises(ValueError, match=r"e takes actions in .*without finite bounds.*RescaleAction"):
        action_space(gym.Box(-1.0, high, (2,), np.float32), "e")


@pytest.mark.parametrize("space", [gym.Dict({"a": gym.Discrete(2)}), gym.Box(0, 9, (2, 2), np.int32)])
def test_actions_that_no_agent_can_make_are_refused(space):
    with pytest.raises(ValueError, match="supported are Discrete"):
        action_space(space, "e")


def test_E06_uint8_stays_uint8_and_64_bits_become_32():
    for given, declared in {"uint8": "uint8", "float64": "float32", "int64": "int32", "float16": "float16"}.items():
        space = gym.Box(0, 100, (2,), given)
        assert observation_space(space, "e").dtype == declared
        assert convert_observation(space, np.ones(2, given), copy=False).dtype == declared


def test_observations_that_count_from_elsewhere_count_from_0():
    space = gym.Discrete(3, start=5)
    assert observation_space(space, "e") == Discrete(3)
    observation = convert_observation(space, np.array([5, 7]), copy=False)
    assert (observation.tolist(), observation.dtype) == ([0, 2], np.int32)


def test_observations_without_a_shape_are_refused():
    with pytest.raises(ValueError, match=r"e\['words'\] emits observations in Text"):
        observation_space(gym.Dict({"words": gym.Text(5)}), "e")


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Blackjack-v1"])
def test_E14_what_is_emitted_is_what_is_declared(env_id):
    env = make(EnvConfig(suite="gymnasium", id=env_id), 2, 1)
    check_host_env(env, num_steps=100)
    env.close()
    env.close()


def test_B12_seeds_are_handed_on():
    env = make(EnvConfig(suite="gymnasium", id="CartPole-v1"), 3, 1)
    first = env.reset(np.array([1, 2, 3])).observation
    assert len(np.unique(first, axis=0)) == 3
    np.testing.assert_array_equal(env.reset(np.array([1, 2, 3])).observation, first)
    vector = VectorLoop(gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="sync"), "c")
    np.testing.assert_array_equal(vector.reset(np.array([1, 2, 3])).observation, first)


def test_a_vector_environment_that_takes_a_single_seed():
    check_host_env(VectorLoop(gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="vector_entry_point"), "c"))


def test_environments_of_a_batch_have_to_be_alike():
    with pytest.raises(ValueError, match=r"environment 1 has the spaces .*Discrete\(3\)"):
        EnvLoop([Counter(), Counter(actions=gym.Discrete(3))], "c")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"id": "CartPol-v1"}, "no env.id='CartPol-v1'; the nearest are CartPole-v1"),
        ({"id": "CartPole-v9"}, "no env.id='CartPole-v9'; the nearest are CartPole-v"),
        ({"id": "CartPole-v1", "kwargs": {"size": 3}}, "do not fit CartPole-v1: .*size"),
        ({"id": "CartPole-v1", "kwargs": {"max_episode_steps": 3}}, "use env.time_limit"),
    ],
)
def test_bad_configuration_is_refused_with_the_repair(config, message):
    with pytest.raises(ValueError, match=message):
        make(EnvConfig(suite="gymnasium", **config), 1, 1)
