"""What is recorded is what was added: in order, whole, under both runners, and over the end of a process."""

import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from podracer import api
from podracer.config import load_config
from podracer.conversion import ConfigError
from podracer.parallel import collectives
from podracer.parallel.spmd import spmd
from podracer.replay.dataset import read
from podracer.replay.on_policy import OnPolicy
from podracer.replay.recorded import Recorded
from podracer.replay.recorder import Recorder, RecordingConfig
from podracer.replay.recording import open_recording
from podracer.types import Trajectory
from tests.contract.tables import SMALL
from tests.replay.oracle import make_streams, to_trajectory
from tests.replay.recordings import record


def side_by_side(shards: list[Trajectory]) -> Trajectory:
    steps = jax.tree.map(lambda *leaves: np.concatenate(leaves, 1), *[shard.steps for shard in shards])
    memory = jax.tree.map(lambda *leaves: np.concatenate(leaves, 0), *[shard.actor_state for shard in shards])
    return Trajectory(steps, memory)


def make_shards(seed: int, num_shards: int, adds: int) -> list[list[Trajectory]]:
    streams = make_streams(np.random.default_rng(seed), 2 * num_shards, 3 * adds + 1)
    return [
        [to_trajectory(streams[2 * shard : 2 * shard + 2], 3 * index, 3) for index in range(adds)]
        for shard in range(num_shards)
    ]


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 2**20), num_shards=st.integers(1, 3), adds=st.integers(1, 12), chunk_bytes=st.integers(1, 2000)
)
def test_F09_what_is_read_is_what_was_put(tmp_path_factory, seed, num_shards, adds, chunk_bytes):
    folder, shards = tmp_path_factory.mktemp("recording"), make_shards(seed, num_shards, adds)
    record(folder, shards, chunk_bytes=chunk_bytes)
    unrolls = list(read(folder))
    assert len(unrolls) == adds
    for index, unroll in enumerate(unrolls):
        jax.tree.map(np.testing.assert_array_equal, unroll, side_by_side([shard[index] for shard in shards]))


@pytest.mark.parametrize("num_devices", [1, 2, 8])
def test_every_device_records_from_inside_a_program(tmp_path, num_devices):
    """8 of 8 devices: while all threads of the CPU's client wait in a call, no argument may need one of them."""
    recorder = Recorder(tmp_path, num_devices, 2**20)
    axis_name = "devices" if num_devices > 1 else None
    store = Recorded(store=OnPolicy(), recorder=recorder, axis_name=axis_name)
    mesh = Mesh(np.array(jax.devices()[:num_devices]), ("devices",))
    streams = make_streams(np.random.default_rng(0), 2, 4)

    def trajectory(index: jax.Array, shard: jax.Array) -> Trajectory:
        small = jax.tree.map(jnp.asarray, to_trajectory(streams, 0, 3))
        large = jnp.full((4, 2, 40_000), 1000 * shard + index, jnp.float32)
        timestep = small.steps.timestep._replace(observation=large)
        return small._replace(steps=small.steps._replace(timestep=timestep))

    def program(state, count):
        shard = collectives.axis_index(axis_name)

        def add(index, carry):
            state, total = carry
            state = store.retain(store.add(state, trajectory(index, shard)))
            return state, collectives.psum(total + 1.0, axis_name)  # devices wait for each other

        return jax.lax.fori_loop(0, count, add, (state, jnp.zeros((1,))))[0]

    sharding = NamedSharding(mesh, PartitionSpec("devices"))
    state = jax.device_put(jnp.zeros((num_devices,), jnp.int32), sharding)
    start = store.init(jax.eval_shape(trajectory, 0, 0))._replace(index=state)
    with recorder:
        jitted = jax.jit(spmd(program, mesh, (PartitionSpec("devices"), PartitionSpec()), PartitionSpec("devices")))
        for _ in range(2):
            start = jax.block_until_ready(jitted(start, 3))
    unrolls = [unroll.steps.timestep.observation[0, :, 0] for unroll in read(tmp_path)]
    expected = [np.repeat(1000 * np.arange(num_devices) + index % 3, 2) for index in range(6)]
    np.testing.assert_array_equal(unrolls, expected)


