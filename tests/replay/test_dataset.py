"""A recording as a store: the same starts and sequences as the lists that it was made of."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, PartitionSpec

from podracer import build
from podracer.config import load_config
from podracer.parallel.spmd import spmd
from podracer.replay.base import ReplaySpec
from podracer.replay.dataset import Dataset
from podracer.runner import Due
from podracer.types import Trajectory
from tests.contract.tables import SMALL
from tests.replay.oracle import Oracle, make_streams, to_trajectory
from tests.replay.recordings import record
from tests.replay.test_stores import check_sequences

# Of the run that learns: it acts in other numbers of environments, for another time, than the recorded one.
SPEC = ReplaySpec(num_envs=4, unroll_length=5, batch_size=4096, sequence_length=4)


def make_recording(folder: Path, seed: int, num_shards: int, adds: int) -> Oracle:
    """Unrolls of 3 steps of 4 environments."""
    streams = make_streams(np.random.default_rng(seed), 4, 3 * adds + 1)
    width = 4 // num_shards
    record(
        folder,
        [
            [to_trajectory(streams[width * shard : width * (shard + 1)], 3 * index, 3) for index in range(adds)]
            for shard in range(num_shards)
        ],
    )
    spec = ReplaySpec(**{**vars(SPEC), "unroll_length": 3})
    oracle = Oracle(spec, 3 * adds, streams)
    oracle.written = 3 * adds
    return oracle


def example(num_envs: int = 4) -> Trajectory:
    streams = make_streams(np.random.default_rng(0), num_envs, 6)
    return jax.eval_shape(lambda: jax.tree.map(jnp.asarray, to_trajectory(streams, 0, 5)))


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**20), num_shards=st.sampled_from([1, 2, 4]), adds=st.integers(2, 8))
def test_F09_a_dataset_samples_what_was_recorded(tmp_path_factory, seed, num_shards, adds):
    folder = tmp_path_factory.mktemp("recording")
    oracle = make_recording(folder, seed, num_shards, adds)
    store = Dataset(spec=SPEC, folder=str(folder))
    state = jax.jit(lambda: store.init(example()))()
    assert store.size(state) == 12 * adds == store.summary()["capacity"]
    assert store.can_sample(state) == bool(oracle.starts())
    if not oracle.starts():
        return
    _, batch = jax.jit(store.sample)(state, jax.random.key(seed))
    assert set(check_sequences(oracle, batch)) == set(oracle.starts())


def test_what_a_run_adds_is_counted_and_not_stored(tmp_path):
    make_recording(tmp_path, 0, 1, 5)
    store = Dataset(spec=SPEC, folder=str(tmp_path), replay_ratio=0.5)
    state = start = store.init(example())
    assert store.take_updates(state)[1] == 0
    streams = make_streams(np.random.default_rng(1), 4, 6)
    state = store.add(state, to_trajectory(streams, 0, 5))
    for before, after in zip(jax.tree.leaves(start[:3]), jax.tree.leaves(state[:3]), strict=True):
        np.testing.assert_array_equal(before, after)
    inserted = int(state.credit.inserted[0])
    assert 0 < inserted <= 20 and store.take_updates(state)[1] == inserted // 2


def test_devices_share_the_environments_of_a_recording(tmp_path):
    oracle = make_recording(tmp_path, 2, 1, 6)
    spec = ReplaySpec(**{**vars(SPEC), "num_devices": 2})
    store = Dataset(spec=spec, folder=str(tmp_path), axis_name="devices")
    mesh = Mesh(np.array(jax.devices()[:2]), ("devices",))

    def sample(key):
        state = store.init(example(2))
        return store.sample(state, key)[1].trajectory.steps.timestep.observation[0]

    found = jax.jit(spmd(sample, mesh, PartitionSpec(), PartitionSpec("devices")))(jax.random.key(0))
    for device, numbers in enumerate(np.split(np.asarray(found), 2)):
        assert set(numbers.tolist()) == {start for start in oracle.starts() if start // 2000 == device}


def wrong_dtype(trajectory: Trajectory) -> Trajectory:
    return trajectory._replace(steps=trajectory.steps._replace(action=trajectory.steps.action.astype(jnp.float32)))


def more_extras(trajectory: Trajectory) -> Trajectory:
    return trajectory._replace(steps=trajectory.steps._replace(extras={"value": trajectory.steps.action}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (wrong_dtype, r"steps/action is int32\[4, 4\] in place of float32\[4, 4\]"),
        (more_extras, "it lacks steps/extras/value"),
    ],
)
def test_a_recording_of_something_else_is_refused(tmp_path, change, message):
    make_recording(tmp_path, 0, 1, 5)
    with pytest.raises(ValueError, match=message):
        Dataset(spec=SPEC, folder=str(tmp_path)).init(jax.eval_shape(lambda: change(to_arrays_of(example()))))


def to_arrays_of(shapes: Trajectory) -> Trajectory:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_devices": 3, "batch_size": 6}, "is of 4 environments, which do not divide over 3 learner devices"),
        ({"sequence_length": 17}, "holds 15 timesteps of each environment, too few for sequences of 17"),
    ],
)
def test_a_recording_that_does_not_fit_is_refused(tmp_path, changes, message):
    make_recording(tmp_path, 0, 1, 5)
    with pytest.raises(ValueError, match=message):
        Dataset(spec=ReplaySpec(**{**vars(SPEC), **changes}), folder=str(tmp_path))


def test_memory_at_other_steps_than_sequences_start_at_is_refused(tmp_path):
    make_recording(tmp_path, 0, 1, 8)
    spec = ReplaySpec(**{**vars(SPEC), "sequence_period": 5, "sequence_length": 6})
    with pytest.raises(ValueError, match=r"memory at every 3 timesteps, .* use agent.unroll_length=3"):
        Dataset(spec=spec, folder=str(tmp_path)).init(example())


CATCH = (*SMALL, "env=catch", "env.kwargs.rows=5", "env.kwargs.columns=3", "agent=dqn", "agent.batch_size=16")


@pytest.mark.parametrize(
    "runner",
    [
        ("runner=anakin", "runner.updates_per_call=1", "mesh.learner=2"),
        ("runner=sebulba", "runner.threads_per_device=1", "mesh.actor_ids=[0]", "mesh.learner_ids=[1,2]"),
    ],
)
def test_either_runner_trains_offline(tmp_path, runner):
    recorded = build.build(load_config([*CATCH, "total_env_steps=384", f"recording.folder={tmp_path}/recording"]))
    recorded.recorder.claim(resumes=False)
    with recorded.recorder:
        for _ in recorded.runner.run(recorded.runner.init(), lambda updates: Due(8)):
            pass
    run = build.build(
        load_config(
            [
                *CATCH,
                "total_env_steps=144",
                "replay=dataset",
                f"replay.folder={tmp_path}/recording",
                "replay.replay_ratio=0.1",
                *runner,
            ]
        )
    )
    reports = list(run.runner.run(run.runner.init(), lambda updates: Due(updates + 1, snapshot=True)))
    steps = reports[-1].env_steps
    assert abs(sum(report.counters["agent_updates"] for report in reports) - 0.1 * steps) < 1.001
    assert run.plan.replay["capacity"] == 384
