"""Podracer: Anakin and Sebulba, the architectures for scalable reinforcement learning, in JAX."""

import importlib
from typing import Any

# Found on first use, so that `import podracer` costs nothing.
_LAZY = {
    "load_config": "podracer.config",
    "train": "podracer.api",
    "train_together": "podracer.api",
    "Member": "podracer.api",
    "resume": "podracer.api",
    "evaluate": "podracer.api",
    "load_policy": "podracer.api",
}

__all__ = ["Member", "__version__", "evaluate", "load_config", "load_policy", "resume", "train", "train_together"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("podracer")
    if name not in _LAZY:
        raise AttributeError(f"module 'podracer' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
