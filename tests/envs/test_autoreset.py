from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.envs.autoreset import AutoReset
from podracer.envs.base import EnvConfig, restart, transition
from podracer.envs.probe import Counter, ObservedReward
from podracer.envs.probe_structures import Tree
from podracer.envs.wrappers import RecordEpisodes, wrap
from podracer.spaces import Box, Discrete, EnvSpec
from podracer.types import StepType, TimeStep, valid_transitions

FIRST, MID, LAST = StepType.FIRST, StepType.MID, StepType.LAST


def rollout(env: AutoReset, num_steps: int, num_envs: int, seed: int = 0) -> TimeStep:
    """Takes `num_steps` steps: NumPy leaves `[T+1, B, ...]`."""

    @jax.jit
    def run(key):
        state, first = env.reset(key, num_envs)
        action = jnp.zeros((num_envs,), jnp.int32)

        def advance(state, key):
            return env.step(key, state, action)

        _, later = jax.lax.scan(advance, state, jax.random.split(key, num_steps))
        return jax.tree.map(lambda x, xs: jnp.concatenate([x[None], xs]), first, later)

    return jax.device_get(run(jax.random.key(seed)))


def counter(**kwargs) -> RecordEpisodes:
    return RecordEpisodes(Counter(**kwargs))


def transitions(timesteps: TimeStep, env: int = 0) -> list[tuple]:
    """The valid transitions `(o, r, o', discount)` of one environment; o' is None where it is not there."""
    step_type, discount = timesteps.step_type[:, env], timesteps.discount[:, env]
    observation = timesteps.observation[:, env, 0]
    valid = valid_transitions(step_type, discount)
    return [
        (
            float(observation[t]),
            float(timesteps.reward[t + 1, env]),
            None if step_type[t + 1] == FIRST else float(observation[t + 1]),
            float(discount[t + 1]),
        )
        for t in np.flatnonzero(valid)
    ]


def test_A05_reset_step_is_no_transition():
    timesteps = rollout(AutoReset(counter()), num_steps=8, num_envs=1)
    valid = valid_transitions(timesteps.step_type, timesteps.discount)[:, 0]
    np.testing.assert_array_equal(valid, [1, 1, 1, 0, 1, 1, 1, 0])
    np.testing.assert_array_equal(timesteps.observation[:, 0, 0], [0, 1, 2, 3, 0, 1, 2, 3, 0])
    np.testing.assert_array_equal(timesteps.step_type[:, 0], [FIRST, MID, MID, LAST, FIRST, MID, MID, LAST, FIRST])
    np.testing.assert_array_equal(timesteps.reward[:, 0], [0, 1, 1, 1, 0, 1, 1, 1, 0])
    np.testing.assert_array_equal(timesteps.discount[:, 0], [1, 1, 1, 0, 1, 1, 1, 0, 1])
    ended = timesteps.extras.ended[:, 0]
    np.testing.assert_array_equal(timesteps.extras.episode_return[ended, 0], [3, 3])
    np.testing.assert_array_equal(timesteps.extras.episode_length[ended, 0], [3, 3])


def test_A03_truncation_keeps_the_true_last_observation():
    timesteps = rollout(AutoReset(counter(truncates=True)), num_steps=4, num_envs=1)
    assert timesteps.step_type[3, 0] == LAST
    assert timesteps.discount[3, 0] == 1
    # With V(o) = o, γ = 1 and without rewards, δ of the truncated step is V(3) − V(2) = 1.
    assert timesteps.observation[3, 0, 0] - timesteps.observation[2, 0, 0] == 1


def test_E01_both_modes_give_the_same_transitions():
    next_step = transitions(rollout(AutoReset(counter()), num_steps=8, num_envs=1))
    same_step = transitions(rollout(AutoReset(counter(), "same_step"), num_steps=6, num_envs=1))
    episode = [(0, 1, 1, 1), (1, 1, 2, 1), (2, 1, 3, 0)]
    assert next_step == episode * 2
    # Nothing is bootstrapped from the last observation of a true end, which same_step has not.
    assert same_step == [(o, r, None if discount == 0 else n, discount) for o, r, n, discount in episode] * 2


