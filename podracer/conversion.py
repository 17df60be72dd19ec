"""Plain mappings, as YAML and the command line give them, into frozen dataclasses: strictly, by their type hints."""

import contextlib
import dataclasses
import difflib
import functools
import math
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

T = TypeVar("T")

# What other libraries call our settings; known here only so that an error can point at the right key.
_NAMES_ELSEWHERE = {
    "lr": "learning_rate",
    "gamma": "discount_factor",
    "num_steps": "unroll_length",
    "rollout_length": "unroll_length",
    "ent_coef": "entropy_cost",
    "vf_coef": "value_cost",
    "clip_coef": "clip_epsilon",
    "clip_eps": "clip_epsilon",
    "update_epochs": "num_epochs",
    "total_timesteps": "total_env_steps",
}


class ConfigError(ValueError):
    """A setting that is refused. Its message names the key and the repair; it is shown without a traceback."""


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Turns every `ValueError` raised within into a `ConfigError`: for code that only checks settings."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from error


def from_mapping(cls: type[T], mapping: Mapping[str, Any], path: str) -> T:
    """Makes a dataclass of a mapping; see `fields_from_mapping`."""
    fields = fields_from_mapping(cls, mapping, path)
    with refusals():
        return cls(**fields)


def fields_from_mapping(
    cls: type, mapping: Mapping[str, Any], path: str, exclude: Collection[str] = ()
) -> dict[str, Any]:
    """Converts the values of a mapping to the types of a dataclass's fields.

    An integer may be written as 1e6, a float as 1, a tuple as a list; nothing else is converted.

    Args:
      cls: the dataclass.
      mapping: its fields by name; absent ones keep their defaults.
      path: dotted key of the mapping, for errors.
      exclude: fields that are not settings.

    Returns:
      Fields by name, those of `mapping` only.

    Raises:
      ConfigError: naming the key, for an unknown key, a missing one, or a value of the wrong type.
    """
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"{path} is a group of settings, not {mapping!r}; set {path}.<name>")
    settings = settings_of(cls, exclude)
    prefix = f"{path}." if path else ""
    for name in mapping:
        if name not in settings:
            raise unknown_key(f"{prefix}{name}", [prefix + known for known in settings])
    for name, field in settings.items():
        if name not in mapping and not _has_default(field):
            raise ConfigError(f"{prefix}{name} is missing; it has no default")
    hints = _type_hints(cls)
    return {name: convert(value, hints[name], f"{prefix}{name}") for name, value in mapping.items()}


def settings_of(cls: type, exclude: Collection[str] = ()) -> dict[str, dataclasses.Field]:
    """The fields of a dataclass that a user may set."""
    return {field.name: field for field in dataclasses.fields(cls) if field.init and field.name not in exclude}


def plain_defaults(cls: type, exclude: Collection[str] = ()) -> dict[str, Any]:
    """The defaults of a dataclass as plain values: nested dataclasses as dictionaries, tuples as lists."""
    defaults = {}
    for name, field in settings_of(cls, exclude).items():
        if field.default_factory is not dataclasses.MISSING:
            defaults[name] = to_plain(field.default_factory())
        elif field.default is not dataclasses.MISSING:
            defaults[name] = to_plain(field.default)
    return defaults


