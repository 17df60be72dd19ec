"""The start-up check of host environments has to find what is wrong with them."""

import numpy as np
import pytest

from podracer.envs.host_checks import check_host_env, random_legal_actions
from podracer.envs.host_stream import NextStepStream
from podracer.spaces import ACTION_MASK, Box, Discrete, EnvSpec, MultiDiscrete

B = 2


class Good:
    """Counts steps in episodes of three; tests break one thing in it."""

    num_envs = B
    spec = EnvSpec("good", {"x": Box((1,), np.float32), ACTION_MASK: Box((3,), np.bool_)}, Discrete(3))

    def __init__(self, alter=lambda timestep: timestep):
        self.alter = alter
        self.resets = 0
        self._stream = NextStepStream(B)
        self._time = 0

    def _observe(self):
        mask = np.zeros((B, 3), bool)
        mask[:, self._time % 3] = True
        self.legal = self._time % 3
        return {"x": np.full((B, 1), self._time, np.float32), ACTION_MASK: mask}

    def reset(self, seeds):
        self._time, self.resets = 0, self.resets + 1
        return self.alter(self._stream.first(self._observe()))

    def step(self, action):
        assert (action == self.legal).all()
        self._time = 0 if self._stream.restarting.all() else self._time + 1
        is_last, never = np.full(B, self._time == 3), np.zeros(B, bool)
        return self.alter(self._stream.step(self._observe(), np.ones(B), is_last, never))

    def close(self):
        pass


def replaced(**fields):
    return lambda timestep: timestep._replace(**fields)


def with_x(x):
    return lambda timestep: timestep._replace(observation={**timestep.observation, "x": x})


def test_E14_a_good_environment_passes_and_can_be_reset():
    env = Good()
    check_host_env(env, num_steps=9)
    assert env.reset(np.arange(B)).is_first.all()
    assert env.resets == 2


def only_later(alter):
    """Breaks `step`, not `reset`."""
    return lambda timestep: timestep if timestep.extras.episode_length.max() == 0 else alter(timestep)


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (replaced(extras=()), "good.reset emits tuple as extras"),
        (replaced(step_type=np.zeros(B, np.int64)), r"step_type as ndarray int64\(2,\); .*int8\(2,\)"),
        (replaced(reward=np.zeros(B)), "reward as ndarray float64"),
        (replaced(discount=np.ones(B + 1, np.float32)), r"discount as ndarray float32\(3,\)"),
        (replaced(reward=[0.0, 0.0]), "reward as list"),
        (replaced(step_type=np.ones(B, np.int8)), "has to emit FIRST"),
        (with_x(np.zeros((B, 1))), r"\['x'\] as float32\(2, 1\) but emits float64"),
        (with_x(np.zeros((B, 2), np.float32)), r"emits float32\(2, 2\)"),
        (replaced(observation=np.zeros((B, 1), np.float32)), "declares observations"),
        (only_later(replaced(step_type=np.zeros(B, np.int8))), "emits FIRST after FIRST in environment 0"),
        (only_later(replaced(discount=np.zeros(B, np.float32))), "0 at true ends and 1 elsewhere"),
        (with_x(np.zeros((B, 1), np.float32)), "good.step writes into arrays that it has handed out before"),
    ],
)
def test_E14_every_breach_is_named(alter, message):
    with pytest.raises(ValueError, match=message):
        check_host_env(Good(alter))


def test_E14_a_mask_of_another_size_and_unbounded_actions_are_refused():
    env = Good()
    env.spec = EnvSpec("good", Good.spec.observation, Discrete(4))
    with pytest.raises(ValueError, match=r"action_mask as bool\(3,\); with 4 actions"):
        check_host_env(env)
    env.spec = EnvSpec("good", Good.spec.observation, Box((1,), np.float32, -np.inf, 1.0))
    with pytest.raises(ValueError, match="actions are unbounded"):
        check_host_env(env)


def test_random_actions_cover_the_legal_ones():
    rng, timestep = np.random.default_rng(0), Good().reset(np.arange(B))
    timestep.observation[ACTION_MASK][:] = [[True, False, True], [False, True, True]]
    drawn = np.stack([random_legal_actions(Good.spec, timestep, rng) for _ in range(100)])
    assert set(drawn[:, 0]) == {0, 2}
    assert set(drawn[:, 1]) == {1, 2}
    vectors = random_legal_actions(EnvSpec("v", None, MultiDiscrete((2, 5))), timestep, rng)
    assert (vectors.shape, vectors.dtype) == ((B, 2), np.int32)
