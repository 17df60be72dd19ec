"""The planner: who acts, who learns, and what each device holds. Validates before any device is touched."""

from dataclasses import dataclass


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


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The machines that a plan is made for; they need not be there."""

    hosts: int = 1
    devices_per_host: int = 1
    platform: str = "cpu"
    device_memory_bytes: int | None = None
    cores_per_host: int = 1


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
    env_threads_per_actor: int  # threads of an environment pool
    unroll_length: int
    env_steps_per_update: int  # slots
    updates: int
    total_env_steps: int  # slots: updates x env_steps_per_update
