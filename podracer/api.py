"""The command from Python: `podracer.train`, `podracer.evaluate`, `podracer.load_policy`."""

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from podracer import checkpoint, runtime
from podracer.agent import Agent
from podracer.build import Environments, build, build_agent, build_environments, build_evaluator, build_plan
from podracer.config import Config, read_config
from podracer.console import make_console
from podracer.conversion import ConfigError, refusals
from podracer.logging import check_installed, make_logger, write_json, write_result
from podracer.loop import Loop, evaluation_values
from podracer.parallel.mesh import MeshConfig, Plan
from podracer.parallel.plan_table import to_json, to_table
from podracer.parallel.topologies import local_topology
from podracer.policy import Policy
from podracer.provenance import record_run
from podracer.randomness import run_key
from podracer.resume import checked, record
from podracer.runners.evaluator import EvaluationResult
from podracer.runners.learn import snapshot
from podracer.runners.workers import call_in_worker
from podracer.types import Key, PolicySnapshot


def make_plan(config: Config) -> Plan:
    """Plans a run for `topology`, or for the machine that is there, without running anything."""
    with refusals():
        return build_plan(config, build_environments(config), config.topology or local_topology())[0]


def train(config: Config, folder: Path | None = None, command: Sequence[str] | None = None) -> dict[str, Any]:
    """Trains an agent.

    Args:
      config: from `load_config`.
      folder: of the run, empty or not there yet; None keeps nothing on disk.
      command: what starts the same run again, for the record; None is this process's own.

    Returns:
      The result, as `result.json` holds it.

    Raises:
      ConfigError: before anything is compiled or written.
    """
    return _train(config, folder, sys.argv if command is None else command, None)


def resume(folder: Path, config: Config | None = None, command: Sequence[str] | None = None) -> dict[str, Any]:
    """Goes on with a run from its newest checkpoint, as if it had never ended.

    Args:
      folder: of the run.
      config: its configuration, of which budget, logging, evaluation, checkpoints and devices may be others
        than they were; None keeps them.
      command: for the record; None is this process's own.

    Returns:
      The result of the whole run, as `result.json` holds it.

    Raises:
      ConfigError: a setting is another that may not be, or there is nothing to go on from.
    """
    config = read_config(folder / "config.yaml") if config is None else checked(folder, config)
    try:
        saved = checkpoint.load(folder, with_state=True)
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError(str(error)) from error
    return _train(config, folder, sys.argv if command is None else command, saved)


def _train(
    config: Config, folder: Path | None, command: Sequence[str], saved: checkpoint.Saved | None
) -> dict[str, Any]:
    """Begins a run, or goes on with a saved one."""
    check_installed(config.logger)
    runtime.prepare(config)
    is_writer = jax.process_index() == 0
    with _debugging(config.debug):
        run = build(config)
        console = make_console(config.logger, is_writer=is_writer)
        if not is_writer:
            folder = None
        if run.recorder is not None:
            with refusals():
                run.recorder.claim(resumes=saved is not None)
        if folder is not None:
            if saved is None:
                record_run(config, folder, command)
            else:
                record(folder, config, command, saved.updates)
            write_json(folder / "plan.json", to_json(run.plan))
        updates = None if saved is None else saved.updates
        logger = make_logger(config.logger, folder or Path(), is_writer=folder is not None, resume_updates=updates)
        loop = Loop(
            run.runner,
            run.plan,
            run.evaluate,
            config.evaluation,
            logger,
            console,
            folder,
            config.profile,
            config.checkpoint,
            config.faults,
            saved,
            run.recorder,
            None if saved is None else lambda: checkpoint.policy_from(saved.policy, _example(run.agent)),
        )
        status = "failed"
        try:
            if is_writer and config.logger.console != "none":
                _print_plan(run.plan)
                if saved is not None:
                    print(f"going on from update {saved.updates} of {folder}", flush=True)
            console.start(run.plan, _title(config, run.plan))
            loop.run()
            status = "completed"
        except KeyboardInterrupt as interrupt:
            status = "interrupted"
            updates = None if folder is None else checkpoint.latest(folder)
            if updates is not None:
                interrupt.add_note(f"interrupted; podracer train resume={folder} goes on from update {updates}")
            raise
        finally:
            console.close()
            result = loop.result(status)
            if folder is not None:
                write_result(folder, result)
            logger.close(status)
        console.finish(result, folder)
    return result