def test_E01_same_step_carries_the_end_on_a_first_step():
    timesteps = rollout(AutoReset(counter(), "same_step"), num_steps=6, num_envs=1)
    np.testing.assert_array_equal(timesteps.step_type[:, 0], [FIRST, MID, MID, FIRST, MID, MID, FIRST])
    np.testing.assert_array_equal(timesteps.observation[:, 0, 0], [0, 1, 2, 0, 1, 2, 0])
    np.testing.assert_array_equal(timesteps.reward[:, 0], [0, 1, 1, 1, 1, 1, 1])
    np.testing.assert_array_equal(timesteps.discount[:, 0], [1, 1, 1, 0, 1, 1, 0])
    np.testing.assert_array_equal(timesteps.extras.ended[:, 0], [0, 0, 0, 1, 0, 0, 1])
    np.testing.assert_array_equal(timesteps.extras.episode_return[:, 0], [0, 1, 2, 3, 1, 2, 3])


def test_E01_modes_that_would_lose_something_are_refused():
    with pytest.raises(ValueError, match=r"env\.autoreset=same_step.*probe/counter can truncate"):
        AutoReset(counter(truncates=True), "same_step")
    with pytest.raises(ValueError, match=r"env\.autoreset=never.*next_step or same_step"):
        AutoReset(counter(), "never")
    with pytest.raises(ValueError, match=r"env\.resets_per_step=2.*same_step"):
        AutoReset(counter(), "same_step", resets_per_step=2)
    with pytest.raises(ValueError, match=r"env\.resets_per_step=0"):
        AutoReset(counter(), resets_per_step=0)


@dataclass(frozen=True)
class Careless:
    """Gives Python numbers and weak types, and has a key in its state."""

    spec = EnvSpec("careless", Box((), np.float32), Discrete(2), can_truncate=False)

    def reset(self, key):
        return {"time": 0, "scale": 1.0, "key": key}, restart(jnp.asarray(0.0))

    def step(self, key, state, action):
        time = state["time"] + 1
        return {**state, "time": time}, transition(1, time * 1.0, terminated=time >= 3)


MODES = [("next_step", None), ("same_step", None), ("next_step", 2)]


@pytest.mark.parametrize(("mode", "resets_per_step"), MODES)
@pytest.mark.parametrize("inner", [Careless(), Tree()])
def test_B17_E02_reset_and_step_have_the_same_strong_types(mode, resets_per_step, inner):
    env = AutoReset(RecordEpisodes(inner), mode, resets_per_step)
    from_reset = jax.eval_shape(lambda key: env.reset(key, 3), jax.random.key(0))
    action = jax.ShapeDtypeStruct((3,), jnp.int32)
    from_step = jax.eval_shape(env.step, jax.random.key(0), from_reset[0], action)
    assert jax.tree.structure(from_reset) == jax.tree.structure(from_step)
    for before, after in zip(jax.tree.leaves(from_reset), jax.tree.leaves(from_step)):
        assert (before.shape, before.dtype) == (after.shape, after.dtype)
        assert not before.weak_type and not after.weak_type


@pytest.mark.parametrize(("mode", "resets_per_step"), MODES)
def test_B17_step_is_traced_once(mode, resets_per_step):
    env = AutoReset(RecordEpisodes(Careless()), mode, resets_per_step)
    traces = []

    @jax.jit
    def step(key, state, action):
        traces.append(0)
        return env.step(key, state, action)

    state, _ = jax.jit(env.reset, static_argnums=1)(jax.random.key(0), 3)
    for t in range(5):
        state, _ = step(jax.random.key(t), state, jnp.zeros((3,), jnp.int32))
    assert len(traces) == 1


