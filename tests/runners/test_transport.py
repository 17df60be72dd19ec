import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.runners.transport import ParameterStore, join_batch, pack, shard_over, split_batch, unpack
from podracer.runners.workers import Stopped, Workers
from podracer.types import PolicySnapshot, Step, TimeStep, Trajectory
from tests.runners.doubles import Factory, make_sebulba


def snapshot(version):
    tree = {
        "matrix": np.arange(6, dtype=np.float32).reshape(2, 3) + version,
        "counts": np.array([3, version], np.int32),
        "scalar": np.float32(version / 8),
        "half": np.array([1.5, version], jnp.bfloat16),
        "flags": np.array([True, False]),
        "nothing": (),
    }
    return PolicySnapshot(jax.tree.map(jnp.asarray, tree), jnp.float32(0.5), jnp.int32(version))


def test_pack_and_unpack_are_inverse_for_mixed_dtypes():
    tree = snapshot(7)
    packed = jax.jit(pack)(tree)
    # float32: 6 + 1 + progress; int32: 2 + version; bfloat16: 2; bool: 2.
    assert {dtype: leaf.shape for dtype, leaf in packed.items()} == {
        "float32": (8,),
        "int32": (3,),
        "bfloat16": (2,),
        "bool": (2,),
    }
    result = unpack(packed, jax.eval_shape(lambda: snapshot(7)))
    assert jax.tree.structure(result) == jax.tree.structure(tree)
    for got, expected in zip(jax.tree.leaves(result), jax.tree.leaves(tree)):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)


def make_store(workers, keep, devices=(1, 2, 1)):
    return ParameterStore(workers, [jax.devices()[i] for i in devices], jax.eval_shape(lambda: snapshot(0)), keep)


def test_the_store_keeps_the_last_versions_on_every_device():
    with Workers() as workers:
        store = make_store(workers, keep=3)
        for version in range(6):
            store.publish(version, pack(snapshot(version)))
        assert sorted(store._snapshots) == [3, 4, 5]
        for version in (3, 4, 5):
            for device in jax.devices()[1:3]:
                got = store.get(version, device)
                assert int(got.version) == int(got.params["counts"][1]) == version
                assert {d for leaf in jax.tree.leaves(got) for d in leaf.devices()} == {device}
        version, got = store.newest(jax.devices()[2])
        assert version == int(got.version) == 5


def test_actors_wait_for_their_version_and_for_the_end_of_the_run():
    with Workers() as workers:
        store, seen = make_store(workers, keep=2), []
        workers.start("w-actor", lambda: seen.append(int(store.get(1, jax.devices()[1]).version)))
        store.publish(0, pack(snapshot(0)))
        time.sleep(0.1)
        assert seen == []
        store.publish(1, pack(snapshot(1)))
        workers._threads[0].join(5)
        assert seen == [1]

        def waits():
            with pytest.raises(Stopped):
                store.get(2, jax.devices()[1])
            seen.append("stopped")

        workers.start("w-waits", waits)
    assert seen == [1, "stopped"]


def test_newest_does_not_wait_for_an_update_that_is_under_way():
    device = jax.devices()[1]
    # Long enough to be looked at while it runs, on another device than the actor's.
    matrix = jax.device_put(jnp.eye(400), jax.devices()[2])

    @jax.jit
    def update(matrix):
        result = jax.lax.fori_loop(0, 300, lambda i, x: x @ matrix, matrix)
        return pack(snapshot(1)._replace(progress=result[0, 0]))

    jax.block_until_ready(update(matrix))
    with Workers() as workers:
        store = make_store(workers, keep=3, devices=(1,))
        store.publish(0, pack(snapshot(0)))
        store.get(0, device)
        under_way = update(matrix)
        store.publish(1, under_way)
        version, got = store.newest(device)
        assert not under_way["float32"].is_ready()
        assert version == int(got.version) == 0
        store.get(1, device)
        assert store.newest(device)[0] == 1


def trajectory(env_indices, unroll_length=2):
    """Steps whose observation is the index of their environment."""
    columns = jnp.broadcast_to(jnp.asarray(env_indices, jnp.float32), (unroll_length + 1, len(env_indices)))
    timestep = TimeStep(columns.astype(jnp.int8), columns, columns, columns[..., None])
    return Trajectory(Step(timestep, columns.astype(jnp.int32), {}), {"core": jnp.asarray(env_indices, jnp.int32)})


def test_split_and_join_are_inverse():
    whole = trajectory(range(6))
    pieces = split_batch(whole, 3)
    assert [piece.actor_state["core"].tolist() for piece in pieces] == [[0, 1], [2, 3], [4, 5]]
    assert [piece.steps.timestep.observation.shape for piece in pieces] == [(3, 2, 1)] * 3
    jax.tree.map(np.testing.assert_array_equal, join_batch(pieces), whole)


@pytest.mark.parametrize(
    ("actors", "threads", "learners"),
    [((0,), 1, (0, 1, 2, 3)), ((0, 1), 1, (2, 3)), ((0,), 4, (2, 3)), ((0,), 2, (5,))],
)
def test_an_environment_always_lands_in_the_same_column_of_the_same_learner(actors, threads, learners):
    runner = make_sebulba(Factory(4), actors=actors, threads=threads, learners=learners)
    num_actors, num_envs = len(actors) * threads, runner.plan.num_envs
    parts = max(1, len(learners) // num_actors)
    per_device = runner.pieces_per_device
    pieces = []
    for actor in range(num_actors):
        first = actor * len(learners) // num_actors
        for part, piece in enumerate(split_batch(trajectory(range(4 * actor, 4 * actor + 4)), parts)):
            pieces.append(jax.device_put(piece, jax.devices()[learners[first + part]]))
    joined = [shard_over(runner.mesh, pieces[rank::per_device]) for rank in range(per_device)]
    share = num_envs // len(learners)
    for position, learner in enumerate(learners):
        local = [
            jax.tree.map(
                lambda leaf, learner=learner: next(s.data for s in leaf.addressable_shards if s.device.id == learner),
                sharded,
            )
            for sharded in joined
        ]
        batch = join_batch([jax.device_get(piece) for piece in local])
        expected = list(range(position * share, (position + 1) * share))
        assert batch.actor_state["core"].tolist() == expected
        np.testing.assert_array_equal(batch.steps.timestep.observation[1, :, 0], expected)
