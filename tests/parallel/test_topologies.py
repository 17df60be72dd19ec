import os

import pytest

from podracer.parallel.mesh import MeshConfig, PlanError, Topology, plan
from podracer.parallel.topologies import local_topology, named_topology, resolve_topology, topology_names

GIB = 2**30


@pytest.mark.parametrize(
    "name, hosts, devices_per_host, memory_gib",
    [
        ("tpu-v2-8", 1, 8, 8),
        ("tpu-v3-8", 1, 8, 16),
        ("tpu-v3-16", 2, 8, 16),
        ("tpu-v3-2048", 256, 8, 16),
        ("tpu-v4-8", 1, 4, 32),  # 8 cores, 4 chips
        ("tpu-v4-512", 64, 4, 32),
        ("tpu-v5e-1", 1, 1, 16),
        ("tpu-v5e-8", 1, 8, 16),
        ("tpu-v5e-16", 4, 4, 16),
        ("tpu-v5p-128", 16, 4, 95),
        ("tpu-v6e-256", 64, 4, 32),
        ("dgx-a100", 1, 8, 80),
        ("dgx-h100", 1, 8, 80),
    ],
)
def test_named_topologies(name, hosts, devices_per_host, memory_gib):
    topology = named_topology(name)
    assert (topology.hosts, topology.devices_per_host) == (hosts, devices_per_host)
    assert topology.device_memory_bytes == memory_gib * GIB
    assert topology.name == name
    assert topology.cores_per_host > 1


def test_every_listed_name_is_known():
    for name in topology_names():
        assert named_topology(name).name == name


@pytest.mark.parametrize(
    "name, message",
    [
        ("tpu-v3-2047", "no slice of whole hosts; use tpu-v3-2040 or tpu-v3-2048"),
        ("tpu-v3-4096", "use tpu-v3-8 or tpu-v3-2048"),
        ("tpu-v5e-5", "use tpu-v5e-4 or tpu-v5e-8"),
        ("tpu-v4-4", "use tpu-v4-8"),
        ("tpu-v9-8", "unknown; the nearest are .*tpu-v[0-9][ep]?-8"),
        ("dgx-h10", "the nearest are dgx-h100"),
        ("zzz", "the nearest are cpu"),
    ],
)
def test_wrong_names_bring_the_nearest(name, message):
    with pytest.raises(PlanError, match=message):
        resolve_topology(name)


def test_resolve_topology():
    explicit = Topology(hosts=3)
    assert resolve_topology(explicit) is explicit
    assert resolve_topology(None) == local_topology()
    wide = resolve_topology({"hosts": 256, "devices_per_host": 8, "platform": None})
    assert (wide.hosts, wide.devices_per_host, wide.platform) == (256, 8, "cpu")
    four = resolve_topology({"name": "dgx-h100", "hosts": 4})
    assert (four.hosts, four.devices_per_host, four.platform) == (4, 8, "gpu")
    with pytest.raises(PlanError, match=r"topology.host is unknown; there are hosts"):
        resolve_topology({"host": 4})


def test_local_topology_reads_what_is_here():
    topology = local_topology()
    assert (topology.hosts, topology.devices_per_host, topology.platform) == (1, 8, "cpu")  # tests/conftest.py
    assert topology.cores_per_host == len(os.sched_getaffinity(0))


def test_a_pod_is_planned_without_being_there():
    result = plan(
        runner="sebulba",
        topology=named_topology("tpu-v3-2048"),
        mesh=MeshConfig(actor=2, learner=6),
        num_envs=256 * 96,
        unroll_length=60,
        total_env_steps=200_000_000,
        seed=0,
        threads_per_device=3,
    )
    assert (result.actors_per_host, result.actors, result.learners) == (6, 1536, 1536)
    assert (result.envs_per_actor, result.env_threads_per_actor) == (16, 16)
    assert result.updates == 135  # 200,000,000 // (60 x 24,576)
