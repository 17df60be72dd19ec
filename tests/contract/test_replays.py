"""Every replay hands out what was put in, and its state keeps its structure."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.config import load_config
from podracer.replay.base import Replay, ReplaySpec
from podracer.replay.on_policy import OnPolicy
from podracer.stores import FRESH, build_store
from podracer.types import Step, TimeStep, Trajectory
from tests.contract.tables import REPLAYS

SPEC = ReplaySpec(num_envs=3, unroll_length=4, batch_size=8, sequence_length=5, sequence_period=4, episode_ends="reset")


def make_trajectory(start: int) -> Trajectory:
    """`[T+1, B]` = `[5, 3]` steps whose observations are all different, and go on where `start` is 12 larger."""
    observation = start + jnp.arange(15.0).reshape(5, 3)
    timestep = TimeStep(jnp.ones((5, 3), jnp.int8), observation / 2, jnp.ones((5, 3)), {"x": observation[..., None]})
    return Trajectory(Step(timestep, jnp.zeros((5, 3), jnp.int32), {"value": observation}), {"h": observation[0]})


def check_replay(replay: Replay) -> None:
    state = start = replay.init(jax.eval_shape(lambda: make_trajectory(0)))
    added: list[Any] = []
    for index in range(3):
        trajectory = make_trajectory(12 * index)
        added.append(np.asarray(trajectory.steps.extras["value"]))
        state = replay.add(state, trajectory)
        assert replay.size(state) > 0
        if replay.can_sample(state):
            state, batch = replay.sample(state, jax.random.key(index))
            check_batch(batch, np.stack(added))
        state = replay.retain(state)
        assert jax.tree.structure(state) == jax.tree.structure(start)
        for before, after in zip(jax.tree.leaves(start), jax.tree.leaves(state)):
            assert (before.shape, before.dtype) == (after.shape, after.dtype)
    assert not replay.can_sample(start)


def check_batch(batch: Any, added: np.ndarray) -> None:
    """All leaves of a sampled sequence are of one sequence that was added."""
    steps = batch.trajectory.steps
    value = np.asarray(steps.extras["value"])
    assert np.isin(value, added).all()
    np.testing.assert_array_equal(value[1:] - value[:-1], 3.0)  # neighbours in time
    np.testing.assert_array_equal(steps.timestep.observation["x"][..., 0], value)
    np.testing.assert_array_equal(batch.trajectory.actor_state["h"], value[0])
    assert batch.probabilities.shape == value.shape[1:]
    assert np.all(np.asarray(batch.probabilities) > 0)


@pytest.mark.parametrize("name", REPLAYS)
def test_replay_hands_out_what_was_put_in(name):
    replay = load_config(REPLAYS[name]).replay
    check_replay(build_store(replay, None if replay.name in FRESH else SPEC, axis_name=None))


class KeepsTheUnroll(OnPolicy):
    def retain(self, state):
        return state


class MixesColumns(OnPolicy):
    def sample(self, state, key):
        memory = jax.tree.map(lambda leaf: leaf[::-1], state.actor_state)
        return super().sample(state._replace(actor_state=memory), key)


@pytest.mark.parametrize("wrong", [KeepsTheUnroll(), MixesColumns()])
def test_wrong_replays_are_rejected(wrong):
    with pytest.raises(AssertionError):
        check_replay(wrong)
