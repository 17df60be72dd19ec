import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.envs.autoreset import AutoReset
from podracer.envs.base import EnvConfig
from podracer.envs.probe import Counter
from podracer.envs.wrappers import wrap
from podracer.parallel.memory import tree_bytes
from podracer.parallel.placement import LEARNER_AXIS, learner_mesh
from podracer.replay.on_policy import OnPolicy
from podracer.runner import Due
from podracer.runners.anakin import Anakin, AnakinConfig
from podracer.runners.unroll import example_trajectory
from tests.runners.doubles import FAR, RecordingAgent, due_at_end, make_plan, run_all, run_threads


def make_anakin(agent=None, *, num_steps=3, updates_per_call=2, **plan_settings):
    env = AutoReset(wrap(Counter(num_steps), EnvConfig(suite="probe")), "next_step", None)
    agent = dataclasses.replace(agent or RecordingAgent(), spec=env.spec)
    plan = make_plan("anakin", unroll_length=agent.unroll_length, **plan_settings)
    if plan.learners > 1:
        agent = dataclasses.replace(agent, axis_name=LEARNER_AXIS)
    return Anakin(agent, env, OnPolicy(), plan, learner_mesh(plan), AnakinConfig(updates_per_call=updates_per_call))


@pytest.mark.parametrize("learners", [(0,), (2, 3)])
def test_B06_env_steps_are_the_transitions_that_a_recount_finds(learners):
    runner = make_anakin(RecordingAgent(unroll_length=8), learners=learners, envs_per_actor=4, updates=5)
    reports = run_all(runner)
    assert [report.updates for report in reports] == [2, 4, 5]
    # Each row goes through FIRST MID MID LAST, and the step after LAST is a reset: 3 of 4 slots are transitions.
    is_transition = np.arange(40) % 4 != 3
    num_envs = 4 * len(learners)
    expected = [int(is_transition[: 8 * updates].sum()) * num_envs for updates in (2, 4, 5)]
    assert [report.env_steps for report in reports] == expected
    assert all(type(report.env_steps) is int for report in reports)
    episodes = [report.episodes for report in reports]
    assert [chunk.count for chunk in episodes] == [4 * num_envs, 4 * num_envs, 2 * num_envs]
    assert episodes[0] == (4 * num_envs, 12.0 * num_envs, 12 * num_envs, 3.0, 3.0)
    assert run_threads() == []


def test_B14_env_steps_pass_32_bits():
    runner = make_anakin(updates=3, updates_per_call=1)
    state = runner.init()._replace(env_steps=2**31 - 8)
    counts = [report.env_steps for report in run_all(runner, state=state)]
    # 4 environments x 4 slots, of which 3 are transitions.
    assert counts == [2**31 + 4, 2**31 + 16, 2**31 + 28]


@pytest.mark.parametrize("learners", [(0,), (2, 3)])
def test_B26_the_same_seed_gives_the_same_run_bit_for_bit_whatever_the_chunks(learners):
    def run(due):
        reports = run_all(make_anakin(learners=learners, updates=6), due)
        return jax.device_get(reports[-1].state.device.learner), [report.metrics for report in reports]

    (params, metrics), (same_params, same_metrics) = run(due_at_end), run(due_at_end)
    jax.tree.map(np.testing.assert_array_equal, params, same_params)
    assert metrics == same_metrics
    in_other_chunks, _ = run(lambda updates: Due(min(updates + 1, 6), snapshot=True, state=True))
    jax.tree.map(np.testing.assert_array_equal, params, in_other_chunks)


def test_A35_every_update_has_randomness_of_its_own():
    reports = run_all(make_anakin(num_steps=1, updates=4, updates_per_call=1))
    # The observations of an unroll are the same each time; what differs are the drawn actions and noise.
    assert len({report.metrics["seen"] for report in reports}) == 4


def test_a_run_goes_on_bit_for_bit_from_a_reported_state():
    whole = run_all(make_anakin(updates=6))
    runner = make_anakin(updates=6)
    reports = runner.run(runner.init(), lambda updates: Due(3, state=True) if updates < 3 else Due(FAR))
    state = next(report.state for report in reports if report.state is not None)
    reports.close()
    rest = run_all(runner, state=state)
    assert (state.updates, rest[-1].updates) == (3, 6)
    assert rest[-1].env_steps == whole[-1].env_steps
    jax.tree.map(
        np.testing.assert_array_equal,
        jax.device_get(rest[-1].state.device.learner),
        jax.device_get(whole[-1].state.device.learner),
    )


def test_B23_nothing_of_a_run_lies_on_another_device():
    before = {id(array) for array in jax.live_arrays()}
    devices = set()

    def due(updates):
        for array in jax.live_arrays():
            if id(array) not in before:
                devices.update(device.id for device in array.devices())
        return Due(updates + 1, snapshot=True)

    run_all(make_anakin(learners=(2, 3), updates=4), due)
    assert devices == {2, 3}


@pytest.mark.parametrize("learners", [(0,), (2, 3)])
def test_the_program_transfers_nothing(learners):
    runner = make_anakin(learners=learners)
    device = runner.init().device
    replicated = jax.sharding.NamedSharding(runner.mesh, jax.sharding.PartitionSpec())
    arguments = {"learning_rate": jnp.float32(0.5)}, jnp.int32(2), jax.random.key(0)
    hyper, num_updates, key = jax.device_put(arguments, replicated)
    program = runner.program()
    device, _ = program(hyper, device, num_updates, key)
    with jax.transfer_guard("disallow"):
        device, totals = program(hyper, device, num_updates, key)
        jax.block_until_ready(totals)
    assert int(device.updates) == 4


def test_the_trajectory_is_held_once():
    def temporaries(unroll_length):
        runner = make_anakin(RecordingAgent(unroll_length=unroll_length), envs_per_actor=64, updates=2)
        state = jax.eval_shape(runner.init).device
        arguments = {"learning_rate": jnp.float32(0.5)}, state, jnp.int32(2), jax.random.key(0)
        size = runner.program().lower(*arguments).compile().memory_analysis().temp_size_in_bytes
        return size, tree_bytes(example_trajectory(runner.agent, runner.env.spec, 64, 64))

    short, long = temporaries(64), temporaries(1024)
    # Beside the trajectory there grow with T the unroll's keys, two of 8 bytes a step, and the statistics of
    # episodes: a return, a length and a flag of 9 bytes, masked into three arrays of 4 before they are summed.
    growth, trajectory = long[0] - short[0], long[1] - short[1]
    others = (2 * 8 + 64 * (9 + 3 * 4)) * (1024 - 64)
    assert trajectory <= growth <= 1.25 * trajectory + others
