"""Every check meets an environment that breaks it."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.envs.base import restart, transition
from podracer.envs.checks import check_env, random_actions
from podracer.spaces import ACTION_MASK, Box, Discrete, EnvSpec, MultiDiscrete

SPEC = EnvSpec("faulty", Box((2,), np.float32, 0.0, 1.0), Discrete(3), can_truncate=False)


@dataclass(frozen=True)
class Faulty:
    """Right, unless told otherwise."""

    spec: EnvSpec = SPEC
    first: object = 0.5  # every element of the first observation
    later: object = 0.5
    dtype: type = np.float32
    reward: object = 1.0
    next_time: object = 1
    changes: object = lambda timestep: timestep  # what is done to the timesteps of step
    changes_first: object = lambda timestep: timestep

    def reset(self, key):
        return {"time": jnp.int32(0)}, self.changes_first(restart(jnp.full((2,), self.first, self.dtype)))

    def step(self, key, state, action):
        timestep = transition(self.reward, jnp.full((2,), self.later, self.dtype), terminated=state["time"] >= 2)
        return {"time": state["time"] + self.next_time}, self.changes(timestep)


def test_sound_environment_passes():
    check_env(Faulty())
    check_env(Faulty(spec=replace(SPEC, action=Box((2,), np.float64, -3.0, 3.0))))
    check_env(Faulty(spec=replace(SPEC, action=MultiDiscrete((2, 3)))))


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (Faulty(dtype=np.float16), r"faulty\.reset declares observation as float32\(2,\) but emits float16\(2,\)"),
        (Faulty(spec=replace(SPEC, observation=Box((3,), np.float32))), r"float32\(3,\) but emits float32\(2,\)"),
        (Faulty(spec=replace(SPEC, observation={"x": Box((2,), np.float32)})), r"but emits"),
        (Faulty(spec=replace(SPEC, action=Box((1,), np.float32))), r"unbounded"),
        (Faulty(reward=np.ones(2)), r"faulty\.step emits reward as float32\(2,\)"),
        (Faulty(changes=lambda t: t._replace(step_type=jnp.int32(1))), r"step_type as int32\(\); it must be int8"),
        (Faulty(next_time=0.5), r"state\['time'\] is int32\(\) after reset but float32\(\) after step"),
        (Faulty(changes=lambda t: t._replace(extras={"a": 0})), r"the timestep is .* after reset but"),
        (Faulty(later=1.5), r"declares observations in \[0\.0, 1\.0\] but emits values in \[0\.5, 1\.5\]"),
        (Faulty(later=np.nan), r"but emits values"),
        (Faulty(reward=np.nan), r"not finite"),
        (Faulty(changes=lambda t: t._replace(step_type=jnp.int8(0))), r"step emits FIRST"),
        (Faulty(changes=lambda t: t._replace(discount=jnp.float32(2))), r"discounts outside"),
        (Faulty(changes_first=lambda t: t._replace(step_type=jnp.int8(1))), r"reset emits step types \[1 1"),
        (Faulty(changes_first=lambda t: t._replace(reward=jnp.float32(1))), r"reward 0 and discount 1"),
    ],
)
def test_E14_faults_are_named(env, message):
    with pytest.raises(ValueError, match=message):
        check_env(env)


def test_action_mask_of_the_wrong_length_is_named():
    @dataclass(frozen=True)
    class Masked:
        spec = replace(SPEC, observation={ACTION_MASK: Box((2,), np.bool_, 0, 1)})

        def reset(self, key):
            return (), restart({ACTION_MASK: jnp.ones((2,), bool)})

        def step(self, key, state, action):
            return (), transition(0.0, {ACTION_MASK: jnp.ones((2,), bool)})

    with pytest.raises(ValueError, match=r"with 3 actions it must be bool\(3,\)"):
        check_env(Masked())


def test_random_actions_are_uniform_and_canonical():
    key = jax.random.key(0)
    continuous = random_actions(Box((2,), np.float32, 0.0, 10.0), key, (1000,))
    assert continuous.shape == (1000, 2)
    assert -1 <= continuous.min() < -0.99
    assert 0.99 < continuous.max() <= 1
    # Counted from 0, wherever the environment begins.
    np.testing.assert_array_equal(np.unique(random_actions(Discrete(3, start=10), key, (100,))), [0, 1, 2])
    several = np.asarray(random_actions(MultiDiscrete((2, 4)), key, (200,)))
    assert list(several.max(axis=0)) == [1, 3]
