"""From a configuration to objects: the only module that knows every other."""

import dataclasses
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from podracer.agent import Agent
from podracer.config import Config
from podracer.conversion import ConfigError, refusals
from podracer.envs.autoreset import AutoReset
from podracer.envs.base import BatchedEnv, EnvConfig, HostEnv
from podracer.envs.checks import check_env
from podracer.envs.host_guard import GuardedHost
from podracer.envs.wrappers import wrap
from podracer.networks.config import resolve_platform
from podracer.parallel.memory import memory
from podracer.parallel.mesh import Plan, Topology, plan
from podracer.parallel.placement import LEARNER_AXIS, actor_devices, learner_mesh
from podracer.parallel.topologies import local_topology
from podracer.randomness import Role, run_key, shard_key
from podracer.replay.base import Replay
from podracer.replay.recorded import Recorded
from podracer.replay.recorder import Recorder
from podracer.runner import Runner
from podracer.runners.anakin import Anakin
from podracer.runners.evaluator import Evaluate, EvaluationConfig, JaxEvaluator, host_evaluator
from podracer.runners.sebulba import Sebulba
from podracer.runners.unroll import example_trajectory
from podracer.spaces import EnvSpec
from podracer.stores import build_recorder, build_replay

JAX_SUITES = {
    "gymnax": "podracer.envs.gymnax",
    "catch": "podracer.envs.catch",
    "probe": "podracer.envs.probe",
    "custom_jax": "podracer.envs.custom_jax",
}
HOST_SUITES = {
    "envpool": "podracer.envs.envpool",
    "gymnasium": "podracer.envs.gymnasium",
    "custom_host": "podracer.envs.custom_host",
}


@dataclass(frozen=True)
class Environments:
    """One configured environment, in the forms that there are of it."""

    config: EnvConfig
    batched: BatchedEnv | None  # None for host environments
    spec: EnvSpec

    def make_host(self, num_envs: int, num_threads: int, seed: int, shard: int, device: jax.Device | None) -> HostEnv:
        """Makes a batch of them for the host, a JAX environment with the randomness that Anakin gives the shard."""
        if self.batched is None:
            return _make_host(self.config, num_envs, num_threads)
        from podracer.envs.host_from_jax import HostFromJax

        key = run_key(seed)
        reset_key, step_key = (shard_key(key, role, shard) for role in (Role.ENV_RESET, Role.ENV_STEP))
        return HostFromJax(self.batched, num_envs, reset_key, step_key, device)


@dataclass(frozen=True)
class Run:
    """Everything that a run is made of."""

    plan: Plan
    agent: Agent
    runner: Runner
    evaluate: Evaluate | None  # None where no episode is asked for
    recorder: Recorder | None  # None where nothing is recorded


def build(config: Config) -> Run:
    """Builds a run on the devices that are there.

    Raises:
      ConfigError: for settings that contradict each other or the machine.
    """
    with refusals():
        environments = build_environments(config)
        run_plan, agent = build_plan(config, environments, config.topology or local_topology())
        mesh = learner_mesh(run_plan)
        replay = build_replay(config, agent, run_plan)
    recorder = build_recorder(config.recording, run_plan)
    if recorder is not None:
        replay = Recorded(store=replay, recorder=recorder, axis_name=agent.axis_name)
    if run_plan.runner == "anakin":
        runner = Anakin(agent, environments.batched, replay, run_plan, mesh, config.runner.build())
    else:
        runner = _sebulba(config, environments, run_plan, agent, replay, mesh)
    evaluate = None
    if config.evaluation.num_episodes:
        evaluate = build_evaluator(dataclasses.replace(agent, axis_name=None), environments, config.evaluation)
    return Run(run_plan, agent, runner, evaluate, recorder)


def build_member(run: Run, config: Config) -> Run:
    """Makes a run that shares all but its seed and the traceable hyper-parameters of its agent with another.

    Args:
      run: under `runner=anakin`, on one device.
      config: of the new one; whatever else differs in it is passed over.

    Raises:
      ConfigError: the agent refuses its settings.
    """
    agent = config.agent.build(spec=run.agent.spec, network=run.agent.network)
    run_plan = dataclasses.replace(run.plan, seed=config.seed)
    runner = dataclasses.replace(run.runner, agent=agent, plan=run_plan)
    return Run(run_plan, agent, runner, run.evaluate and run.evaluate.of(agent), None)


