"""What an actor records is what the learner finds again, and no environment of a batch influences another."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.agents import parts
from podracer.types import StepType
from tests.contract.members import Member, broken, leaves_with_names, make_member, member, to_batch
from tests.contract.tables import AGENTS, ON_POLICY, REDERIVE


def check_rederived(algorithm: str, member: Member) -> None:
    """The learner re-derives what the actor recorded, episode ends and starts included, to 1e-5."""
    policy, trajectory = member.experience.policy.params, member.trajectory
    step_type = np.asarray(trajectory.steps.timestep.step_type)
    assert np.any(step_type[1:] == StepType.FIRST)
    rederive = jax.jit(lambda *args: REDERIVE[algorithm](member.agent, *args))
    derived = rederive(policy.params, policy.statistics, trajectory)
    recorded = {name: value for name, value in trajectory.steps.extras.items() if name != "discounted_return"}
    assert recorded and set(recorded) <= set(derived)
    for name, value in recorded.items():
        np.testing.assert_allclose(derived[name], value, atol=1e-5, rtol=1e-5, err_msg=name)


def check_memory_rederived(member: Member) -> None:
    """The learner's memory after an unroll is the one that the actor goes on with, to 1e-5."""
    _, policy, carry, start = member.experience
    carry, (steps, actor_state) = member.unroll(policy, carry, start)
    assert np.any(np.asarray(steps.timestep.step_type)[1:-1] == StepType.FIRST)

    def unroll(params, statistics, core, timestep):
        observation = parts.normalise_observation(statistics, timestep.observation)
        return member.agent.model.apply(params, core, observation, timestep.is_first, method="unroll")[0]

    timestep = jax.tree.map(lambda leaf: leaf[:-1], steps.timestep)
    memory = jax.jit(unroll)(policy.params.params, policy.params.statistics, actor_state.core, timestep)
    for derived, kept in zip(jax.tree.leaves(memory), jax.tree.leaves(carry.actor_state.core), strict=True):
        np.testing.assert_allclose(derived, kept, atol=1e-5, rtol=1e-5)


def check_rows_are_independent(member: Member) -> None:
    """A changed observation of environment 0 changes nothing in the unrolls of the others."""
    _, policy, carry, start = member.experience
    changed = carry.timestep._replace(observation=jax.tree.map(_change_first_row, carry.timestep.observation))
    trajectory = member.unroll(policy, carry._replace(timestep=changed), start)[1]
    for (name, before), (_, after) in zip(leaves_with_names(member.trajectory), leaves_with_names(trajectory)):
        batch_axis = 0 if name.startswith(".actor_state") else 1
        before, after = (np.delete(np.asarray(leaf), 0, batch_axis) for leaf in (before, after))
        np.testing.assert_array_equal(before, after, err_msg=name)
    # An agent that records nothing may choose the same action all the same. The log-probability of a normal
    # distribution is that of its noise, whatever its mean.
    first, second = member.trajectory.steps, trajectory.steps
    seen = [jax.tree.leaves((steps.extras, steps.action)) for steps in (first, second)]
    assert not first.extras or any(np.any(a[0, 0] != b[0, 0]) for a, b in zip(*seen)), "the change was not seen"


def _change_first_row(x):
    changed = {"bool": lambda row: True, "uint8": lambda row: 255 - row}.get(str(x.dtype), lambda row: row + 1)
    return x.at[0].set(changed(x[0]))


@pytest.fixture(scope="module", params=AGENTS)
def name(request):
    return request.param


def test_A24_A32_learner_rederives_what_the_actor_recorded(name):
    if name.split("-")[0] in REDERIVE:
        check_rederived(name.split("-")[0], member(name))
    else:
        assert member(name).trajectory.steps.extras == {}


def test_A24_F05_learner_rederives_the_memory_of_the_actor(name):
    if member(name).agent.network.core != "none":
        check_memory_rederived(member(name))


