"""Hydra's part: the files under `configs/`, completed by the defaults of the dataclasses, composed and overridden.

Every file is put into Hydra's store with all keys of its schema, so that `agent.learning_rate=1e-3`
needs no `+`, although no default is written down a second time, and Hydra's own grammar, sweeps and
`--cfg` work as they always do.
"""

import contextlib
import functools
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf._utils import get_yaml_loader
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from podracer.config import BUILT, COMPONENTS, SECTIONS, TOPOLOGY, Settings, defaults_of, schema_of
from podracer.conversion import (
    ConfigError,
    mapping_fields,
    nearest_keys,
    plain_defaults,
    settings_of,
    unknown_key,
)
from podracer.importing import load_object
from podracer.locations import config_files

# The name of config.yaml in Hydra's store, which an application around us may share.
PRIMARY = "podracer"
HYDRA_VERSION_BASE = "1.3"
# Groups of files that set keys of all others.
_EXPERIMENT, _SWEEP = "experiment", "sweep"
# What Hydra's own plugins bring, and the extra that brings them.
_PACKAGES = {
    "hydra/launcher/joblib": "joblib",
    "hydra/launcher/submitit_local": "submitit",
    "hydra/launcher/submitit_slurm": "submitit",
}
# The environment variable that holds `run_suffix`, while a command runs.
RUN_SUFFIX = "PODRACER_RUN_SUFFIX"


class Known(NamedTuple):
    """What may be overridden."""

    keys: dict[str, list[str]]  # dotted key -> the choices that have it, as "agent=ppo"; none for all
    open_keys: set[str]  # dotted keys of mappings in which any key may be set
    options: dict[str, list[str]]  # group -> its options

    def has(self, key: str) -> bool:
        return key in self.keys or any(key.startswith(f"{open_key}.") for open_key in self.open_keys)


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """Composes the configuration into plain values, interpolations resolved.

    Raises:
      ConfigError: for anything that Hydra refuses, with the nearest known names.
    """
    check_overrides(overrides)
    # Works inside of another Hydra application, too: its state is put back.
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with translated_errors(), hydra.initialize(config_path=None, version_base=HYDRA_VERSION_BASE):
            return to_mapping(hydra.compose(PRIMARY, list(overrides)))
    finally:
        GlobalHydra.instance().hydra = outer


def to_mapping(config: DictConfig) -> dict[str, Any]:
    """Resolves a composed configuration into plain values."""
    with translated_errors():
        return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)


def check_overrides(overrides: Sequence[str]) -> None:
    """Refuses overrides of keys that nothing reads, also those that are added with `+`.

    Raises:
      ConfigError: with the nearest known key.
    """
    known = register()
    for override in parse_overrides(overrides):
        key = override.key_or_group
        if re.split("[./]", key)[0] == "hydra":
            continue
        if key in known.options:
            _check_choice(key, override)
        elif not known.has(key):
            raise unknown_key(key, known.keys)


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Parses overrides by Hydra's grammar; raises `ConfigError` for what it does not allow."""
    with translated_errors():
        return OverridesParser.create().parse_overrides(list(overrides))


@contextlib.contextmanager
def translated_errors() -> Iterator[None]:
    """Turns what Hydra and OmegaConf raise into a `ConfigError` that names the repair."""
    try:
        yield
    except MissingConfigException as error:
        raise ConfigError(_describe_missing(error)) from error
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_describe(error)) from error


@functools.cache
def register() -> Known:
    """Puts the files under `configs/` into Hydra's store; once a process.

    Raises:
      ConfigError: for an unknown key in one of them.
    """
    OmegaConf.register_new_resolver("run_suffix", run_suffix, replace=True)
    known = Known({}, set(), {})
    presets = []
    for option, path in config_files():
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader) or {}
        group, _, name = option.rpartition("/")
        section = option.split("/")[0]
        if not group:
            ConfigStore.instance().store(PRIMARY, _primary(content, known))
            continue
        known.options.setdefault(section, []).append(option.partition("/")[2])
        if section in (_EXPERIMENT, _SWEEP):
            presets.append((option, content))
            ConfigStore.instance().store(name, content, group=group, package="_global_")
            continue
        try:
            node = _completed(section, content, known, f"{section}={option.partition('/')[2]}")
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
        ConfigStore.instance().store(name, node, group=group, package=section)
    for option, content in presets:
        for key in _preset_keys(option, content):
            if not (known.has(key) or key in known.options):
                raise ConfigError(f"{option}: {unknown_key(key, [*known.keys, *known.options])}")
    store = ConfigStore.instance()
    store.repo = _Shared(store.repo)
    return known


@functools.cache
def run_suffix() -> str:
    """Tells runs apart that start in the same second; one a command, so that a sweep has one folder.

    The processes of a launcher inherit it from the command that started them.
    """
    return os.environ.get(RUN_SUFFIX) or secrets.token_hex(4)


