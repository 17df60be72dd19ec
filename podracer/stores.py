"""From a configuration to the store that an agent learns from."""

from podracer.agent import Agent
from podracer.config import COMPONENTS, Config
from podracer.conversion import ConfigError
from podracer.parallel.mesh import Plan
from podracer.replay.base import Replay, ReplaySpec

# The stores of agents that learn from fresh unrolls; all others are for agents that learn from their past.
FRESH = ("on_policy", "queue")
# What an agent may say of the sequences that it learns from, beside their length: see `ReplaySpec`.
_REPLAY_WISHES = ("sequence_period", "transitions_per_sequence", "episode_ends", "samples_per_insert")


def build_replay(config: Config, agent: Agent, run_plan: Plan) -> Replay:
    """Makes the store that an agent learns from.

    Raises:
      ValueError: the store does not suit the agent, or its settings do not suit the run.
    """
    name, learns_from_past = config.replay.name, getattr(agent, "batch_size", None) is not None
    if learns_from_past == (name in FRESH):
        others = [other for other in COMPONENTS["replay"] if (other in FRESH) != learns_from_past]
        source = "a store of its past" if learns_from_past else "fresh unrolls only"
        raise ConfigError(
            f"agent={config.agent.name} learns from {source}, which replay={name} is not for; "
            f"use replay={' or '.join(others)}"
        )
    if not learns_from_past:
        return config.replay.build()
    spec = replay_spec(agent, run_plan.num_envs, run_plan.learners)
    return config.replay.build(spec=spec, axis_name=agent.axis_name)


def replay_spec(agent: Agent, num_envs: int, num_devices: int) -> ReplaySpec:
    """What an agent that has a `batch_size` asks of its store."""
    wishes = {wish: getattr(agent, wish, None) for wish in _REPLAY_WISHES}
    return ReplaySpec(
        num_envs=num_envs,
        unroll_length=agent.unroll_length,
        batch_size=agent.batch_size,
        num_devices=num_devices,
        sequence_length=agent.sequence_length,
        stacked_frames=agent.spec.stacked_frames,
        **{wish: value for wish, value in wishes.items() if value is not None},
    )
