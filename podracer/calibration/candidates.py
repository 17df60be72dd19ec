"""The configurations that a calibration compares: the one that is asked for, and its neighbours."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from podracer.config import Config
from podracer.parallel.mesh import Plan

_NUM_ENVS_FACTORS = (1, 2, 4, 0.5)
_THREADS = (1, 2, 4)


@dataclass(frozen=True)
class Candidate:
    """What may differ between configurations that are compared. Devices are those of a host."""

    num_envs: int
    unroll_length: int
    threads_per_device: int | None = None  # None under Anakin
    actor_devices: int | None = None  # None where it is not varied
    learner_devices: int | None = None  # None where it is not varied

    def changes(self, base: "Candidate") -> dict[str, int]:
        """The settings in which it differs, by key."""
        keys = {
            "num_envs": "env.num_envs",
            "unroll_length": "agent.unroll_length",
            "threads_per_device": "runner.threads_per_device",
            "actor_devices": "mesh.actor",
            "learner_devices": "mesh.learner",
        }
        return {key: getattr(self, name) for name, key in keys.items() if getattr(self, name) != getattr(base, name)}

    def has_batch_of(self, other: "Candidate") -> bool:
        """Whether the agent learns from as much at a time."""
        return (self.num_envs, self.unroll_length) == (other.num_envs, other.unroll_length)


def base_candidate(config: Config, plan: Plan) -> Candidate:
    """The configuration that is asked for.

    Args:
      config: of the run.
      plan: of the same.
    """
    sebulba = plan.runner == "sebulba"
    named = config.mesh.actor_ids is not None or config.mesh.learner_ids is not None
    varied = plan.topology.devices_per_host > 1 and not named
    return Candidate(
        plan.num_envs,
        plan.unroll_length,
        plan.threads_per_device if sebulba else None,
        len(plan.actor_ids) if varied and sebulba else None,
        len(plan.learner_ids) if varied else None,
    )


def candidates(base: Candidate, plan: Plan, *, vary_unroll: bool) -> list[Candidate]:
    """Lists what to compare, the base first, then those that differ least from it.

    Not all of them can be planned: some do not divide.

    Args:
      base: what is asked for.
      plan: of the base.
      vary_unroll: whether to try an unroll of twice the length.
    """
    num_envs = [int(factor * base.num_envs) for factor in _NUM_ENVS_FACTORS if factor * base.num_envs >= 1]
    threads = _with_first(base.threads_per_device, _THREADS if base.threads_per_device else ())
    splits = _with_first((base.actor_devices, base.learner_devices), _splits(base, plan.topology.devices_per_host))
    grid = [
        Candidate(envs, base.unroll_length, count, *split)
        for split, count, envs in itertools.product(splits, threads, num_envs)
    ]
    if vary_unroll:
        grid.append(dataclasses.replace(base, unroll_length=2 * base.unroll_length))
    # Among as many changes those of threads and devices first: they leave the learner's program as it is.
    return sorted(
        dict.fromkeys(grid), key=lambda candidate: (len(candidate.changes(base)), not candidate.has_batch_of(base))
    )


def with_candidate(config: Config, candidate: Candidate, base: Candidate) -> Config:
    """The configuration with what a candidate changes."""
    changes = candidate.changes(base)
    for key, value in changes.items():
        section, name = key.split(".")
        part = getattr(config, section)
        if section in ("agent", "runner"):
            part = dataclasses.replace(part, settings={**part.settings, name: value})
        else:
            part = dataclasses.replace(part, **{name: value})
        config = dataclasses.replace(config, **{section: part})
    return config


def _with_first(first, others: Sequence) -> list:
    return list(dict.fromkeys((first, *others)))


def _splits(base: Candidate, devices: int) -> Iterator[tuple[int | None, int | None]]:
    """Ways to share the devices of a host out."""
    if base.learner_devices is None:
        return
    if base.actor_devices is None:
        yield from ((None, learners) for learners in (devices, devices // 2, 1) if learners)
        return
    for actors in (max(1, devices // 4), devices // 2, 1):
        yield actors, devices - actors
