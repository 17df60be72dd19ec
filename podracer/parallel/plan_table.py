"""A plan for people (a table in plain words) and for programs (JSON)."""

import dataclasses
from typing import TYPE_CHECKING, Any

from podracer.parallel.memory import device_bytes, format_bytes
from podracer.parallel.mesh import Plan

if TYPE_CHECKING:
    from rich.table import Table


def to_json(plan: Plan) -> dict[str, Any]:
    """Turns a plan into what `json.dumps` takes."""
    values = dataclasses.asdict(plan)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def to_table(plan: Plan) -> "Table":
    """Renders a plan as a table of two columns."""
    from rich.table import Table  # on use: importing the planner stays fast

    table = Table(title=f"Plan: {plan.runner} on {_machines(plan)}", show_header=False, title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, text in rows(plan):
        table.add_row(name, text)
    return table


def rows(plan: Plan) -> list[tuple[str, str]]:
    """Says a plan in words: what, and how much of it."""
    batch_size_per_device = plan.envs_per_learner * plan.unroll_length
    share = f"{batch_size_per_device:,} environment steps ({_count(plan.envs_per_learner, 'environment')})"
    if plan.num_minibatches > 1:
        share += f", in {plan.num_minibatches} minibatches of {batch_size_per_device // plan.num_minibatches:,}"
    return [
        ("machines", _machines(plan)),
        *_roles(plan),
        ("environments", f"{plan.num_envs:,} in all, {plan.envs_per_actor:,} an actor"),
        (
            "batch",
            f"{plan.env_steps_per_update:,} environment steps an update "
            f"({plan.num_envs:,} environments x {plan.unroll_length:,} steps)",
        ),
        ("batch per device", share),
        ("updates", f"{plan.updates:,}"),
        ("total", f"{plan.total_env_steps:,} environment steps"),
        ("seed", str(plan.seed)),
        *(
            (f"replay: {name.replace('_', ' ')}", f"{value:,.4g}" if value % 1 else f"{value:,.0f}")
            for name, value in plan.replay.items()
        ),
        *_memory(plan),
    ]


def _roles(plan: Plan) -> list[tuple[str, str]]:
    if plan.runner == "anakin":
        who = [("acts and learns", _devices(plan.learner_ids, plan))]
    else:
        who = [
            ("acts", _devices(plan.actor_ids, plan)),
            ("learns", _devices(plan.learner_ids, plan)),
            (
                "actor threads",
                f"{plan.actors:,} in all, {plan.threads_per_device} an actor device, each with "
                f"{_count(plan.env_threads_per_actor, 'thread')} for its environments",
            ),
        ]
    idle = tuple(sorted(set(range(plan.topology.devices_per_host)) - {*plan.actor_ids, *plan.learner_ids}))
    return [*who, ("idle", _devices(idle, plan))] if idle else who


def _memory(plan: Plan) -> list[tuple[str, str]]:
    if not plan.memory:
        return []
    limit = plan.topology.device_memory_bytes
    of_limit = f" of {format_bytes(limit)}" if limit else ""
    totals = [
        (f"memory per {device}", f"{format_bytes(size)}{of_limit}, temporaries not counted")
        for device, size in device_bytes(plan, plan.memory).items()
    ]
    return totals + [(f"  {name}", format_bytes(size)) for name, size in plan.memory.items()]


def _machines(plan: Plan) -> str:
    topology = plan.topology
    name = f"{topology.name}: " if topology.name else ""
    devices = _count(topology.devices_per_host, f"{topology.platform} device")
    return f"{name}{_count(topology.hosts, 'host')} x {devices}, {_count(topology.cores_per_host, 'core')} a host"


def _devices(ids: tuple[int, ...], plan: Plan) -> str:
    hosts, is_range = plan.topology.hosts, ids == tuple(range(ids[0], ids[-1] + 1))
    shown = f"{ids[0]} to {ids[-1]}" if is_range and len(ids) > 2 else ", ".join(map(str, ids))
    everywhere = f" of every host, {hosts * len(ids):,} in all" if hosts > 1 else ""
    return f"{'device' if len(ids) == 1 else 'devices'} {shown}{everywhere}"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"
