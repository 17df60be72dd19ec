"""Which part of a run the others waited for, and the setting to change: from measured seconds alone."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from podracer.parallel.mesh import Plan

# Shorter waits than this share of the time are the ordinary give and take of threads.
_NOTABLE = 0.2


class Advice(NamedTuple):
    bottleneck: str  # environment, acting, learning, compilation, or none
    text: str  # what was measured, and what to change


def advise(plan: "Plan", seconds: Mapping[str, float]) -> Advice | None:
    """Names the bottleneck of a run.

    Under Sebulba actors and learner wait for each other, and who waits least is who the others wait for. Under Anakin
    all is one program, of which no part can be timed: only its compilation stands apart.

    Args:
      plan: of the run.
      seconds: sums over the run by activity, as the rows of its metrics name them; those of actors are means over
        actors. `train_seconds` is the whole, without `compile_seconds`.

    Returns:
      None where nothing was measured that says anything.
    """
    train = seconds.get("train_seconds", 0.0)
    compilation = seconds.get("compile_seconds", 0.0)
    if compilation > train > 0:
        return Advice(
            "compilation",
            f"compiling took {compilation:.1f} s and training {train:.1f} s: longer runs, or the compile cache of an "
            "earlier run, make up for it",
        )
    if plan.runner != "sebulba" or not train:
        return None
    share = {name: seconds.get(f"{name}_seconds", 0.0) / train for name in _MEASURED}
    if share["learner_wait"] > max(share["actor_wait"], _NOTABLE):
        return _slow_actors(plan, share)
    if share["actor_wait"] > max(share["learner_wait"], _NOTABLE):
        return _slow_learner(plan, share)
    return Advice(
        "none",
        f"actors waited {share['actor_wait']:.0%} of the time and the learner {share['learner_wait']:.0%}: they keep "
        "up with each other; more of both (devices, or a machine with more cores) is what makes it faster",
    )


_MEASURED = ("env", "act", "actor_wait", "learn", "learner_wait")


def _slow_actors(plan: "Plan", share: Mapping[str, float]) -> Advice:
    waited = (
        f"the learner waited {share['learner_wait']:.0%} of the time for actors, which spent {share['env']:.0%} of it "
    )
    waited += f"stepping environments and {share['act']:.0%} acting"
    more = [f"runner.threads_per_device={2 * plan.threads_per_device} (now {plan.threads_per_device})"]
    if set(plan.actor_ids) != set(plan.learner_ids):
        more.append(f"mesh.actor={len(plan.actor_ids) + 1} (now {len(plan.actor_ids)})")
    if share["env"] >= share["act"]:
        return Advice("environment", f"{waited}: step more of them at a time, by {' or '.join(more)}")
    larger = f"env.num_envs={2 * plan.num_envs} (now {plan.num_envs}), as one call acts for more environments"
    return Advice("acting", f"{waited}: try {larger}, or {' or '.join(more)}")


def _slow_learner(plan: "Plan", share: Mapping[str, float]) -> Advice:
    text = f"actors waited {share['actor_wait']:.0%} of the time, mostly for the learner, which was busy "
    text += f"{share['learn']:.0%} of it: "
    if len(plan.learner_ids) > 1 or plan.topology.devices_per_host > 1:
        text += f"more learner devices (mesh.learner, now {len(plan.learner_ids)}), or "
    text += "less to learn from each step: fewer agent.num_epochs or samples per insert, a smaller network"
    return Advice("learning", text)