@pytest.mark.parametrize(("mode", "resets_per_step"), MODES)
def test_E07_every_leaf_of_a_tree_is_reset(mode, resets_per_step):
    timesteps = rollout(AutoReset(RecordEpisodes(Tree()), mode, resets_per_step), num_steps=9, num_envs=2)
    observation = timesteps.observation
    time = observation["vec"][..., 0]
    np.testing.assert_array_equal(observation["img"][..., 0, 0, 0], 255 - 85 * time)
    assert observation["img"].dtype == np.uint8
    np.testing.assert_array_equal(observation["goal"][0], observation["goal"][1][..., 0])
    np.testing.assert_array_equal(time == 0, timesteps.is_first)


def test_E02_works_under_an_outer_vmap():
    env = AutoReset(counter())

    def run(key):
        state, _ = env.reset(key, 2)

        def advance(state, key):
            return env.step(key, state, jnp.zeros((2,), jnp.int32))

        return jax.lax.scan(advance, state, jax.random.split(key, 4))[1]

    timesteps = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 3))  # [3, T, B]
    np.testing.assert_array_equal(timesteps.observation[2, :, 1, 0], [1, 2, 3, 0])


@dataclass(frozen=True)
class RandomStart:
    spec = EnvSpec("random_start", Box((), np.float32), Discrete(2), can_truncate=False)

    def reset(self, key):
        start = jax.random.uniform(key)
        return start, restart(start)

    def step(self, key, state, action):
        return state, transition(0.0, state, terminated=True)


@pytest.mark.parametrize(("mode", "resets_per_step"), MODES)
def test_B12_environments_seeds_and_episodes_start_differently(mode, resets_per_step):
    env = AutoReset(RecordEpisodes(RandomStart()), mode, resets_per_step)
    seed_0, seed_1 = (rollout(env, num_steps=6, num_envs=8, seed=seed) for seed in (0, 1))
    starts = [timesteps.observation[timesteps.is_first] for timesteps in (seed_0, seed_1)]
    together = np.concatenate(starts)
    assert len(np.unique(together)) == len(together) > 16
    again = rollout(env, num_steps=6, num_envs=8, seed=0)
    np.testing.assert_array_equal(again.observation, seed_0.observation)


def test_resets_per_step_lets_only_so_many_start():
    # Five one-step environments end together; two of them are reset a step.
    timesteps = rollout(AutoReset(RecordEpisodes(ObservedReward()), resets_per_step=2), num_steps=4, num_envs=5)
    np.testing.assert_array_equal(timesteps.is_first.sum(axis=1), [5, 0, 2, 2, 2])
    valid = valid_transitions(timesteps.step_type, timesteps.discount)
    # Every episode is one transition, and its end counts once.
    assert valid.sum() == timesteps.extras.ended.sum() == 5 + 2 + 2
    waiting = timesteps.is_last[1:] & timesteps.is_last[:-1]
    assert waiting.sum() == 3 + 1 + 1  # three of five in step 2; then one of the three that wait, twice
    assert not timesteps.reward[1:][waiting].any()
    assert not timesteps.discount[1:][waiting].any()
    np.testing.assert_array_equal(timesteps.observation[1:][waiting], timesteps.observation[:-1][waiting])


def test_resets_per_step_forgets_nobody():
    timesteps = rollout(AutoReset(RecordEpisodes(ObservedReward()), resets_per_step=1), num_steps=200, num_envs=6)
    assert timesteps.is_first.sum(axis=0).min() > 10


def test_resets_per_step_for_all_is_next_step():
    config = EnvConfig(suite="probe")
    env = wrap(Tree(), config)
    all_at_once, few = (rollout(AutoReset(env, resets_per_step=k), num_steps=12, num_envs=3) for k in (None, 8))
    np.testing.assert_array_equal(all_at_once.step_type, few.step_type)
    np.testing.assert_array_equal(all_at_once.observation["vec"], few.observation["vec"])