def build_plan(config: Config, environments: Environments, topology: Topology) -> tuple[Plan, Agent]:
    """Plans a run for machines that are there or not, and makes its agent.

    Raises:
      ValueError: for settings that contradict each other or the machines.
    """
    agent = build_agent(config, environments, topology.platform)
    runner = config.runner.build()
    run_plan = plan(
        runner=config.runner.name,
        topology=topology,
        mesh=config.mesh,
        num_envs=config.env.num_envs,
        unroll_length=agent.unroll_length,
        total_env_steps=config.total_env_steps,
        seed=config.seed,
        # In debugging one actor a device acts, so that what happens is in order.
        threads_per_device=1 if config.debug else getattr(runner, "threads_per_device", 1),
        num_minibatches=getattr(agent, "num_minibatches", 1),
        recurrent=config.network.core != "none",
    )
    if run_plan.learners > 1:
        agent = dataclasses.replace(agent, axis_name=LEARNER_AXIS)
    # For its shapes alone, as on one device.
    replay = build_replay(config, dataclasses.replace(agent, axis_name=None), run_plan)
    held = _memory(run_plan, agent, replay, environments)
    return dataclasses.replace(run_plan, memory=held, replay=replay.summary()), agent


def build_agent(config: Config, environments: Environments, platform: str) -> Agent:
    """Makes the agent, for one learner device.

    Raises:
      ValueError: the agent cannot do what the environment asks for.
    """
    network = resolve_platform(config.network, platform)
    agent = config.agent.build(spec=environments.spec, network=network)
    jax.eval_shape(agent.init_learner, run_key(0))  # where networks refuse spaces
    return agent


def build_environments(config: Config) -> Environments:
    """Makes the environment that JAX runs, or finds out what one on the host accepts and emits.

    Raises:
      ValueError: for an environment that does not exist or does not fit the runner.
    """
    suite = config.env.suite
    if suite in HOST_SUITES:
        if config.runner.name == "anakin":
            raise ConfigError(f"env.suite={suite} steps on the host, and runner=anakin compiles it; use runner=sebulba")
        from podracer.envs.host_checks import check_host_env

        probe = _make_host(config.env, 2, 1)
        try:
            check_host_env(probe)
        finally:
            probe.close()
        return Environments(config.env, None, probe.spec)
    if suite not in JAX_SUITES:
        raise ConfigError(f"env.suite={suite} is none of {', '.join([*JAX_SUITES, *HOST_SUITES])}")
    env = wrap(importlib.import_module(JAX_SUITES[suite]).make(config.env), config.env)
    check_env(env, num_steps=0)
    batched = AutoReset(env, config.env.autoreset, config.env.resets_per_step)
    return Environments(config.env, batched, env.spec)


def build_evaluator(agent: Agent, environments: Environments, config: EvaluationConfig) -> Evaluate:
    """Makes what evaluates a policy in environments of its own."""
    if environments.batched is not None:
        return JaxEvaluator(agent, environments.batched, config)
    return host_evaluator(
        agent, lambda num_envs: _make_host(environments.config, num_envs, _evaluation_threads()), config
    )


def _sebulba(
    config: Config, environments: Environments, run_plan: Plan, agent: Agent, replay: Replay, mesh: Any
) -> Sebulba:
    devices = tuple(actor_devices(run_plan))

    def make_env(shard: int) -> HostEnv:
        device = devices[shard % run_plan.actors_per_host]

        def make() -> HostEnv:
            return environments.make_host(
                run_plan.envs_per_actor, run_plan.env_threads_per_actor, run_plan.seed, shard, device
            )

        return GuardedHost(make, config.faults, shard)

    example = example_trajectory(agent, environments.spec, run_plan.num_envs, run_plan.envs_per_learner)
    return Sebulba(agent, make_env, replay, run_plan, mesh, devices, example, config.runner.build(), config.faults)


def _make_host(config: EnvConfig, num_envs: int, num_threads: int) -> HostEnv:
    from podracer.envs.host_wrappers import wrap_host

    module = importlib.import_module(HOST_SUITES[config.suite])
    return wrap_host(module.make(config, num_envs, num_threads), config)


def _evaluation_threads() -> int:
    return max(1, local_topology().cores_per_host // 2)


def _memory(run_plan: Plan, agent: Agent, replay: Replay, environments: Environments) -> dict[str, int]:
    """Bytes a device, from the shapes of what it will hold."""
    agent = dataclasses.replace(agent, axis_name=None)
    learner_state = jax.eval_shape(agent.init_learner, run_key(0))
    stored = example_trajectory(agent, environments.spec, run_plan.num_envs, run_plan.envs_per_learner)
    trajectory = example_trajectory(agent, environments.spec, run_plan.num_envs, run_plan.envs_per_actor)
    held: tuple[Any, ...] = (trajectory.actor_state,)
    if run_plan.runner == "anakin":
        reset: Callable = lambda key: environments.batched.reset(key, run_plan.envs_per_actor)  # noqa: E731
        held += (jax.eval_shape(reset, run_key(0)),)
    return memory(
        run_plan,
        learner_state=learner_state,
        trajectory=trajectory,
        actor_state=held,
        replay_state=jax.eval_shape(lambda: replay.init(stored)),
        params=jax.eval_shape(agent.actor_params, learner_state) if run_plan.runner == "sebulba" else (),
    )
