"""From the numbers of a plan to the devices that are there."""

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from podracer.parallel.divides import PlanError
from podracer.parallel.mesh import Plan

LEARNER_AXIS = "learner"
"""The mesh axis over which gradients are averaged."""
MEMBER_AXIS = "member"
"""The mesh axis of runs that are trained together; nothing is averaged over it."""


def learner_mesh(plan: Plan) -> Mesh:
    """Makes the mesh of the learner devices of all hosts, host after host.

    Raises:
      PlanError: if the plan is for other machines.
    """
    hosts = [_devices(plan, host) for host in range(plan.topology.hosts)]
    devices = np.array([host[index] for host in hosts for index in plan.learner_ids])
    # `jax.make_mesh` would make the axis Explicit, and agents say nothing of shardings.
    return Mesh(devices, (LEARNER_AXIS,), axis_types=(AxisType.Auto,))


def member_mesh(num_members: int) -> Mesh:
    """Makes the mesh of runs that are trained together, each on one device: no more devices than members.

    Raises:
      PlanError: there are several processes.
    """
    if jax.process_count() > 1:
        raise PlanError(f"runs are trained together by one process, and here are {jax.process_count()}")
    devices = np.array(jax.local_devices()[:num_members])
    return Mesh(devices, (MEMBER_AXIS,), axis_types=(AxisType.Auto,))


def actor_devices(plan: Plan) -> list[jax.Device]:
    """Lists the device of each actor of this host: actor a runs on `actor_ids[a // threads_per_device]`.

    Raises:
      PlanError: if the plan is for other machines.
    """
    devices = _devices(plan, jax.process_index())
    return [devices[plan.actor_ids[actor // plan.threads_per_device]] for actor in range(plan.actors_per_host)]


def _devices(plan: Plan, host: int) -> list[jax.Device]:
    topology, hosts, devices_per_host = plan.topology, jax.process_count(), jax.local_device_count()
    if topology.hosts != hosts or topology.devices_per_host > devices_per_host:
        raise PlanError(
            f"the plan is for topology.hosts={topology.hosts} with topology.devices_per_host="
            f"{topology.devices_per_host}, and here are {hosts} with {devices_per_host}: it can be shown, but not run"
        )
    return jax.local_devices(process_index=host)
