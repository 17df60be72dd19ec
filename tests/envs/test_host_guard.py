import numpy as np
import pytest

from podracer.envs.host_guard import GuardedHost
from podracer.faults import EnvFault, FaultsConfig
from podracer.types import valid_transitions
from tests.runners.doubles import CountingEnv, EnvError

ACTION = np.zeros(2, np.int32)


class Faulty(CountingEnv):
    """Does something wrong at its third step, if it is among the first `faulty` that were made."""

    def __init__(self, wrong, is_faulty):
        super().__init__(2)
        self._wrong, self._is_faulty = wrong, is_faulty

    def step(self, action):
        timestep = super().step(action)
        return self._wrong(timestep) if self._is_faulty and self.steps == 3 else timestep


def raises(timestep):
    raise EnvError("broke")


def nan_observation(timestep):
    observation = timestep.observation.copy()
    observation[1] = np.nan
    return timestep._replace(observation=observation)


def infinite_reward(timestep):
    return timestep._replace(reward=np.array([0, np.inf], np.float32))


def other_shape(timestep):
    return timestep._replace(observation=timestep.observation[:, None])


def other_dtype(timestep):
    return timestep._replace(reward=timestep.reward.astype(np.float64))


def other_structure(timestep):
    return timestep._replace(observation={"x": timestep.observation})


FAULTS = {
    raises: (EnvError, "broke"),
    nan_observation: (EnvFault, r"environment 7 gave \[nan\], which is not finite"),
    infinite_reward: (EnvFault, "environment 7 gave inf, which is not finite"),
    other_shape: (EnvFault, r"float32\[2, 1, 1\] that was float32\[2, 1\] at first"),
    other_dtype: (EnvFault, r"float64\[2\] that was float32\[2\] at first"),
    other_structure: (EnvFault, "structure"),
}


def guarded(wrong, *, faulty=1, **config):
    """The environments of actor 3; the first `faulty` batches that are made go wrong. And the batches."""
    made = []

    def make():
        made.append(Faulty(wrong, len(made) < faulty))
        return made[-1]

    return GuardedHost(make, FaultsConfig(**config), 3), made


@pytest.mark.parametrize("wrong", FAULTS)
def test_E11_a_fault_ends_the_run_and_says_where(wrong):
    env, _ = guarded(wrong)
    env.reset(np.arange(2))
    env.step(ACTION)
    env.step(ACTION)
    kind, message = FAULTS[wrong]
    with pytest.raises(kind, match=message) as raised:
        env.step(ACTION)
    assert raised.value.__notes__ == ["in actor 3's environments 6 to 7 of counting, at step 3 of each"]


@pytest.mark.parametrize("wrong", FAULTS)
def test_E11_a_fault_starts_new_episodes_with_other_seeds(wrong):
    env, made = guarded(wrong, environment="restart")
    first = env.reset(np.arange(2))
    steps = [first, *(env.step(ACTION) for _ in range(5))]
    assert len(made) == 2 and env.restarts == 1 and made[0].closes == 1
    assert not set(made[0].seeds) & set(made[1].seeds)
    # The restart is no transition, and nothing that was wrong is seen.
    step_type, discount = (np.stack([getattr(step, name) for step in steps]) for name in ("step_type", "discount"))
    assert valid_transitions(step_type, discount)[:, 0].tolist() == [True, True, False, True, True]
    assert all(np.isfinite(step.observation).all() for step in steps)


def test_too_many_restarts_end_the_run():
    env, made = guarded(raises, faulty=9, environment="restart", max_restarts=2)
    env.reset(np.arange(2))
    with pytest.raises(EnvError):
        for _ in range(20):
            env.step(ACTION)
    assert len(made) == 3 and env.restarts == 2


def test_a_large_finite_observation_is_no_fault():
    """The sum of the elements overflows, each of them does not."""
    huge = lambda timestep: timestep._replace(observation=np.full((2, 1), 3e38, np.float32))  # noqa: E731
    env, _ = guarded(huge)
    env.reset(np.arange(2))
    for _ in range(4):
        env.step(ACTION)


@pytest.mark.parametrize("setting", ["max_restarts", "step_timeout_seconds", "stall_warning_seconds"])
def test_settings_that_make_no_sense_are_refused(setting):
    with pytest.raises(ValueError, match=f"faults.{setting}=-1"):
        FaultsConfig(**{setting: -1})
