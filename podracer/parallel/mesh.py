"""The planner: who acts, who learns, and what each device holds. Validates before any device is touched."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from podracer.parallel.divides import PlanError
from podracer.parallel.shares import Shares, check_shares


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Which devices of a host act and which learn. Anakin uses the learner devices for both."""

    learner: int | None = None
    """Learner devices a host; None lets the planner choose."""
    actor: int | None = None
    """Actor devices a host (Sebulba); None lets the planner choose."""
    learner_ids: tuple[int, ...] | None = None
    """Indices of a host's learner devices, in place of a number."""
    actor_ids: tuple[int, ...] | None = None
    """Indices of a host's actor devices, in place of a number; they may be learner devices, too."""
    emulated_devices: int | None = None
    """Splits the CPU into this many devices, to try a mesh without its hardware; None takes what is there."""


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The machines that a plan is made for; they need not be there."""

    hosts: int = 1
    """Machines, one process each."""
    devices_per_host: int = 1
    """JAX devices of each."""
    platform: str = "cpu"
    """What they are: cpu, gpu or tpu."""
    device_memory_bytes: int | None = None
    """Memory of a device; None leaves it unchecked."""
    cores_per_host: int = 1
    """CPU cores of each host, which environments share."""
    name: str = ""
    """A known machine, whose figures hold where none is given: tpu-v3-2048, dgx-a100."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Who does what, in numbers. Global unless the name says otherwise."""

    runner: str
    topology: Topology
    seed: int
    actor_ids: tuple[int, ...]  # of every host; Anakin: the learner's
    learner_ids: tuple[int, ...]  # of every host
    actors: int  # shards of environments that act together: devices (Anakin), actor threads (Sebulba)
    actors_per_host: int
    learners: int  # learner devices
    num_envs: int
    envs_per_actor: int  # B of an actor's shard
    envs_per_learner: int  # B of a learner device
    env_threads_per_actor: int  # threads of an environment pool; 0 under Anakin, which has no pool
    unroll_length: int
    env_steps_per_update: int  # slots
    updates: int
    total_env_steps: int  # slots: updates x env_steps_per_update
    threads_per_device: int = 1  # actor threads on each actor device
    num_minibatches: int = 1  # of a learner device's share of an update
    memory: Mapping[str, int] = field(default_factory=dict, hash=False)  # bytes a device, by what it holds
    replay: Mapping[str, float] = field(default_factory=dict, hash=False)  # what the store's settings come to


