"""An update is the same on any number of devices, for traced and constant settings, and keeps its state's shape."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from podracer.agent import Agent
from podracer.parallel.placement import LEARNER_AXIS
from podracer.parallel.spmd import REPLICATED, spmd
from podracer.runners.transport import trajectory_specs
from podracer.runners.unroll import example_trajectory
from podracer.types import StepType, Trajectory, valid_transitions
from tests.contract.members import NUM_ENVS, Member, broken, leaves_with_names, member, to_batch
from tests.contract.tables import AGENTS, NORMALISED_AND_RECURRENT, ONE_EACH

KEY = jax.random.key(3)


def assert_close(first, second, tolerance):
    for (name, a), (_, b) in zip(leaves_with_names(first), leaves_with_names(second), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=name)


def ragged(trajectory: Trajectory) -> Trajectory:
    """Ends the episodes of each environment at other times, so that devices hold unequal numbers of transitions."""
    timestep = trajectory.steps.timestep
    num_steps, num_envs = timestep.reward.shape
    t, env = np.indices((num_steps, num_envs))
    place = (t + env) % (env % 3 + 2)  # episodes of 2, 3 or 4 steps
    last = place == env % 3 + 1
    step_type = np.select([place == 0, last], [StepType.FIRST, StepType.LAST], StepType.MID).astype(np.int8)
    discount = np.where(last & (env % 2 == 0), 0.0, 1.0).astype(np.float32)
    reward = np.where(place == 0, 0.0, np.cos(t + 3.0 * env)).astype(np.float32)
    timestep = timestep._replace(step_type=step_type, discount=discount, reward=reward)
    return trajectory._replace(steps=trajectory.steps._replace(timestep=timestep))


def update_on(num_devices: int, agent: Agent, member: Member):
    """Updates once, one minibatch an epoch, on a global trajectory that is cut over some devices."""
    axis = LEARNER_AXIS if num_devices > 1 else None
    agent = dataclasses.replace(agent, axis_name=axis)
    mesh = Mesh(np.array(jax.devices()[:num_devices]), (LEARNER_AXIS,), axis_types=(AxisType.Auto,))

    def update(state, trajectory):
        state, output = agent.update(state, to_batch(agent, trajectory), KEY, progress=jnp.float32(0.25))
        return state, output.metrics

    specs = (REPLICATED, trajectory_specs(LEARNER_AXIS))
    program = jax.jit(spmd(update, mesh, specs, (REPLICATED, REPLICATED)))
    state, trajectory = jax.device_get((member.experience.learner_state, ragged(member.trajectory)))
    return program(state, trajectory)


def check_devices_agree(agent: Agent, member: Member, counts=(2, 4, 8)) -> None:
    """The same global trajectory gives the same state and metrics on any number of devices, to 1e-5."""
    if hasattr(agent, "num_minibatches"):
        agent = dataclasses.replace(agent, num_minibatches=1, num_epochs=2)
    alone = update_on(1, agent, member)
    for count in counts:
        assert_close(update_on(count, agent, member), alone, 1e-5)


def check_fixed_point(agent: Agent) -> None:
    """The tree, shapes and dtypes of the state, weak types included, are those of the state that `update` returns."""
    state = jax.eval_shape(agent.init_learner, KEY)
    example = example_trajectory(agent, agent.spec, NUM_ENVS, NUM_ENVS)
    batch = jax.eval_shape(functools.partial(to_batch, agent), example)
    after, _ = jax.eval_shape(functools.partial(agent.update, progress=jnp.float32(0.0)), state, batch, KEY)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    for (name, a), (_, b) in zip(leaves_with_names(state), leaves_with_names(after)):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type), name


@pytest.mark.parametrize("name", NORMALISED_AND_RECURRENT)
def test_A23_C10_update_is_the_same_on_any_number_of_devices(name):
    check_devices_agree(member(name).agent, member(name))


@pytest.mark.parametrize("name", ONE_EACH)
def test_traced_hyper_parameters_equal_constants(name):
    traced = member(name)
    other = {key: value * 0.75 for key, value in traced.hyper.items()}
    constant = dataclasses.replace(traced.agent, **{key: float(value) for key, value in other.items()})
    state, batch = traced.experience.learner_state, to_batch(traced.agent, traced.trajectory)
    expected = jax.jit(lambda *args: constant.update(*args, progress=jnp.float32(0.25)))(state, batch, KEY)
    result, metrics = traced.update(other, state, batch, KEY, jnp.float32(0.25))
    assert_close((result, metrics), (expected[0], expected[1].metrics), 1e-5)
    unchanged, _ = traced.update(traced.hyper, state, batch, KEY, jnp.float32(0.25))
    with pytest.raises(AssertionError):
        assert_close(unchanged, result, 1e-5)


@pytest.mark.parametrize("name", AGENTS)
def test_state_is_a_fixed_point_of_update(name):
    check_fixed_point(member(name).agent)


def test_an_agent_that_forgets_to_average_is_rejected():
    def update(self, state, batch, key, *, progress):
        alone = dataclasses.replace(self, axis_name=None)
        return super(type(self), alone).update(state, batch, key, progress=progress)

    right = member("impala-normalised")
    with pytest.raises(AssertionError):
        check_devices_agree(broken(right.agent, update=update), right, counts=(2,))


def test_an_agent_that_averages_the_means_of_devices_is_rejected():
    def loss(self, params, statistics, batch, count):
        timestep = batch.trajectory.steps.timestep
        own_count = jnp.sum(valid_transitions(timestep.step_type, timestep.discount), dtype=jnp.float32)
        return super(type(self), self).loss(params, statistics, batch, own_count)

    right = member("impala-normalised")
    with pytest.raises(AssertionError):
        check_devices_agree(broken(right.agent, loss=loss), right, counts=(8,))


def test_a_state_that_changes_its_type_is_rejected():
    def update(self, state, batch, key, *, progress):
        state, output = super(type(self), self).update(state, batch, key, progress=progress)
        return state._replace(trained=state.trained._replace(params=_halve_precision(state.trained.params))), output

    with pytest.raises(AssertionError):
        check_fixed_point(broken(member("impala-normalised").agent, update=update))


def _halve_precision(params):
    return jax.tree.map(lambda x: x.astype(jnp.float16), params)
