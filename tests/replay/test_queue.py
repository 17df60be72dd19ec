"""The queue against a plain Python list, and under both runners."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podracer import build
from podracer.config import load_config
from podracer.conversion import ConfigError
from podracer.replay.queue import Queue
from podracer.runner import Due
from podracer.types import Trajectory
from tests.contract.tables import SMALL
from tests.replay.oracle import is_transition, make_streams, to_trajectory

NUM_ENVS, LENGTH = 3, 2


@functools.cache
def compiled(count: int, capacity: int) -> tuple[Queue, Any, Any]:
    store = Queue(unrolls_per_update=count, capacity_unrolls=capacity)
    return store, jax.jit(store.add, donate_argnums=0), jax.jit(store.sample, donate_argnums=0)


def init(store: Queue) -> Any:
    streams = make_streams(np.random.default_rng(0), NUM_ENVS, LENGTH + 1)
    return store.init(jax.eval_shape(lambda: jax.tree.map(jnp.asarray, to_trajectory(streams, 0, LENGTH))))


def joined(unrolls: list[Trajectory]) -> Trajectory:
    steps = jax.tree.map(lambda *leaves: np.concatenate(leaves, 1), *[unroll.steps for unroll in unrolls])
    memory = jax.tree.map(lambda *leaves: np.concatenate(leaves, 0), *[unroll.actor_state for unroll in unrolls])
    return Trajectory(steps, memory)


@pytest.mark.parametrize(("count", "capacity"), [(1, 1), (2, 2), (2, 5), (3, 4)])
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**20), takes=st.lists(st.booleans(), min_size=1, max_size=24))
def test_F09_every_unroll_comes_out_once_and_in_order(count, capacity, seed, takes):
    store, add, sample = compiled(count, capacity)
    streams = make_streams(np.random.default_rng(seed), NUM_ENVS, LENGTH * len(takes) + 1)
    state, waiting = init(store), []
    for index, is_taken in enumerate(takes):
        unroll = to_trajectory(streams, LENGTH * index, LENGTH)
        state = add(state, unroll)
        waiting = [*waiting, (index, unroll)][-capacity:]
        _, updates = store.take_updates(state)
        assert updates == len(waiting) // count and store.can_sample(state) == (updates > 0)
        assert store.size(state) == sum(
            is_transition(stream[t], stream[t + 1])
            for i, _ in waiting
            for stream in streams
            for t in range(LENGTH * i, LENGTH * (i + 1))
        )
        for _ in range(int(updates) if is_taken else 0):
            state, batch = sample(state, jax.random.key(0))
            taken, waiting = waiting[:count], waiting[count:]
            expected = joined([unroll for _, unroll in taken])
            jax.tree.map(np.testing.assert_array_equal, batch.trajectory, expected)
            assert batch.probabilities.tolist() == [1.0] * (count * NUM_ENVS)


def test_F09_of_eleven_in_a_queue_of_eight_the_newest_eight_wait():
    store, add, sample = compiled(1, 8)
    streams = make_streams(np.random.default_rng(3), NUM_ENVS, LENGTH * 11 + 1)
    state = init(store)
    for index in range(11):
        state = add(state, to_trajectory(streams, LENGTH * index, LENGTH))
    assert state.waiting == 8
    first = []
    while store.can_sample(state):
        state, batch = sample(state, jax.random.key(0))
        first.append(int(batch.trajectory.steps.timestep.observation[0, 0]))
    assert first == [LENGTH * index for index in range(3, 11)]
    assert store.size(state) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unrolls_per_update": 0}, "unrolls_per_update=0 is too small"),
        ({"unrolls_per_update": 4, "capacity_unrolls": 3}, "capacity_unrolls=3 .* use at least 4"),
    ],
)
def test_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Queue(**changes)


def test_priorities_are_refused():
    with pytest.raises(TypeError, match="replay=prioritised"):
        Queue().set_priorities(init(Queue()), jnp.arange(2), jnp.ones((2,)))


def agent_updates(*overrides: str) -> list[int]:
    run = build.build(load_config([*SMALL, "agent=impala", "env=catch", f"total_env_steps={6 * 48}", *overrides]))
    reports = run.runner.run(run.runner.init(), lambda updates: Due(updates + 1, snapshot=True))
    return [report.counters["agent_updates"] for report in reports]


@pytest.mark.parametrize(
    "runner",
    [
        ("runner=anakin", "runner.updates_per_call=1", "mesh.learner=2"),
        ("runner=sebulba", "runner.threads_per_device=1", "mesh.actor_ids=[0]", "mesh.learner_ids=[1,2]"),
    ],
)
def test_an_update_waits_for_its_unrolls_under_both_runners(runner):
    assert agent_updates("replay=queue", "replay.unrolls_per_update=3", *runner) == [0, 0, 1, 0, 0, 1]


def test_agents_that_learn_from_their_past_refuse_a_queue():
    with pytest.raises(ConfigError, match=r"agent=sac learns from a store of its past.*use replay=uniform"):
        build.build(load_config(["agent=sac", "env=catch", "replay=queue"]))
