"""From a configuration to the store that an agent learns from."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from podracer.agent import Agent
from podracer.config import BUILT, COMPONENTS, Component, Config
from podracer.conversion import ConfigError, convert, fields_from_mapping
from podracer.importing import load_object
from podracer.parallel.mesh import Plan
from podracer.replay.base import Replay, ReplaySpec
from podracer.replay.mixture import shares
from podracer.replay.recorder import Recorder, RecordingConfig
from podracer.replay.settings import RatioSettings

# The stores of agents that learn from fresh unrolls; all others are for agents that learn from their past.
FRESH = ("on_policy", "queue")
MIXTURE, HOST = "mixture", "host"
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
    parts = config.replay.settings.get("stores", {}) if name == MIXTURE else {}
    names = [name, *(part["name"] for part in parts.values() if isinstance(part, Mapping) and "name" in part)]
    if HOST in names and config.checkpoint.enabled:
        raise ConfigError(
            f"replay={HOST} holds its steps where no checkpoint saves them, so that a run cannot go on from one; "
            "set checkpoint.enabled=false, which saves the actors' parameters only"
        )
    spec = replay_spec(agent, run_plan.num_envs, run_plan.learners) if learns_from_past else None
    return build_store(config.replay, spec, agent.axis_name)


def build_store(component: Component, spec: ReplaySpec | None, axis_name: str | None) -> Replay:
    """Makes a store.

    Args:
      component: its settings.
      spec: what it is asked for; None by agents that learn from fresh unrolls.
      axis_name: the mesh axis of the learner devices, if there are several.

    Raises:
      ValueError: the settings do not suit what is asked for.
    """
    if spec is None:
        return component.build()
    built: dict[str, Any] = {"spec": spec, "axis_name": axis_name}
    if component.name == MIXTURE:
        built["parts"] = _build_parts(component.settings.get("stores", {}), **built)
    return component.build(**built)


def build_recorder(config: RecordingConfig, run_plan: Plan) -> Recorder | None:
    """Makes what records a run; None where it is not to be recorded."""
    if config.folder is None:
        return None
    return Recorder(Path(config.folder), run_plan.learners, int(config.chunk_mebibytes * 2**20))


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


def _build_parts(stores: Mapping[str, Any], spec: ReplaySpec, axis_name: str | None) -> tuple[Replay, ...]:
    """Makes the stores of a mixture, in their order."""
    if not stores:
        raise ConfigError(
            f"replay={MIXTURE} has no stores; name some: replay.stores.recent.name=uniform "
            "replay.stores.recent.proportion=0.5 replay.stores.recent.capacity=10000"
        )
    proportions = {name: _proportion(f"replay.stores.{name}", settings) for name, settings in stores.items()}
    parts = []
    for name, share in shares(proportions, spec.batch_size_per_device).items():
        own_spec = dataclasses.replace(spec, batch_size=share * spec.num_devices)
        parts.append(_build_part(f"replay.stores.{name}", stores[name], own_spec, axis_name))
    return tuple(parts)


def _proportion(path: str, settings: Any) -> float:
    if not isinstance(settings, Mapping) or not {"name", "proportion"} <= set(settings):
        raise ConfigError(f"{path}={settings!r} lacks a setting; set {path}.name=uniform {path}.proportion=0.5")
    return convert(settings["proportion"], float, f"{path}.proportion")


def _build_part(path: str, settings: Mapping[str, Any], spec: ReplaySpec, axis_name: str | None) -> Replay:
    choices = {name: make for name, make in COMPONENTS["replay"].items() if name not in (*FRESH, MIXTURE)}
    name = settings["name"]
    if name not in choices:
        raise ConfigError(f"{path}.name={name} is none of {', '.join(choices)}")
    cls = load_object(choices[name], path)
    settings = {key: value for key, value in settings.items() if key not in ("name", "proportion")}
    # How much is learnt is one question for all stores of a mixture.
    for key in (field.name for field in dataclasses.fields(RatioSettings)):
        if key in settings:
            raise ConfigError(f"{path}.{key} is no setting of a part; set replay.{key} for the whole mixture")
    try:
        return cls(**fields_from_mapping(cls, settings, path, BUILT), spec=spec, axis_name=axis_name, learning_starts=0)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error).replace("replay.", f"{path}.", 1)) from error
