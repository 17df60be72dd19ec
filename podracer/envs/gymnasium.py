"""Gymnasium: any registered environment, stepped one after the other in this process."""

import difflib
from types import ModuleType

from podracer.envs.base import EnvConfig, HostEnv

# Keywords of `gymnasium.make` that Podracer sets, and the key to change each of them by.
_RESERVED = {
    "id": "env.id",
    "max_episode_steps": "env.time_limit",
    "disable_env_checker": "nothing: environments are checked at start-up",
}


def make(config: EnvConfig, num_envs: int, num_threads: int) -> HostEnv:
    """Makes `num_envs` environments `gymnasium.make(config.id, **config.kwargs)`.

    `config.time_limit` replaces the limit that the environment is registered with. They are stepped in
    Python, which one thread does: `num_threads` has no use here.

    Raises:
      ImportError: Gymnasium, or what the environment needs, is not installed.
      ValueError: for an unknown id, with the nearest known ones, and for keywords that do not fit.
    """
    del num_threads
    gymnasium = _import_gymnasium()
    from podracer.envs.gymnasium_loop import EnvLoop

    for name, key in _RESERVED.items():
        if name in config.kwargs:
            raise ValueError(f"env.kwargs.{name} is set by Podracer; use {key}")

    def make_one():
        return gymnasium.make(config.id, max_episode_steps=config.time_limit, disable_env_checker=True, **config.kwargs)

    try:
        envs = [make_one() for _ in range(num_envs)]
    except gymnasium.error.UnregisteredEnv as error:
        nearest = difflib.get_close_matches(config.id, list(gymnasium.registry), n=3, cutoff=0.0)
        raise ValueError(f"Gymnasium has no env.id={config.id!r}; the nearest are {', '.join(nearest)}") from error
    except gymnasium.error.DependencyNotInstalled as error:
        raise ImportError(f"env.id={config.id} needs more than Gymnasium: {error}") from error
    except TypeError as error:
        raise ValueError(f"env.kwargs={dict(config.kwargs)} do not fit {config.id}: {error}") from error
    return EnvLoop(envs, config.id)


def _import_gymnasium() -> ModuleType:
    try:
        import gymnasium
    except ModuleNotFoundError as error:
        raise ImportError('env.suite=gymnasium needs Gymnasium: pip install "podracer[gymnasium]"') from error
    return gymnasium
