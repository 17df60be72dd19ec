"""How an update is shared out between actors and learner devices, and what to change where it does not divide."""

import itertools
import math
from dataclasses import dataclass, replace

from podracer.parallel.divides import PlanError, nearest_divisors, nearest_multiples


@dataclass(frozen=True)
class Shares:
    """How an update is shared out. Counts of devices and threads are those of a host."""

    hosts: int
    actor_devices: int
    threads_per_device: int
    learner_devices: int
    unroll_length: int
    num_minibatches: int
    recurrent: bool

    @property
    def actors_per_host(self) -> int:
        return self.actor_devices * self.threads_per_device

    @property
    def are_whole(self) -> bool:
        """Whether a learner device gets whole actors, or an actor is cut for whole learner devices."""
        actors, learners = self.actors_per_host, self.learner_devices
        return actors % learners == 0 or learners % actors == 0

    @property
    def env_unit(self) -> int:
        """The number of environments has to be a multiple of this."""
        # A recurrent network keeps sequences whole: a minibatch is made of environments, not of rows.
        rows_per_env = 1 if self.recurrent else self.unroll_length
        envs_per_learner = self.num_minibatches // math.gcd(rows_per_env, self.num_minibatches)
        return self.hosts * math.lcm(self.actors_per_host, self.learner_devices * envs_per_learner)


def check_shares(shares: Shares, num_envs: int) -> None:
    """Checks every division of an update.

    Raises:
      PlanError: with repairs that make every division whole.
    """
    hosts = f" x topology.hosts={shares.hosts}" if shares.hosts > 1 else ""
    learners = f"mesh.learner={shares.learner_devices}"
    actors = f"mesh.actor={shares.actor_devices} x runner.threads_per_device={shares.threads_per_device}"
    if not shares.are_whole:
        raise PlanError(
            f"{shares.actors_per_host} actors ({actors}) and {shares.learner_devices} learner devices ({learners}) "
            "of a host: one number has to divide the other",
            _thread_repairs(shares, num_envs),
        )
    repairs = [{"env.num_envs": multiple} for multiple in nearest_multiples(num_envs, shares.env_unit)]
    for count, name, keys in (
        (shares.hosts * shares.learner_devices, "learner devices", learners),
        (shares.hosts * shares.actors_per_host, "actors", actors),
    ):
        if num_envs % count:
            raise PlanError(f"env.num_envs={num_envs} does not divide over {count} {name} ({keys}{hosts})", repairs)
    envs_per_learner = num_envs // (shares.hosts * shares.learner_devices)
    parts = envs_per_learner if shares.recurrent else envs_per_learner * shares.unroll_length
    if parts % shares.num_minibatches:
        name = "sequences" if shares.recurrent else f"rows (agent.unroll_length={shares.unroll_length})"
        divisors = nearest_divisors(parts, shares.num_minibatches)
        raise PlanError(
            f"agent.num_minibatches={shares.num_minibatches} does not divide the {parts} {name} of a learner device "
            f"(env.num_envs={num_envs}, {learners}{hosts})",
            [{"agent.num_minibatches": divisor} for divisor in divisors] + repairs,
        )


def _thread_repairs(shares: Shares, num_envs: int) -> list[dict[str, int]]:
    """The nearest numbers of threads that work, each with the environments that it needs."""
    threads = shares.threads_per_device
    repairs = []
    for candidates in (range(threads - 1, 0, -1), itertools.count(threads + 1)):
        whole = (replaced for n in candidates if (replaced := replace(shares, threads_per_device=n)).are_whole)
        for repaired in itertools.islice(whole, 1):
            repair = {"runner.threads_per_device": repaired.threads_per_device}
            if num_envs % repaired.env_unit:
                repair["env.num_envs"] = nearest_multiples(num_envs, repaired.env_unit)[-1]
            repairs.append(repair)
    return repairs
