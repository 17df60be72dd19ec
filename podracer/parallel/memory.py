"""How many bytes a plan needs on a device, from shapes alone."""

import math
from collections.abc import Mapping

import jax

from podracer.parallel.divides import PlanError
from podracer.parallel.mesh import Plan
from podracer.types import ArrayTree

LEARNER, ACTOR = "learner device", "actor device"


def tree_bytes(tree: ArrayTree) -> int:
    """Adds up the bytes of a tree of arrays, or of what `jax.eval_shape` makes of them."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def memory(
    plan: Plan,
    *,
    learner_state: ArrayTree,
    trajectory: ArrayTree,
    actor_state: ArrayTree,
    params: ArrayTree = (),
    replay_state: ArrayTree = (),
    params_versions: int = 1,
    unrolls: int = 1,
) -> dict[str, int]:
    """Counts the bytes that a device holds between two steps of the program.

    A lower bound: the temporaries of acting and learning are the compiler's and come on top. All
    trees are shapes from `jax.eval_shape`.

    Args:
      plan: who does what.
      learner_state: of one learner device.
      trajectory: `[T+1, B, ...]` of one actor.
      actor_state: of one actor: its memory and, under Anakin, its environments.
      params: what an actor device holds of the learner's parameters (Sebulba).
      replay_state: of one learner device.
      params_versions: how many versions of the parameters an actor device holds.
      unrolls: how many trajectories of each actor exist at once.

    Returns:
      Bytes a device by "device: what it holds". A device that does both (Anakin, shared devices)
      holds the sum.

    Raises:
      PlanError: if a device has less memory than that.
    """
    learned = tree_bytes(trajectory) * plan.actors_per_host // len(plan.learner_ids)
    held = {
        f"{LEARNER}: learner state": tree_bytes(learner_state),
        f"{LEARNER}: replay": tree_bytes(replay_state),
        f"{LEARNER}: trajectories": unrolls * learned,
        f"{ACTOR}: parameters": params_versions * tree_bytes(params),
        f"{ACTOR}: actor state": plan.threads_per_device * tree_bytes(actor_state),
    }
    # A trajectory reaches the learner by a local variable under Anakin: the device holds it once.
    if plan.runner == "sebulba":
        held[f"{ACTOR}: trajectories"] = plan.threads_per_device * unrolls * tree_bytes(trajectory)
    held = {name: size for name, size in held.items() if size}
    _check_fits(plan, held)
    return held


def device_bytes(plan: Plan, held: Mapping[str, int]) -> dict[str, int]:
    """Adds up what `memory` found, by kind of device."""
    totals = {role: sum(size for name, size in held.items() if name.startswith(role)) for role in (LEARNER, ACTOR)}
    if set(plan.actor_ids) & set(plan.learner_ids):
        return {"device that acts and learns": sum(totals.values())}
    return totals


def format_bytes(size: int) -> str:
    """Writes a number of bytes with the unit that suits it."""
    value, units = float(size), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "bytes" else f"{value:.1f} {units[0]}"


def _check_fits(plan: Plan, held: Mapping[str, int]) -> None:
    limit = plan.topology.device_memory_bytes
    for device, total in device_bytes(plan, held).items():
        if limit is not None and total > limit:
            parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in held.items())
            raise PlanError(
                f"a {device} would hold {format_bytes(total)} and has {format_bytes(limit)} ({parts}); lower "
                f"env.num_envs={plan.num_envs} or agent.unroll_length={plan.unroll_length}, or use more devices"
            )
