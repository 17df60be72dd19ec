"""The machines to plan for: those that are here, those with a name, or any number of hosts and devices."""

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import jax

from podracer.parallel.divides import PlanError, nearest_multiples
from podracer.parallel.mesh import Topology

_GIB = 2**30


@dataclass(frozen=True)
class _TpuGeneration:
    """A generation of Cloud TPUs, as https://cloud.google.com/tpu/docs describes it."""

    counted_per_device: int  # what the number in the name counts, a JAX device
    devices_per_host: int  # in slices of several hosts
    one_host_cores: dict[int, int]  # virtual cores of slices of one host, by the number in the name
    largest: int  # number in the name of the largest slice
    device_memory_gib: int
    cores_per_host: int  # in slices of several hosts


# The number counts TensorCores up to v5p, chips in v5e and v6e. A TensorCore is a JAX device in v2
# and v3; the two of a chip are one device in v4 and v5p.
_TPUS = {
    "v2": _TpuGeneration(1, 8, {8: 96}, 512, 8, 96),
    "v3": _TpuGeneration(1, 8, {8: 96}, 2048, 16, 96),
    "v4": _TpuGeneration(2, 4, {8: 240}, 8192, 32, 240),
    "v5e": _TpuGeneration(1, 4, {1: 24, 4: 112, 8: 224}, 256, 16, 112),
    "v5p": _TpuGeneration(2, 4, {8: 208}, 12288, 95, 208),
    "v6e": _TpuGeneration(1, 4, {1: 44, 4: 180, 8: 180}, 256, 32, 180),
}

_OTHERS = {
    "cpu": Topology(name="cpu", cores_per_host=8),
    "gpu": Topology(name="gpu", platform="gpu", cores_per_host=8),
    "dgx-a100": Topology(
        name="dgx-a100", devices_per_host=8, platform="gpu", device_memory_bytes=80 * _GIB, cores_per_host=128
    ),
    "dgx-h100": Topology(
        name="dgx-h100", devices_per_host=8, platform="gpu", device_memory_bytes=80 * _GIB, cores_per_host=112
    ),
}


def resolve_topology(value: Topology | Mapping[str, Any] | str | None) -> Topology:
    """Finds the machines that a setting means.

    Args:
      value: None for the machines that are here; a name, such as "tpu-v3-2048"; or fields of
        `Topology`, where `name` gives the ones that are left out.

    Raises:
      PlanError: for an unknown name or field, with the nearest ones.
    """
    if value is None:
        return local_topology()
    if isinstance(value, Topology):
        return value
    if isinstance(value, str):
        return named_topology(value)
    given = {key: setting for key, setting in value.items() if setting is not None}
    known = [field.name for field in fields(Topology)]
    for key in given:
        if key not in known:
            raise PlanError(f"topology.{key} is unknown; there are {', '.join(known)}")
    name = given.pop("name", "")
    return replace(named_topology(name) if name else Topology(), **given)


def local_topology() -> Topology:
    """Reads what is here. Starts the JAX backend."""
    device = jax.local_devices()[0]
    statistics = device.memory_stats() or {}
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # only Linux says which cores a process may use
        cores = os.cpu_count() or 1
    return Topology(
        hosts=jax.process_count(),
        devices_per_host=jax.local_device_count(),
        platform=device.platform,
        device_memory_bytes=statistics.get("bytes_limit"),
        cores_per_host=cores,
        name="local",
    )


def named_topology(name: str) -> Topology:
    """Finds a machine, or a slice of a pod, by its name."""
    if name in _OTHERS:
        return _OTHERS[name]
    match = re.fullmatch(r"tpu-(v\d[ep]?)-(\d+)", name)
    if match is None or match[1] not in _TPUS:
        near = difflib.get_close_matches(name, topology_names(), n=3, cutoff=0.5) or topology_names()
        raise PlanError(f"topology={name} is unknown; the nearest are {', '.join(near)}")
    return _tpu_topology(match[1], int(match[2]))


def topology_names() -> list[str]:
    """Lists names; a TPU slice may have any number of whole hosts."""
    slices = [
        f"tpu-{generation}-{size}"
        for generation, tpu in _TPUS.items()
        for size in (*tpu.one_host_cores, *(2**power for power in range(4, 15) if 2**power <= tpu.largest))
    ]
    return [*_OTHERS, *slices]


def _tpu_topology(generation: str, size: int) -> Topology:
    tpu = _TPUS[generation]
    host = tpu.devices_per_host * tpu.counted_per_device
    one_host = size in tpu.one_host_cores
    if not one_host and (size % host or not max(tpu.one_host_cores) < size <= tpu.largest):
        candidates = {*tpu.one_host_cores, *(min(n, tpu.largest) for n in nearest_multiples(size, host) if n > host)}
        nearest = sorted(sorted(candidates, key=lambda n: abs(n - size))[:2])
        names = " or ".join(f"tpu-{generation}-{n}" for n in nearest)
        raise PlanError(f"topology=tpu-{generation}-{size} is no slice of whole hosts; use {names}")
    return Topology(
        hosts=1 if one_host else size // host,
        devices_per_host=size // tpu.counted_per_device if one_host else tpu.devices_per_host,
        platform="tpu",
        device_memory_bytes=tpu.device_memory_gib * _GIB,
        cores_per_host=tpu.one_host_cores[size] if one_host else tpu.cores_per_host,
        name=f"tpu-{generation}-{size}",
    )
