"""What a run is made of, validated, before any of it is built.

The dataclasses that stand beside the code are the schema and hold the defaults; the tables below
say where they are. Nothing of JAX is imported until a configuration is made.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from podracer.conversion import (
    ConfigError,
    fields_from_mapping,
    from_mapping,
    plain_defaults,
    refusals,
    settings_of,
    to_plain,
    unknown_key,
)
from podracer.importing import load_object

if TYPE_CHECKING:
    from podracer.checkpoint import CheckpointConfig
    from podracer.envs.base import EnvConfig
    from podracer.faults import FaultsConfig
    from podracer.logging import LoggerConfig
    from podracer.networks.config import NetworkConfig
    from podracer.parallel.mesh import MeshConfig, Topology
    from podracer.replay.recorder import RecordingConfig
    from podracer.runners.evaluator import EvaluationConfig

# Groups of settings with one schema.
SECTIONS = {
    "env": "podracer.envs.base:EnvConfig",
    "network": "podracer.networks.config:NetworkConfig",
    "mesh": "podracer.parallel.mesh:MeshConfig",
    "logger": "podracer.logging:LoggerConfig",
    "evaluation": "podracer.runners.evaluator:EvaluationConfig",
    "checkpoint": "podracer.checkpoint:CheckpointConfig",
    "faults": "podracer.faults:FaultsConfig",
    "recording": "podracer.replay.recorder:RecordingConfig",
}

# Groups whose schema depends on their `name`.
COMPONENTS = {
    "agent": {
        "ppo": "podracer.agents.ppo:PPO",
        "impala": "podracer.agents.impala:IMPALA",
        "pqn": "podracer.agents.pqn:PQN",
        "dqn": "podracer.agents.dqn:DQN",
        "r2d2": "podracer.agents.r2d2:R2D2",
        "mpo": "podracer.agents.mpo:MPO",
        "sac": "podracer.agents.sac:SAC",
        "td3": "podracer.agents.td3:TD3",
    },
    "runner": {
        "anakin": "podracer.runners.anakin:AnakinConfig",
        "sebulba": "podracer.runners.sebulba:SebulbaConfig",
    },
    "replay": {
        "on_policy": "podracer.replay.on_policy:OnPolicy",
        "queue": "podracer.replay.queue:Queue",
        "uniform": "podracer.replay.uniform:Uniform",
        "prioritised": "podracer.replay.prioritised:Prioritised",
        "mixture": "podracer.replay.mixture:Mixture",
        "dataset": "podracer.replay.dataset:Dataset",
        "host": "podracer.replay.host:Host",
    },
}

CUSTOM = "custom"
TOPOLOGY = "podracer.parallel.mesh:Topology"

# Fields of a component that are no settings: `podracer.build` fills them in.
BUILT = frozenset({"spec", "network", "axis_name", "parts"})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings that belong to no group."""

    seed: int = 0
    """Of everything random in a run; neighbouring seeds share no stream."""
    total_env_steps: int = 1_000_000
    """Budget of the run in environment steps, over all environments; a whole number of updates is done."""
    debug: bool = False
    """Looks for NaNs, compiles as little as possible and acts with one actor: slow, but errors say where."""
    profile: bool = False
    """Writes a JAX trace of updates 10 to 15 into the run's folder."""
    fail_fast: bool = False
    """Whether a sweep starts no further run once one has failed."""
    objective: Literal["final_return", "best_return", "mean_return", "steps_per_second"] = "final_return"
    """What a sweeper is told of a run, to optimise it: the return of the final evaluation, of the best one, the mean
    over all, which is the area under the learning curve, or the throughput."""
    resume: str | None = None
    """Folder of a run to go on with; auto: the run's own folder (hydra.run.dir=...), if it has a checkpoint."""

    def __post_init__(self):
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"seed={self.seed} is out of range; use 0 to {2**32 - 1}")
        if self.total_env_steps < 1:
            raise ConfigError(f"total_env_steps={self.total_env_steps} is not positive; use 1000000")


@dataclass(frozen=True, kw_only=True)
class Custom:
    """A component of the user's own."""

    make: str
    """Its dataclass, as `package.module:Name`."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the dataclass."""


@dataclass(frozen=True, kw_only=True)
class Component:
    """A part that is chosen by name: its dataclass, and checked settings for it."""

    name: str
    make: str  # import path of the dataclass
    settings: Mapping[str, Any]  # of the types of its fields

    def build(self, **built: Any) -> Any:
        """Makes the part.

        Args:
          built: those fields that are no settings.

        Raises:
          ConfigError: the part refuses its settings.
        """
        cls = load_object(self.make, self.name)
        with refusals():
            return cls(**self.settings, **built)


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """A whole run. Every value has the type of its schema; what the values mean together is `build`'s to check."""

    agent: Component
    runner: Component
    replay: Component
    env: "EnvConfig"
    network: "NetworkConfig"
    mesh: "MeshConfig"
    logger: "LoggerConfig"
    evaluation: "EvaluationConfig"
    checkpoint: "CheckpointConfig"
    faults: "FaultsConfig"
    recording: "RecordingConfig"
    topology: "Topology | None" = None  # the machines to plan for; None is the ones that are there


