"""From a configuration to a run that is trained and kept in its folder: one run, or several together."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax

from podracer import checkpoint
from podracer.build import Run, build, build_member
from podracer.config import Config, config_to_mapping
from podracer.console import Console, make_console
from podracer.conversion import ConfigError, refusals
from podracer.driving import Pruned, drive
from podracer.importing import load_object
from podracer.interrupts import Interrupts
from podracer.logging import check_installed, make_logger, write_json, write_result
from podracer.loop import Loop, Watch
from podracer.parallel.mesh import Plan
from podracer.parallel.placement import member_mesh
from podracer.parallel.plan_table import to_json, to_table
from podracer.policy import example_snapshot
from podracer.provenance import record_run
from podracer.resume import record
from podracer.runners.population import Population
from podracer.shared_console import Seat, Shared

Batching = Literal["auto", "vmap", "loop"]
"""How members on one device are computed: side by side, in turn, or as it is faster on the platform."""


class Member(NamedTuple):
    """A run that is trained together with others."""

    config: Config  # that of the others but for the seed and the traceable hyper-parameters of the agent
    folder: Path
    command: Sequence[str]
    resumes: bool = False  # from its newest checkpoint, after as many updates as the others
    watch: Watch | None = None  # as of `podracer.train`


def train(
    config: Config, folder: Path | None, command: Sequence[str], saved: checkpoint.Saved | None, watch: Watch | None
) -> dict[str, Any]:
    """Begins a run, or goes on with a saved one; returns its result."""
    check_installed(config.logger)
    is_writer = jax.process_index() == 0
    run = build(config)
    console = make_console(config.logger, is_writer=is_writer)
    kept = _Kept(run, config, folder if is_writer else None, command, saved, console, watch)
    with kept.finished(), contextlib.closing(console):
        if is_writer and config.logger.console != "none":
            _print_plan(run.plan)
            if saved is not None:
                print(f"going on from update {saved.updates} of {folder}", flush=True)
        console.start(run.plan, _title(config, run.plan))
        kept.loop.run()
    console.finish(kept.result, kept.folder)
    return kept.result


def is_vectorisable(config: Config) -> bool:
    """Whether a run may be trained together with others."""
    return config.runner.name == "anakin" and not (config.debug or config.profile or config.recording.folder)


def program_key(config: Config, started: int | None) -> str:
    """Says which runs may be trained together: those with the same.

    Args:
      config: of the run.
      started: updates behind the checkpoint that it goes on from; None begins.
    """
    mapping = config_to_mapping(config)
    traceable = load_object(config.agent.make, "agent").traceable
    mapping["agent"] = {name: value for name, value in mapping["agent"].items() if name not in traceable}
    free = dict.fromkeys(("seed", "fail_fast", "objective"))
    return json.dumps({**mapping, **free, "started": started}, sort_keys=True, default=str)


def check_members(members: Sequence[Member]) -> None:
    """Refuses what cannot be trained together.

    Raises:
      ConfigError: there is no member, one cannot be vectorised, or they differ in more than seeds and traceable
        hyper-parameters.
    """
    if not members:
        raise ConfigError("there is nothing to train; give at least one member")
    for member in members:
        if not is_vectorisable(member.config):
            raise ConfigError(
                f"{member.folder} cannot be trained together with other runs: that needs runner=anakin, without debug, "
                "profile and recording.folder"
            )
    first, *others = (
        program_key(member.config, checkpoint.latest(member.folder) if member.resumes else None) for member in members
    )
    for member, key in zip(members[1:], others):
        if key != first:
            raise ConfigError(
                f"{member.folder} cannot share a program with {members[0].folder}: they may differ in seed and in "
                "hyper-parameters that are traceable, and go on from as many updates"
            )


def train_together(
    members: Sequence[Member], failed: Callable[[int, Exception], None] | None, batching: Batching
) -> list[dict[str, Any]]:
    """See `podracer.api.train_together`."""
    configs = [_on_one_device(member.config) for member in members]
    check_installed(configs[0].logger)
    first = build(configs[0])
    console, interrupts = Shared(make_console(configs[0].logger)), Interrupts()
    kept: dict[int, _Kept] = {}
    runs: dict[int, Run] = {}
    seats: dict[int, Seat] = {}

    def fail(index: int, error: Exception) -> None:
        if failed is None:
            raise error
        failed(index, error)

    def leave_out(loop: Loop, error: Exception) -> None:
        index = next(index for index, one in kept.items() if one.loop is loop)
        is_pruned = isinstance(error, Pruned)
        kept[index].close("pruned" if is_pruned else "failed")
        console.leave(seats[index])
        if not is_pruned:
            fail(index, error)

    with contextlib.ExitStack() as stack:
        for index, (config, member) in enumerate(zip(configs, members)):
            try:
                runs[index] = build_member(first, config)
                saved = checkpoint.load(member.folder, with_state=True) if member.resumes else None
                seats[index] = console.seat()
                place = (seats[index], member.watch, interrupts)
                one = _Kept(runs[index], config, member.folder, member.command, saved, *place)
            except Exception as error:
                if index in seats:
                    console.leave(seats[index])
                fail(index, error)
                continue
            kept[index] = stack.enter_context(one.finished())
        if kept:
            stack.enter_context(contextlib.closing(console))
            if batching == "auto":
                batching = "loop" if first.plan.topology.platform == "cpu" else "vmap"
            population = Population([runs[index].runner for index in kept], member_mesh(len(kept)), batching)
            _show_together(console, configs[0], population)
            num_threads = first.plan.topology.cores_per_host
            drive([one.loop for one in kept.values()], population, leave_out, num_threads)
    results = {index: one.result for index, one in kept.items()}
    if results:
        console.finish(list(results.values()))
    return [results.get(index, {}) for index in range(len(members))]


def _show_together(console: Shared, config: Config, population: Population) -> None:
    count = len(population.members)
    if config.logger.console != "none":
        _print_plan(population.plan)
    title = _title(config, population.plan, population.mesh.size)
    console.start(population.plan, f"{count} runs in one program | {title}")


class _Kept:
    """A run with its folder, which it claims, and its logger and loop. `close` writes its result, once."""

    def __init__(
        self,
        run: Run,
        config: Config,
        folder: Path | None,
        command: Sequence[str],
        saved: checkpoint.Saved | None,
        console: Console,
        watch: Watch | None,
        interrupts: Interrupts | None = None,
    ):
        self.folder = folder
        self._claim(run, config, command, saved)
        updates = None if saved is None else saved.updates
        is_writer = folder is not None
        self._logger = make_logger(config.logger, folder or Path(), is_writer=is_writer, resume_updates=updates)
        saved_policy = None if saved is None else saved.policy
        self.loop = Loop(
            run.runner,
            run.plan,
            run.evaluate,
            config.evaluation,
            self._logger,
            console,
            folder,
            config.profile,
            config.checkpoint,
            config.faults,
            saved,
            run.recorder,
            None if saved is None else lambda: checkpoint.policy_from(saved_policy, example_snapshot(run.agent)),
            interrupts,
            watch,
        )
        self.result: dict[str, Any] = {}

    @contextlib.contextmanager
    def finished(self) -> Iterator["_Kept"]:
        """Closes the run with the status that the block ends with, unless it was closed in there."""
        status = "failed"
        try:
            yield self
            status = "completed"
        except Pruned:
            status = "pruned"
        except KeyboardInterrupt as interrupt:
            status = "interrupted"
            updates = None if self.folder is None else checkpoint.latest(self.folder)
            if updates is not None:
                interrupt.add_note(f"interrupted; podracer train resume={self.folder} goes on from update {updates}")
            raise
        finally:
            self.close(status)

    def close(self, status: str) -> None:
        """Writes the result; a second call does nothing."""
        if self.result:
            return
        self.result = self.loop.result(status)
        if self.folder is not None:
            write_result(self.folder, self.result)
        self._logger.close(status)

    def _claim(self, run: Run, config: Config, command: Sequence[str], saved: checkpoint.Saved | None) -> None:
        if run.recorder is not None:
            with refusals():
                run.recorder.claim(resumes=saved is not None)
        if self.folder is None:
            return
        if saved is None:
            record_run(config, self.folder, command)
        else:
            record(self.folder, config, command, saved.updates)
        write_json(self.folder / "plan.json", to_json(run.plan))


def _on_one_device(config: Config) -> Config:
    """What a run is trained with as a member: on one device, whatever there is."""
    return dataclasses.replace(config, mesh=dataclasses.replace(config.mesh, learner=1, learner_ids=None))


def _print_plan(plan: Plan) -> None:
    import rich

    rich.print(to_table(plan))


def _title(config: Config, plan: Plan, devices: int | None = None) -> str:
    env = config.env.make or (config.env.suite if not config.env.id else f"{config.env.suite}/{config.env.id}")
    devices = devices or len({*plan.actor_ids, *plan.learner_ids}) * plan.topology.hosts
    plural = "" if devices == 1 else "s"
    return f"{config.agent.name} on {env} | {config.runner.name} | {devices} {plan.topology.platform} device{plural}"
