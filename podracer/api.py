"""The command from Python: `podracer.train`, `podracer.evaluate`, `podracer.load_policy`."""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from podracer import checkpoint, runtime, training
from podracer.agent import Agent
from podracer.build import Environments, build_agent, build_environments, build_evaluator, build_plan
from podracer.config import Config, read_config
from podracer.conversion import ConfigError, refusals
from podracer.loop import Watch, evaluation_values
from podracer.parallel.mesh import MeshConfig, Plan
from podracer.parallel.topologies import local_topology
from podracer.policy import Policy, example_snapshot
from podracer.resume import checked
from podracer.runners.evaluator import EvaluationResult
from podracer.runners.workers import call_in_worker
from podracer.training import Batching, Member
from podracer.types import PolicySnapshot


def make_plan(config: Config) -> Plan:
    """Plans a run for `topology`, or for the machine that is there, without running anything."""
    with refusals():
        return build_plan(config, build_environments(config), config.topology or local_topology())[0]


def train(
    config: Config, folder: Path | None = None, command: Sequence[str] | None = None, watch: Watch | None = None
) -> dict[str, Any]:
    """Trains an agent.

    Args:
      config: from `load_config`.
      folder: of the run, empty or not there yet; None keeps nothing on disk.
      command: what starts the same run again, for the record; None is this process's own.
      watch: is told of every evaluation but the final one, its number from 1 on and its mean return. Where it returns
        False, the run ends there, saved, with the status `pruned`.

    Returns:
      The result, as `result.json` holds it.

    Raises:
      ConfigError: before anything is compiled or written.
    """
    return _train(config, folder, sys.argv if command is None else command, None, watch)


def resume(
    folder: Path, config: Config | None = None, command: Sequence[str] | None = None, watch: Watch | None = None
) -> dict[str, Any]:
    """Goes on with a run from its newest checkpoint, as if it had never ended.

    Args:
      folder: of the run.
      config: its configuration, of which budget, logging, evaluation, checkpoints and devices may be others
        than they were; None keeps them.
      command: for the record; None is this process's own.
      watch: as of `train`.

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
    return _train(config, folder, sys.argv if command is None else command, saved, watch)


def train_together(
    members: Sequence[Member], failed: Callable[[int, Exception], None] | None = None, batching: Batching = "auto"
) -> list[dict[str, Any]]:
    """Trains runs that differ in seed and hyper-parameters as one compiled program, each with a folder of its own.

    Args:
      members: at least one, under `runner=anakin`. Each is trained on one device; they are spread over all devices.
      failed: is told the index and the error of a run that fails, and the others go on; None raises it.
      batching: vmap computes the members of a device side by side, loop in turn; auto: loop on CPUs, vmap elsewhere.

    Returns:
      The results, as `result.json` holds them; empty of a run that was refused.

    Raises:
      ConfigError: before anything is compiled or written, also where members cannot share a program.
    """
    training.check_members(members)
    runtime.prepare(members[0].config)
    return training.train_together(members, failed, batching)


def _train(
    config: Config, folder: Path | None, command: Sequence[str], saved: checkpoint.Saved | None, watch: Watch | None
) -> dict[str, Any]:
    """Begins a run, or goes on with a saved one."""
    runtime.prepare(config)
    with _debugging(config.debug):
        return training.train(config, folder, command, saved, watch)


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

    return agent, environments, checkpoint.restore_policy(folder, example_snapshot(agent), which)


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