def load_config(overrides: Iterable[str] = ()) -> Config:
    """Composes a configuration as the command line does.

    Args:
      overrides: as on the command line: `["agent=ppo", "env=gymnax/breakout", "agent.learning_rate=1e-3"]`.

    Raises:
      ConfigError: for anything unknown, missing or of the wrong type.
    """
    from podracer.composition import compose

    return config_from_mapping(compose(list(overrides)))


def config_from_mapping(mapping: Mapping[str, Any]) -> Config:
    """Checks and converts a plain mapping, such as a run's `config.yaml`; what it lacks has its default."""
    given = dict(mapping)
    for key in given:
        if key not in known_keys():
            raise unknown_key(key, known_keys())
    for name in COMPONENTS:
        if name not in given:
            raise ConfigError(f"{name} is missing; choose {name}={' or '.join(COMPONENTS[name])}")
    parts: dict[str, Any] = {name: _component(name, given.pop(name)) for name in COMPONENTS}
    for name, schema in SECTIONS.items():
        parts[name] = from_mapping(load_object(schema, name), given.pop(name, {}), name)
    parts["topology"] = _topology(given.pop("topology", None))
    return Config(**parts, **fields_from_mapping(Settings, given, ""))


def config_to_mapping(config: Config) -> dict[str, Any]:
    """The plain mapping that `config_from_mapping` makes the same configuration of."""
    mapping = to_plain(config)
    for name in COMPONENTS:
        component = getattr(config, name)
        settings = to_plain(component.settings)
        if component.name == CUSTOM:
            settings = {"make": component.make, "kwargs": settings}
        mapping[name] = {"name": component.name, **settings}
    return mapping


def save_config(config: Config, path: Path) -> None:
    """Writes a configuration as YAML, all values resolved; refuses to replace a file."""
    try:
        with open(path, "x", encoding="utf-8") as file:
            yaml.safe_dump(config_to_mapping(config), file, sort_keys=False)
    except FileExistsError:
        raise ConfigError(f"{path} exists: another run has this folder; choose another by hydra.run.dir=...") from None


def read_config(path: Path) -> Config:
    """Reads what `save_config` wrote."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; {path.parent} is not the folder of a run") from None
    return config_from_mapping(yaml.safe_load(text))


def known_keys() -> list[str]:
    """The keys of the top level."""
    return [*settings_of(Settings), *COMPONENTS, *SECTIONS, "topology"]


def schema_of(section: str, name: str | None) -> type:
    """Finds the dataclass of a group's settings.

    Args:
      section: the group.
      name: what is chosen, in a group that has a name.
    """
    if section in SECTIONS:
        return load_object(SECTIONS[section], section)
    if section not in COMPONENTS:
        raise unknown_key(section, known_keys())
    if section == "agent" and name == CUSTOM:
        return Custom
    choices = COMPONENTS[section]
    if name not in choices:
        raise ConfigError(f"{section}.name={name} is none of {', '.join(choices)}")
    return load_object(choices[name], section)


def defaults_of(section: str, name: str | None) -> dict[str, Any]:
    """All settings of a group with their defaults, as plain values."""
    defaults = plain_defaults(schema_of(section, name), BUILT)
    return {"name": name, **defaults} if section in COMPONENTS else defaults


def _component(section: str, mapping: Any) -> Component:
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"{section} is a group of settings, not {mapping!r}; choose {section}=<name>")
    settings = dict(mapping)
    name = settings.pop("name", None)
    schema = schema_of(section, name)
    if schema is not Custom:
        return Component(
            name=name,
            make=COMPONENTS[section][name],
            settings=fields_from_mapping(schema, settings, section, BUILT),
        )
    custom = from_mapping(Custom, settings, section)
    with refusals():
        cls = _import_custom(custom.make, f"{section}.make")
        kwargs = fields_from_mapping(cls, custom.kwargs, f"{section}.kwargs", BUILT)
    return Component(name=CUSTOM, make=custom.make, settings=kwargs)


def _import_custom(path: str, key: str) -> type:
    try:
        cls = load_object(path, key)
    except ImportError as error:
        # Without a name it says that the module is not there; with one, that the user's own code fails.
        if error.name is not None:
            raise
        raise ConfigError(str(error)) from error
    if not (isinstance(cls, type) and hasattr(cls, "__dataclass_fields__")):
        raise ConfigError(f"{key}={path} is no dataclass; an agent is a frozen dataclass whose fields are its settings")
    return cls


def _topology(value: Any) -> "Topology | None":
    from podracer.parallel.topologies import resolve_topology

    if isinstance(value, Mapping):
        value = {name: setting for name, setting in value.items() if setting is not None}
        value = fields_from_mapping(load_object(TOPOLOGY, "topology"), value, "topology")
    elif not (value is None or isinstance(value, str)):
        raise ConfigError(f"topology={value!r} is not the name of a machine; use tpu-v3-8 or topology.hosts=2")
    with refusals():
        return resolve_topology(value) if value else None