def test_a_run_that_goes_on_replaces_what_came_after_its_checkpoint(tmp_path):
    """Ten unrolls in chunks of four; the checkpoint was after six."""
    (before,), (after,) = make_shards(1, 1, 10), make_shards(2, 1, 10)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(before[0]))
    record(tmp_path, [before], chunk_bytes=4 * size)
    record(tmp_path, [after[6:9]], first=6, chunk_bytes=4 * size)
    assert [chunk[1:3] for chunk in open_recording(tmp_path).chunks[0]] == [(0, 4), (4, 6), (6, 9)]
    expected = [*before[:6], *after[6:9]]
    for unroll, original in zip(read(tmp_path), expected, strict=True):
        jax.tree.map(np.testing.assert_array_equal, unroll, original)


def test_a_killed_run_leaves_whole_chunks_only(tmp_path):
    (unrolls,) = make_shards(1, 1, 5)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(unrolls[0]))
    recorder = Recorder(tmp_path, 1, 2 * size)
    recorder.claim(resumes=False)
    recorder._thread.start()  # and never ended
    for index, unroll in enumerate(unrolls):
        recorder.put(np.int32(0), np.array([index], np.int32), unroll)
    recorder._queue.join()
    (tmp_path / ".unrolls-0000-0000000004-0000000005.npz.partial").write_bytes(b"half")
    assert len(list(read(tmp_path))) == 4


def test_unrolls_that_not_all_shards_have_are_left_out(tmp_path):
    first, second = make_shards(1, 2, 5)
    record(tmp_path, [first, second[:3]], chunk_bytes=1)
    assert len(list(read(tmp_path))) == 3


def test_what_is_no_recording_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"holds no recording.json; record with recording.folder="):
        list(read(tmp_path))
    record(tmp_path, make_shards(1, 1, 5), chunk_bytes=1)
    (tmp_path / "unrolls-0000-0000000002-0000000003.npz").unlink()
    with pytest.raises(ValueError, match="lacks unrolls 2 to 2 of shard 0"):
        list(read(tmp_path))
    with pytest.raises(ValueError, match="chunk_mebibytes=0 is not positive"):
        RecordingConfig(chunk_mebibytes=0)


def train(folder: Path, *overrides: str, updates: int) -> None:
    overrides = (*SMALL, *overrides, f"total_env_steps={48 * updates}", "logger.console=none")
    api.train(load_config(overrides), folder)


def check_continuity(folder: Path, updates: int) -> None:
    """Every unroll begins where the one before ended."""
    observations = [unroll.steps.timestep.observation for unroll in read(folder)]
    assert len(observations) == updates and observations[0].shape[:2] == (7, 8)
    for before, after in itertools.pairwise(observations):
        np.testing.assert_array_equal(before[-1], after[0])


CATCH = ("agent=impala", "env=catch", "env.kwargs.rows=5", "env.kwargs.columns=3")


def test_anakin_records_all_of_a_run_also_one_that_goes_on(tmp_path):
    folder = tmp_path / "recording"
    settings = (*CATCH, f"recording.folder={folder}", "mesh.learner=2", "recording.chunk_mebibytes=0.01")
    train(tmp_path / "run", *settings, updates=5)
    check_continuity(folder, 5)
    with pytest.raises(ConfigError, match=r"recording.folder=.* is not empty; choose another folder"):
        train(tmp_path / "other", *settings, updates=5)
    config = load_config([*SMALL, *settings, f"total_env_steps={48 * 7}", "logger.console=none"])
    api.resume(tmp_path / "run", config)
    check_continuity(folder, 7)


def test_sebulba_records_all_of_a_run(tmp_path):
    folder = tmp_path / "recording"
    sebulba = ("runner=sebulba", "mesh.actor_ids=[0]", "mesh.learner_ids=[1,2]", "runner.threads_per_device=1")
    train(tmp_path / "run", *CATCH, *sebulba, f"recording.folder={folder}", updates=5)
    check_continuity(folder, 5)


def test_a_recording_that_cannot_be_written_ends_the_run(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("podracer.replay.recording.write_chunk", full)
    settings = (
        *CATCH,
        f"recording.folder={tmp_path / 'recording'}",
        "recording.chunk_mebibytes=0.001",
        "mesh.learner=1",
    )
    with pytest.raises(OSError, match="No space left") as raised:
        train(tmp_path / "run", *settings, "runner.updates_per_call=1", updates=50)
    assert "cannot be written" in raised.value.__notes__[0]