@pytest.mark.parametrize("name", [name for name in AGENTS if name.split("-")[0] in ON_POLICY], scope="module")
def test_A32_ratios_are_one_until_the_first_gradient_step(name):
    agent = member(name)
    frozen = {**agent.hyper, "learning_rate": jnp.float32(0.0)}
    state, batch = agent.experience.learner_state, to_batch(agent.agent, agent.trajectory)
    _, metrics = agent.update(frozen, state, batch, jax.random.key(0), 0.0)
    for metric, (value, tolerance) in ON_POLICY[name.split("-")[0]].items():
        np.testing.assert_allclose(metrics[metric], value, rtol=0, atol=tolerance, err_msg=metric)


def test_rows_of_a_batch_are_independent(name):
    check_rows_are_independent(member(name))


def test_an_unroll_begins_with_the_step_that_ended_the_one_before(name):
    _, policy, carry, start = member(name).experience
    carry, first = member(name).unroll(policy, carry, start)
    _, second = member(name).unroll(policy, carry, start + member(name).agent.unroll_length)
    for (path, leaf), (_, other) in zip(leaves_with_names(first.steps), leaves_with_names(second.steps)):
        np.testing.assert_array_equal(leaf[-1], other[0], err_msg=path)


def test_A33_the_sampled_action_is_recorded_and_the_environment_gets_it_clipped():
    # mean 1.7, deviation 0: a sample of 1.7. The environment's own range is [-1, 1] and its reward -(a - 1)².
    overrides = ("agent=ppo", "env=probe", "env.id=continuous_action", "env.kwargs={low: -1.0, high: 1.0}")
    ppo = make_member(overrides)
    _, policy, carry, start = ppo.experience
    params = jax.tree.map(jnp.zeros_like, policy.params.params)
    params["params"]["policy_head"]["Dense_0"]["bias"] = jnp.array([1.7])
    params["params"]["policy_head"]["log_std"] = jnp.array([-30.0])
    policy = policy._replace(params=policy.params._replace(params=params))
    steps = ppo.unroll(policy, carry, start)[1].steps
    np.testing.assert_allclose(steps.action, 1.7, atol=1e-6)
    np.testing.assert_allclose(steps.timestep.reward[steps.timestep.is_last], 0.0, atol=1e-6)
    np.testing.assert_allclose(steps.extras["log_prob"], 30.0 - 0.5 * np.log(2 * np.pi), atol=1e-5)


def test_an_agent_that_keeps_its_memory_over_a_reset_is_rejected():
    def act(self, policy, state, timestep, key, *, evaluation=False):
        forgetful = timestep._replace(step_type=jnp.full_like(timestep.step_type, StepType.MID))
        return super(type(self), self).act(policy, state, forgetful, key, evaluation=evaluation)

    wrong = make_member(AGENTS["ppo-gru"], lambda agent: broken(agent, act=act))
    with pytest.raises(AssertionError):
        check_rederived("ppo", wrong)
    with pytest.raises(AssertionError):
        check_memory_rederived(wrong)


def test_an_agent_that_records_with_other_statistics_is_rejected():
    right = member("ppo-normalised")
    moved = dataclasses.replace(right)
    experience = right.experience
    state = experience.learner_state
    observation = state.statistics.observation._replace(mean=state.statistics.observation.mean + 1.0)
    policy = right.policy(state._replace(statistics=state.statistics._replace(observation=observation)))
    vars(moved)["experience"] = experience._replace(policy=policy)
    vars(moved)["trajectory"] = right.trajectory
    with pytest.raises(AssertionError):
        check_rederived("ppo", moved)


def test_an_agent_that_mixes_rows_is_rejected():
    def act(self, policy, state, timestep, key, *, evaluation=False):
        x = timestep.observation.astype(jnp.float32)
        centred = timestep._replace(observation=x - jnp.mean(x, 0, keepdims=True))
        return super(type(self), self).act(policy, state, centred, key, evaluation=evaluation)

    def update(self, state, batch, key, *, progress):
        return state, super(type(self), self).update(state, batch, key, progress=progress)[1]

    wrong = make_member(AGENTS["ppo-feedforward"], lambda agent: broken(agent, act=act, update=update))
    with pytest.raises(AssertionError):
        check_rows_are_independent(wrong)
