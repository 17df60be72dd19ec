import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from podracer.parallel.mesh import MeshConfig, PlanError, Topology, plan
from podracer.parallel.placement import LEARNER_AXIS, actor_devices, learner_mesh


def make_plan(mesh, threads_per_device=1, runner="sebulba", **topology):
    return plan(
        runner=runner,
        topology=Topology(**({"devices_per_host": 8} | topology)),
        mesh=mesh,
        num_envs=48,
        unroll_length=4,
        total_env_steps=10_000,
        seed=0,
        threads_per_device=threads_per_device,
    )


def test_learner_mesh_is_the_learner_devices_in_order():
    mesh = learner_mesh(make_plan(MeshConfig(actor_ids=(0,), learner_ids=(5, 2))))
    devices = jax.local_devices()
    assert list(mesh.devices.flat) == [devices[5], devices[2]]
    assert mesh.axis_names == (LEARNER_AXIS,)
    assert mesh.axis_types == (AxisType.Auto,)
    x = jax.device_put(jnp.arange(4.0), NamedSharding(mesh, PartitionSpec(LEARNER_AXIS)))
    assert {s.device: s.data.tolist() for s in x.addressable_shards} == {devices[5]: [0, 1], devices[2]: [2, 3]}


def test_B23_actors_go_thread_by_thread_over_their_devices():
    devices = jax.local_devices()
    result = actor_devices(make_plan(MeshConfig(actor_ids=(3, 1), learner_ids=(0, 2)), threads_per_device=2))
    assert result == [devices[3], devices[3], devices[1], devices[1]]


def test_anakin_acts_where_it_learns():
    result = make_plan(MeshConfig(learner=4), runner="anakin", devices_per_host=4)
    assert actor_devices(result) == list(learner_mesh(result).devices.flat) == jax.local_devices()[:4]


@pytest.mark.parametrize("topology", [{"hosts": 2}, {"devices_per_host": 16}])
def test_a_plan_for_other_machines_is_not_run(topology):
    result = make_plan(MeshConfig(actor=1, learner=1), **topology)
    for place in (learner_mesh, actor_devices):
        with pytest.raises(PlanError, match="can be shown, but not run"):
            place(result)
