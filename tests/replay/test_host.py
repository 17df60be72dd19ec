"""The store in host memory against the lists, and against the uniform store."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, PartitionSpec

from podracer import build
from podracer.config import load_config
from podracer.conversion import ConfigError
from podracer.parallel import collectives
from podracer.parallel.spmd import spmd
from podracer.replay import host
from podracer.replay.base import ReplaySpec
from podracer.replay.host import Host
from podracer.replay.uniform import Uniform
from podracer.runner import Due
from tests.contract.tables import SMALL
from tests.replay.oracle import Oracle, make_streams, to_trajectory
from tests.replay.test_stores import CASES, check_sequences

NAMES = ("transitions", "one_step_unrolls", "n_step", "unrolls", "all_of_the_store")


@functools.cache
def compiled(name: str) -> tuple[Host, Any, Any]:
    spec, capacity = CASES[name]
    store = Host(spec=spec, capacity=capacity, learning_starts=0)
    return store, jax.jit(store.add, donate_argnums=0), jax.jit(store.sample, donate_argnums=0)


def shapes(spec: ReplaySpec) -> Any:
    streams = make_streams(np.random.default_rng(0), spec.num_envs, spec.unroll_length + 1)
    return jax.eval_shape(lambda: jax.tree.map(jnp.asarray, to_trajectory(streams, 0, spec.unroll_length)))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**20), samples=st.lists(st.integers(0, 2), min_size=1, max_size=20))
def test_F09_a_batch_is_of_what_the_lists_held_when_it_was_drawn(name, seed, samples):
    """After each unroll some batches: the first of all is drawn at once, the others by the one before."""
    store, add, sample = compiled(name)
    spec, _ = CASES[name]
    streams = make_streams(np.random.default_rng(seed), spec.num_envs, len(samples) * spec.unroll_length + 1)
    oracle, state, drawn_from = Oracle(spec, store.num_rows, streams), store.init(shapes(spec)), None
    for turn, count in enumerate(samples):
        state = add(state, oracle.add())
        starts = set(oracle.starts())
        assert store.can_sample(state) == bool(starts)
        assert store.size(state) == min(oracle.written, oracle.num_rows) * spec.num_envs
        for index in range(count if starts else 0):
            state, batch = sample(state, jax.random.key(100 * turn + index))
            assert set(check_sequences(oracle, batch)) == (drawn_from or starts)
            np.testing.assert_allclose(batch.probabilities, 1 / len(drawn_from or starts), rtol=1e-6)
            drawn_from = starts


def test_it_draws_what_the_uniform_store_draws():
    spec, capacity = CASES["n_step"]
    store, add, sample = compiled("n_step")
    uniform = Uniform(spec=spec, capacity=capacity, learning_starts=0)
    streams = make_streams(np.random.default_rng(5), spec.num_envs, 40 * spec.unroll_length + 1)
    state, expected_state = store.init(shapes(spec)), uniform.init(shapes(spec))
    uniform_add = jax.jit(uniform.add)
    for index in range(40):
        trajectory = to_trajectory(streams, index * spec.unroll_length, spec.unroll_length)
        state, expected_state = add(state, trajectory), uniform_add(expected_state, trajectory)
    first, second = jax.random.split(jax.random.key(7))
    for key, drawn_with in [(jax.random.key(7), first), (jax.random.key(8), second)]:
        state, batch = sample(state, key)
        _, expected = jax.jit(uniform.sample)(expected_state, drawn_with)
        jax.tree.map(np.testing.assert_array_equal, batch, expected)


def test_every_device_has_a_memory_of_its_own():
    """On 8 of 8 devices that wait for each other, inside one program."""
    spec = ReplaySpec(num_envs=16, unroll_length=2, batch_size=512, sequence_length=2, num_devices=8)
    store = Host(spec=spec, capacity=96, learning_starts=0, axis_name="devices")
    mesh = Mesh(np.array(jax.devices()), ("devices",))
    streams = make_streams(np.random.default_rng(0), 2, 3)

    def program(key):
        def fill(index, carry):
            state, _, total = carry
            trajectory = jax.tree.map(jnp.asarray, to_trajectory(streams, 0, 2))
            number = 1000 * collectives.axis_index("devices") + index
            observation = jnp.full((3, 2, 20_000), number, jnp.int32)
            timestep = trajectory.steps.timestep._replace(observation=observation, step_type=jnp.ones((3, 2), jnp.int8))
            state = store.add(state, trajectory._replace(steps=trajectory.steps._replace(timestep=timestep)))
            state, batch = store.sample(state, jax.random.fold_in(key, index))
            return state, batch.trajectory.steps.timestep.observation[0, :, 0], collectives.psum(total + 1, "devices")

        timestep = shapes(spec).steps.timestep._replace(observation=jax.ShapeDtypeStruct((3, 2, 20_000), jnp.int32))
        example = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, to_trajectory(streams, 0, 2)))
        timestep = example.steps.timestep._replace(observation=timestep.observation)
        start = store.init(example._replace(steps=example.steps._replace(timestep=timestep)))
        return jax.lax.fori_loop(0, 7, fill, (start, jnp.zeros((64,), jnp.int32), jnp.zeros(())))[1]

    found = jax.jit(spmd(program, mesh, PartitionSpec(), PartitionSpec("devices")))(jax.random.key(0))
    for device, numbers in enumerate(np.split(np.asarray(found), 8)):
        # Three unrolls fit; the last batch was drawn after the sixth, when the fourth was the oldest.
        assert set(numbers.tolist()) == {1000 * device + index for index in (3, 4, 5)}


CATCH = (*SMALL, "env=catch", "env.kwargs.rows=5", "env.kwargs.columns=3", "agent=dqn", "agent.batch_size=16")
HOST = ("replay=host", "replay.capacity=480", "replay.learning_starts=0", "replay.replay_ratio=0.0625")


@pytest.mark.parametrize(
    "runner",
    [
        ("runner=anakin", "runner.updates_per_call=2", "mesh.learner=2"),
        ("runner=sebulba", "runner.threads_per_device=1", "mesh.actor_ids=[0]", "mesh.learner_ids=[1,2]"),
    ],
)
def test_either_runner_learns_from_host_memory(runner):
    run = build.build(load_config([*CATCH, *HOST, *runner, "checkpoint.enabled=false", "total_env_steps=384"]))
    reports = list(run.runner.run(run.runner.init(), lambda updates: Due(updates + 2)))
    assert abs(sum(r.counters["agent_updates"] for r in reports) - 0.0625 * reports[-1].env_steps) < 1.001
    assert np.all(np.isfinite(list(reports[-1].metrics.values())))


def test_what_no_checkpoint_holds_is_refused():
    with pytest.raises(ConfigError, match=r"replay=host .* set checkpoint.enabled=false"):
        build.build(load_config([*CATCH, *HOST]))


def test_more_than_the_machine_has_is_refused():
    form = host.Rest(np.zeros((0, 84, 84), np.uint8), np.zeros((0,), np.int32), ())
    with pytest.raises(MemoryError, match=r"replay=host needs 13.8 TiB and the machine has .*; lower replay.capacity"):
        host._Memory(form, 2**30, 2)  # 2 x 2^30 x (7,056 + 4) bytes
