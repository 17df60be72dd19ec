import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.replay.on_policy import OnPolicy
from podracer.types import Step, StepType, TimeStep, Trajectory


def make_trajectory():
    step_type = jnp.array([[0, 1], [2, 1], [0, 1]], jnp.int8)  # [T+1, B]
    reward = jnp.arange(6.0).reshape(3, 2)
    timestep = TimeStep(step_type, reward, jnp.ones((3, 2)), {"x": reward[..., None]})
    return Trajectory(Step(timestep, jnp.zeros((3, 2), jnp.int32), {}), {"h": jnp.zeros((2, 4))})


def test_a_sample_is_the_unroll_that_was_added_whole_and_in_order():
    replay, trajectory = OnPolicy(), make_trajectory()
    state = replay.add(replay.init(trajectory), trajectory)
    _, batch = replay.sample(state, jax.random.key(0))
    for sampled, added in zip(jax.tree.leaves(batch.trajectory), jax.tree.leaves(trajectory), strict=True):
        np.testing.assert_array_equal(sampled, added)
    assert batch.indices.tolist() == [0, 1]
    assert batch.probabilities.tolist() == [1.0, 1.0]


def test_it_can_be_sampled_between_add_and_retain_only_and_keeps_nothing():
    replay, trajectory = OnPolicy(), make_trajectory()
    empty = replay.init(trajectory)
    full = replay.add(empty, trajectory)
    assert [bool(replay.can_sample(state)) for state in (empty, full, replay.retain(full))] == [False, True, False]
    assert replay.retain(full) == empty == ()


def test_its_size_is_the_number_of_transitions():
    replay, trajectory = OnPolicy(), make_trajectory()
    assert trajectory.steps.timestep.step_type[1, 0] == StepType.LAST
    # Of two times two rows, LAST to FIRST in the first environment is none.
    assert replay.size(replay.add((), trajectory)) == 3
    assert replay.size(()) == 0


def test_priorities_are_refused():
    with pytest.raises(TypeError, match="replay=prioritised"):
        OnPolicy().set_priorities(make_trajectory(), jnp.arange(2), jnp.ones((2,)))