def evaluate(
    folder: Path,
    *,
    num_episodes: int | None = None,
    seed: int | None = None,
    greedy: bool | None = None,
    which: int | str = "latest",
) -> dict[str, float]:
    """Evaluates parameters of a run; what is not given is as in the run's own evaluations, which it repeats exactly.

    Args:
      folder: of the run.
      num_episodes: exactly as many episodes.
      seed: of environments and actions.
      greedy: whether the most likely actions are taken; False samples.
      which: the checkpoint: `latest`, `best`, or a number of updates.

    Returns:
      What a row of evaluation holds: `episode_return` and its spread, `episode_length`, `episodes`.

    Raises:
      ConfigError: `folder` is not the folder of a run.
      FileNotFoundError: the run has left no parameters.
    """
    return evaluation_values(
        evaluate_episodes(folder, num_episodes=num_episodes, seed=seed, greedy=greedy, which=which)
    )


def evaluate_episodes(
    folder: Path,
    *,
    num_episodes: int | None = None,
    seed: int | None = None,
    greedy: bool | None = None,
    which: int | str = "latest",
) -> EvaluationResult:
    """Evaluates as `evaluate` does, and returns the return and the length of every episode."""
    config = read_config(folder / "config.yaml")
    given = {"num_episodes": num_episodes, "seed": seed, "greedy": greedy}
    evaluation = dataclasses.replace(config.evaluation, **{k: v for k, v in given.items() if v is not None})
    agent, environments, policy = _restore(config, folder, which)
    evaluator = build_evaluator(agent, environments, evaluation)
    return call_in_worker("evaluator", lambda workers: evaluator(policy, lambda: workers.stopping))


def load_policy(folder: str | Path, which: int | str = "latest") -> Policy:
    """Loads a policy of a run, by default the final one, to act on NumPy observations.

    Args:
      folder: of the run.
      which: the checkpoint: `latest`, `best`, or a number of updates.

    Raises:
      ConfigError: `folder` is not the folder of a run.
      FileNotFoundError: the run has left no parameters.
    """
    folder = Path(folder)
    agent, _, policy = _restore(read_config(folder / "config.yaml"), folder, which)
    return Policy(agent, policy)


def _restore(config: Config, folder: Path, which: int | str) -> tuple[Agent, Environments, PolicySnapshot]:
    """The agent of a run for one device, its environment, and parameters of it."""
    config = dataclasses.replace(config, topology=None, mesh=MeshConfig())
    with refusals():
        environments = build_environments(config)
        agent = build_agent(config, environments, jax.local_devices()[0].platform)

    return agent, environments, checkpoint.restore_policy(folder, _example(agent), which)


def _example(agent: Agent) -> PolicySnapshot:
    """The shapes of what an agent acts with."""
    agent = dataclasses.replace(agent, axis_name=None)

    def example(key: Key) -> PolicySnapshot:
        return snapshot(agent, agent.init_learner(key), jnp.int32(0), 1)

    return jax.eval_shape(example, run_key(0))


def _print_plan(plan: Plan) -> None:
    import rich

    rich.print(to_table(plan))


def _title(config: Config, plan: Plan) -> str:
    env = config.env.make or (config.env.suite if not config.env.id else f"{config.env.suite}/{config.env.id}")
    devices = len({*plan.actor_ids, *plan.learner_ids}) * plan.topology.hosts
    plural = "" if devices == 1 else "s"
    return f"{config.agent.name} on {env} | {config.runner.name} | {devices} {plan.topology.platform} device{plural}"


@contextlib.contextmanager
def _debugging(enabled: bool) -> Iterator[None]:
    """Compiles as little as possible and looks for NaNs."""
    if not enabled:
        yield
        return
    before = jax.config.jax_debug_nans, jax.config.jax_disable_jit
    jax.config.update("jax_debug_nans", True)
    jax.config.update("jax_disable_jit", True)
    try:
        yield
    finally:
        jax.config.update("jax_debug_nans", before[0])
        jax.config.update("jax_disable_jit", before[1])