def to_plain(value: Any) -> Any:
    """Undoes the conversion: what YAML can hold."""
    if dataclasses.is_dataclass(value):
        return {name: to_plain(getattr(value, name)) for name in settings_of(type(value))}
    if isinstance(value, Mapping):
        return {name: to_plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


def flattened(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings by dotted key."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def mapping_fields(cls: type, exclude: Collection[str] = ()) -> list[str]:
    """The fields that take a mapping with keys of the user's own choice."""
    hints = _type_hints(cls)
    return [name for name in settings_of(cls, exclude) if typing.get_origin(hints[name]) in _MAPPINGS]


def unknown_key(key: str, known: Iterable[str]) -> ConfigError:
    """The error for a key that is none of `known`, with the nearest of them."""
    near = nearest_keys(key, known)
    hint = f"did you mean {' or '.join(near)}?" if near else "podracer train --help lists all keys"
    return ConfigError(f"unknown key {key}; {hint}")


def nearest_keys(key: str, known: Iterable[str]) -> list[str]:
    """Finds the up to three dotted keys that look most like `key`, best first."""
    scores = {candidate: _likeness(key, candidate) for candidate in known}
    least = max([0.65, *(score - 0.15 for score in scores.values())])
    near = [candidate for candidate, score in scores.items() if score >= least]
    return sorted(near, key=lambda candidate: (-scores[candidate], candidate))[:3]


def convert(value: Any, hint: Any, path: str) -> Any:
    """Converts one plain value to a type hint, or raises a `ConfigError` that names `path`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _to_union(value, arguments, path)
    if origin is Literal:
        return _to_literal(value, arguments, path)
    if origin in _MAPPINGS or hint in _MAPPINGS:
        return _to_dict(value, arguments, path)
    if origin in _SEQUENCES or hint in _SEQUENCES:
        return _to_tuple(value, origin or hint, arguments, path)
    if dataclasses.is_dataclass(hint):
        return value if isinstance(value, hint) else from_mapping(hint, value, path)
    if hint in _SCALARS:
        return _SCALARS[hint](value, path)
    raise ConfigError(f"{path} cannot be set by a configuration: it is a {hint}")


def _to_bool(value: Any, path: str) -> bool:
    if isinstance(value, bool):
        return value
    raise ConfigError(f"{path}={value!r} is neither true nor false")


def _to_int(value: Any, path: str) -> int:
    _refuse_quoted_number(value, path)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{path}={value!r} is not a whole number")
    if not float(value).is_integer():
        near = f"; use {math.floor(value)} or {math.ceil(value)}" if math.isfinite(value) else ""
        raise ConfigError(f"{path}={value!r} is not a whole number{near}")
    return int(value)


def _to_float(value: Any, path: str) -> float:
    _refuse_quoted_number(value, path)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise ConfigError(f"{path}={value!r} is not a number")
    return float(value)


def _to_str(value: Any, path: str) -> str:
    if isinstance(value, str):
        return value
    raise ConfigError(f"{path}={value!r} is not a text; a text that looks like something else needs quotes")


def _refuse_quoted_number(value: Any, path: str) -> None:
    if not isinstance(value, str):
        return
    try:
        float(value)
    except ValueError:
        return
    raise ConfigError(f"{path}={value!r} is a text that looks like a number; write {path}={value}, without quotes")


def _to_union(value: Any, hints: Sequence[Any], path: str) -> Any:
    if value is None and type(None) in hints:
        return None
    hints = [hint for hint in hints if hint is not type(None)]
    # A value that already has one of the types is not converted to another of them.
    hints.sort(key=lambda hint: type(value) is not (typing.get_origin(hint) or hint))
    errors = []
    for hint in hints:
        try:
            return convert(value, hint, path)
        except ConfigError as error:
            errors.append(str(error))
    raise ConfigError("; or: ".join(errors))


def _to_literal(value: Any, choices: Sequence[Any], path: str) -> Any:
    for choice in choices:
        if value == choice and type(value) is type(choice):
            return choice
    raise ConfigError(f"{path}={value} is none of {', '.join(map(str, choices))}")


def _to_dict(value: Any, arguments: Sequence[Any], path: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path}={value!r} is not a mapping; set {path}.<name>=<value>")
    hint = arguments[1] if arguments else Any
    return {_to_str(name, f"a name in {path}"): convert(item, hint, f"{path}.{name}") for name, item in value.items()}


def _to_tuple(value: Any, origin: Any, arguments: Sequence[Any], path: str) -> tuple:
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"{path}={value!r} is not a list; write {path}=[{value}]")
    if origin is not tuple or len(arguments) < 2 or arguments[1] is Ellipsis:
        hints = [arguments[0] if arguments else Any] * len(value)
    else:
        hints = list(arguments)
        if len(hints) != len(value):
            raise ConfigError(f"{path}={list(value)!r} has {len(value)} elements where {len(hints)} are needed")
    return tuple(convert(item, hint, f"{path}[{index}]") for index, (item, hint) in enumerate(zip(value, hints)))


def _likeness(name: str, candidate: str) -> float:
    """Says in [0, 1] how much two dotted keys look alike, above all in their last words."""
    name, candidate = name.lower(), candidate.lower()
    word, known_word = name.rpartition(".")[2], candidate.rpartition(".")[2]
    others = [other for other, ours in _NAMES_ELSEWHERE.items() if ours == known_word]
    whole = _ratio(name, candidate)
    last = max(_ratio(word, known) for known in (known_word, *others))
    return 0.8 * last + 0.2 * whole


def _ratio(first: str, second: str) -> float:
    return difflib.SequenceMatcher(None, first, second).ratio()


def _has_default(field: dataclasses.Field) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


@functools.cache
def _type_hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


_SCALARS = {bool: _to_bool, int: _to_int, float: _to_float, str: _to_str}
_MAPPINGS = (Mapping, dict)
_SEQUENCES = (tuple, list, Sequence)