def plan(
    *,
    runner: str,
    topology: Topology,
    mesh: MeshConfig,
    num_envs: int,
    unroll_length: int,
    total_env_steps: int,
    seed: int,
    threads_per_device: int = 1,
    num_minibatches: int = 1,
    recurrent: bool = False,
) -> Plan:
    """Plans a run: plain arithmetic, for machines that are there or not.

    An update consumes one unroll of every actor, joined in actor order, and is split over the
    learner devices of the same host in contiguous pieces. Counts are global, so the number of
    devices changes neither the batch nor the number of updates.

    Args:
      runner: "anakin" or "sebulba".
      topology: the machines.
      mesh: which of a host's devices act and learn.
      num_envs: environments that act.
      unroll_length: T, steps an environment takes for an update.
      total_env_steps: the budget in slots; what does not fill an update is left out.
      seed: of the run.
      threads_per_device: actor threads on each actor device (Sebulba).
      num_minibatches: parts that a learner device's share of an update is cut into.
      recurrent: whether minibatches are made of whole sequences.

    Raises:
      PlanError: with the numbers, the keys and the nearest values that work.
    """
    shares = Shares(topology.hosts, 1, threads_per_device, 1, unroll_length, num_minibatches, recurrent)
    _check_counts(shares, topology, num_envs)
    _check_mesh(mesh, topology.devices_per_host)
    if runner == "anakin":
        learner_ids = actor_ids = _anakin_ids(mesh, topology.devices_per_host, threads_per_device)
    elif runner == "sebulba":
        actor_ids, learner_ids = _sebulba_ids(mesh, topology.devices_per_host, shares, num_envs)
    else:
        raise PlanError(f"runner={runner} is none of anakin, sebulba")
    shares = replace(shares, actor_devices=len(actor_ids), learner_devices=len(learner_ids))
    check_shares(shares, num_envs)
    env_steps_per_update = unroll_length * num_envs
    if total_env_steps < env_steps_per_update:
        raise PlanError(
            f"total_env_steps={total_env_steps} is less than the {env_steps_per_update} of one update "
            f"(agent.unroll_length={unroll_length} x env.num_envs={num_envs})",
            [{"total_env_steps": env_steps_per_update}],
        )
    updates = total_env_steps // env_steps_per_update
    actors, learners = topology.hosts * shares.actors_per_host, topology.hosts * len(learner_ids)
    pools_per_host = shares.actors_per_host if runner == "sebulba" else 0
    return Plan(
        runner=runner,
        topology=topology,
        seed=seed,
        actor_ids=actor_ids,
        learner_ids=learner_ids,
        actors=actors,
        actors_per_host=shares.actors_per_host,
        learners=learners,
        num_envs=num_envs,
        envs_per_actor=num_envs // actors,
        envs_per_learner=num_envs // learners,
        env_threads_per_actor=max(1, topology.cores_per_host // pools_per_host) if pools_per_host else 0,
        unroll_length=unroll_length,
        env_steps_per_update=env_steps_per_update,
        updates=updates,
        total_env_steps=updates * env_steps_per_update,
        threads_per_device=shares.threads_per_device,
        num_minibatches=num_minibatches,
    )


def _check_counts(shares: Shares, topology: Topology, num_envs: int) -> None:
    counts = {
        "topology.hosts": topology.hosts,
        "topology.devices_per_host": topology.devices_per_host,
        "env.num_envs": num_envs,
        "agent.unroll_length": shares.unroll_length,
        "runner.threads_per_device": shares.threads_per_device,
        "agent.num_minibatches": shares.num_minibatches,
    }
    for key, count in counts.items():
        if count < 1:
            raise PlanError(f"{key}={count} is not positive", [{key: 1}])


def _check_mesh(mesh: MeshConfig, devices: int) -> None:
    """Checks each setting of the mesh against the devices of a host, and against its twin."""
    for key in ("learner", "actor"):
        count, ids = getattr(mesh, key), getattr(mesh, f"{key}_ids")
        if count is not None and not 1 <= count <= devices:
            nearest = min(max(count, 1), devices)
            raise PlanError(f"mesh.{key}={count}, but a host has {devices} devices", [{f"mesh.{key}": nearest}])
        if ids is None:
            continue
        shown = f"mesh.{key}_ids={list(ids)}"
        if not ids:
            raise PlanError(f"{shown} names no device; leave it out to let the planner choose")
        if len(set(ids)) != len(ids):
            raise PlanError(f"{shown} names a device twice")
        if not all(0 <= index < devices for index in ids):
            raise PlanError(f"{shown} is out of range: a host has {devices} devices, 0 to {devices - 1}")
        if count is not None and count != len(ids):
            raise PlanError(f"mesh.{key}={count} contradicts {shown}, which are {len(ids)}; give one of the two")


def _anakin_ids(mesh: MeshConfig, devices: int, threads_per_device: int) -> tuple[int, ...]:
    for key in ("actor", "actor_ids"):
        if getattr(mesh, key) is not None:
            raise PlanError(
                f"mesh.{key}={getattr(mesh, key)} has no meaning with runner=anakin, where the learner devices "
                "act, too; leave it out, or use runner=sebulba"
            )
    if threads_per_device != 1:
        raise PlanError(
            f"runner.threads_per_device={threads_per_device} has no meaning with runner=anakin, which has no "
            "actor threads; leave it out, or use runner=sebulba"
        )
    return mesh.learner_ids or tuple(range(mesh.learner or devices))


def _sebulba_ids(
    mesh: MeshConfig, devices: int, shares: Shares, num_envs: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The actor and the learner devices of a host: apart from each other, unless ids or a lone device say otherwise."""
    actor_ids, learner_ids = mesh.actor_ids, mesh.learner_ids
    if devices == 1:
        return (0,), (0,)
    if actor_ids is None and learner_ids is None:
        if mesh.actor is None and mesh.learner is not None:
            learner_ids = tuple(range(devices - mesh.learner, devices))
        else:
            actor_ids = tuple(range(mesh.actor or _best_actor_devices(devices, shares, num_envs)))
    if actor_ids is None:
        actor_ids = _free_ids("actor", "learner", mesh, devices, learner_ids)
    if learner_ids is None:
        learner_ids = _free_ids("learner", "actor", mesh, devices, actor_ids)
    return actor_ids, learner_ids


def _free_ids(key: str, other: str, mesh: MeshConfig, devices: int, taken: tuple[int, ...]) -> tuple[int, ...]:
    """The devices that the other role leaves, as many of them as are asked for."""
    count = getattr(mesh, key)
    free = tuple(index for index in range(devices) if index not in taken)
    if len(free) < (count or 1):
        raise PlanError(
            f"{len(taken)} {other} devices (mesh.{other}={len(taken)}) leave {len(free)} of the {devices} devices of a "
            f"host, and mesh.{key}={count or 1} are needed; only mesh.actor_ids and mesh.learner_ids can name a device "
            "for both",
            [{f"mesh.{key}": len(free)}] if free else (),
        )
    return free[: count or len(free)]


def _best_actor_devices(devices: int, shares: Shares, num_envs: int) -> int:
    """One actor to three learners, or the nearest split of a host's devices that divides everything."""
    splits = [
        replace(shares, actor_devices=actors, learner_devices=devices - actors)
        for actors in sorted(range(1, devices), key=lambda n: (abs(n - max(1, devices // 4)), n))
    ]
    whole = [split for split in splits if split.are_whole]  # never empty: one learner takes any number of actors
    return next((split for split in whole if num_envs % split.env_unit == 0), whole[0]).actor_devices
