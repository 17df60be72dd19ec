import dataclasses

import jax
import jax.numpy as jnp
import pytest

from podracer.parallel.memory import device_bytes, format_bytes, memory, tree_bytes
from podracer.parallel.mesh import MeshConfig, PlanError, Topology, plan


def make_plan(runner, devices, limit=None, mesh=None, **settings):
    topology = Topology(devices_per_host=devices, device_memory_bytes=limit)
    settings = dict(num_envs=8, unroll_length=4, total_env_steps=320, seed=0) | settings
    return plan(runner=runner, topology=topology, mesh=mesh or MeshConfig(), **settings)


def shape(*dims, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(dims, dtype)


def test_tree_bytes():
    # 6 x 4 + 5 x 1 + 1 x 4 bytes; a key is two uint32
    assert tree_bytes({"a": shape(2, 3), "b": (shape(5, dtype=jnp.uint8), shape(dtype=jnp.int32))}) == 33
    assert tree_bytes(jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 3))) == 24
    assert tree_bytes(()) == 0


def test_anakin_holds_everything_on_each_device():
    result = make_plan("anakin", 2)
    held = memory(result, learner_state=shape(100), trajectory=shape(5, 4, 7), actor_state=shape(4, 3))
    assert held == {
        "learner device: learner state": 400,
        "learner device: trajectories": 560,  # 5 x 4 x 7 x 4 bytes, once
        "actor device: actor state": 48,
    }
    assert device_bytes(result, held) == {"device that acts and learns": 1008}


def test_sebulba_shares_trajectories_out():
    # Two threads on the one actor device, 4 environments each; four learner devices get half an actor each.
    result = make_plan("sebulba", 5, mesh=MeshConfig(actor=1, learner=4), threads_per_device=2)
    held = memory(
        result,
        learner_state=shape(100),
        replay_state=shape(10),
        trajectory=shape(5, 4, 7),
        actor_state=shape(4, 3),
        params=shape(25),
        params_versions=2,
        unrolls=3,
    )
    assert held == {
        "learner device: learner state": 400,
        "learner device: replay": 40,
        "learner device: trajectories": 840,  # 3 unrolls x 560 / 2
        "actor device: parameters": 200,  # 2 versions x 100
        "actor device: actor state": 96,  # 2 threads x 48
        "actor device: trajectories": 3360,  # 2 threads x 3 unrolls x 560
    }
    assert device_bytes(result, held) == {"learner device": 1280, "actor device": 3656}
    assert dataclasses.replace(result, memory=held).memory == held


@pytest.mark.parametrize("limit, fits", [(1008, True), (1007, False)])
def test_more_than_a_device_has_is_refused(limit, fits):
    trees = dict(learner_state=shape(100), trajectory=shape(5, 4, 7), actor_state=shape(4, 3))
    result = make_plan("anakin", 2, limit=limit)
    if fits:
        memory(result, **trees)
    else:
        with pytest.raises(PlanError, match=r"would hold 1008 bytes and has 1007 bytes \(.*env.num_envs=8"):
            memory(result, **trees)


def test_format_bytes():
    assert [format_bytes(n) for n in (0, 1023, 1536, 5 * 2**30)] == ["0 bytes", "1023 bytes", "1.5 KiB", "5.0 GiB"]
