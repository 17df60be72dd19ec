"""Objects named by their import path in the configuration."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from podracer.suggest import did_you_mean


def load_object(path: str, key: str) -> Any:
    """Imports an object.

    Args:
      path: `package.module:name`; the name may be dotted (`module:Class.method`).
      key: the configuration's key that holds the path, for errors.

    Raises:
      ValueError: the path has another form, or the module lacks the name.
      ImportError: there is no such module. What the module itself raises on import passes through.
    """
    module_name, colon, name = path.partition(":")
    if not (module_name and colon and name):
        raise ValueError(f"{key}={path!r} is no import path; write it as package.module:name")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(error.name + ".")):
            raise  # the module exists and itself lacks an import
        raise ImportError(
            f"{key}={path!r}: there is no module {error.name!r}; is its folder on PYTHONPATH, or its package installed?"
        ) from error
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            near = did_you_mean(part, [known for known in vars(found) if not known.startswith("_")])
            raise ValueError(f"{key}={path!r}: {module_name} has no {part!r}; {near}")
        found = getattr(found, part)
    return found


def call(function: Callable, kwargs: Mapping[str, Any], key: str) -> Any:
    """Calls a function with keyword arguments from the configuration.

    Args:
      function: whatever is called.
      kwargs: its arguments.
      key: the configuration's key that holds them, for errors.

    Raises:
      ValueError: an argument that the function does not take, or one that it lacks.
    """
    try:
        signature = inspect.signature(function)
        signature.bind(**kwargs)
    except TypeError as error:
        raise ValueError(f"{key}={dict(kwargs)}: {error}; {function.__name__} takes {signature}") from None
    return function(**kwargs)