def _preset_keys(option: str, content: Mapping[str, Any]) -> Iterator[str]:
    """The keys that an experiment sets, or that a sweep varies."""
    hydra_part = content.get("hydra") or {}
    yield from (hydra_part.get("sweeper") or {}).get("params") or {}
    own = [key for key in _dotted(content) if key.split(".")[0] not in ("defaults", "hydra")]
    if own and option.startswith(f"{_SWEEP}/"):
        # A run of it is told of by its own overrides, which so have to say everything.
        raise ConfigError(f"{option}: {own[0]} is set outside of hydra.sweeper.params; write it there")
    yield from own


def _primary(content: dict[str, Any], known: Known) -> dict[str, Any]:
    """Completes config.yaml: the settings of the top level, and the sections that have no files."""
    defaults = plain_defaults(Settings)
    defaults["topology"] = dict.fromkeys(settings_of(load_object(TOPOLOGY, "topology")))
    sections = [name for name in SECTIONS if name in content]
    for key in content:
        if key not in ("defaults", "hydra", *defaults, *sections):
            raise ConfigError(f"config.yaml: {unknown_key(key, [*defaults, *SECTIONS])}")
    for key in _dotted(defaults):
        known.keys.setdefault(key, [])
    node = _merged(defaults, {key: content[key] for key in content if key not in sections})
    for name in sections:
        node[name] = _completed(name, content[name] or {}, known, "")
    return node


def _completed(section: str, content: dict[str, Any], known: Known, choice: str) -> dict[str, Any]:
    """Adds the settings that a file leaves at their defaults, and notes which there are."""
    name = content.get("name") if section in COMPONENTS else None
    defaults = defaults_of(section, name)
    missing = {field: "???" for field in settings_of(schema_of(section, name), BUILT) if field not in defaults}
    node = {**defaults, **missing}
    keys = [f"{section}.{key}" for key in _dotted(node)]
    open_fields = mapping_fields(schema_of(section, name), BUILT)
    open_keys = [f"{section}.{field}" for field in open_fields]
    for key in _dotted(content):
        dotted = f"{section}.{key}"
        if key != "defaults" and dotted not in keys and not any(dotted.startswith(f"{k}.") for k in open_keys):
            raise unknown_key(dotted, keys)
    for key in (section, *keys):
        known.keys.setdefault(key, []).extend([choice] if choice else [])
    known.open_keys.update(open_keys)
    node = _merged(node, content)
    for field in open_fields:
        # Hydra forbids new keys everywhere; in here they are the user's own.
        node[field] = OmegaConf.create(node[field], flags={"struct": False})
    return node


def _merged(node: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Both mappings in one, the second over the first, inner ones too."""
    merged = dict(node)
    for key, value in over.items():
        inner = merged.get(key)
        merged[key] = _merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return merged


def _dotted(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """All keys of a tree, inner ones and leaves."""
    for name, value in node.items():
        yield f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{name}.")


class _Shared(dict):
    """The contents of Hydra's store, which Hydra copies with all else for each run of a sweep: half of composing.

    What is read from the store is a copy already.
    """

    def __deepcopy__(self, memo: dict) -> "_Shared":
        return self


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """Reads YAML as OmegaConf does, ten times faster where LibYAML is there."""

    yaml_implicit_resolvers = get_yaml_loader().yaml_implicit_resolvers


def _check_choice(group: str, override: Override) -> None:
    value = None if override.is_sweep_override() else override.value()
    if not (value is None or isinstance(value, (str, list, QuotedString))):
        raise ConfigError(f"{group}={value} is no choice; there are {', '.join(register().options[group])}")


def _describe_missing(error: MissingConfigException) -> str:
    file = error.missing_cfg_file or ""
    if file in _PACKAGES:
        return f'{file.replace("er/", "er=")} needs a package: pip install "podracer[{_PACKAGES[file]}]"'
    group, _, option = (file if isinstance(file, str) else "").partition("/")
    options = register().options.get(group)
    if not options:
        return str(error).splitlines()[0]
    by_key = {known.replace("/", "."): f"{group}={known}" for known in options}
    near = [by_key[key] for key in nearest_keys(option.replace("/", "."), by_key)]
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(options)}"
    return f"{group}={option} does not exist; {hint}"


def _describe(error: Exception) -> str:
    refused = re.match(r"Could not override '([^']+)'", str(error))
    choices = register().keys.get(refused[1]) if refused else None
    if choices:
        section = refused[1].split(".")[0]
        return f"{refused[1]} is no setting of the chosen {section}; those with it: {', '.join(choices)}"
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key} is missing; it has no default: set {error.full_key}=..."
    dangling = re.match(r"Interpolation key '([^']+)' not found", str(error))
    if dangling:
        near = nearest_keys(dangling[1], register().keys)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        return f"{error.full_key}=${{{dangling[1]}}} refers to nothing{hint}"
    if "does not support sweep type" in str(error):
        return f"{error}; hydra/sweeper=optuna does"
    causes = [str(error), str(error.__cause__ or "")]
    return "\n".join(cause.strip() for cause in causes if cause.strip())
