"""A user's own host environment, named by import path."""

import inspect
from typing import Any

from podracer.envs.base import EnvConfig, HostEnv
from podracer.importing import call, load_object
from podracer.spaces import EnvSpec


def make(config: EnvConfig, num_envs: int, num_threads: int) -> HostEnv:
    """Calls the function `env.make=package.module:function` with `env.kwargs`.

    Its parameters say what it makes. With `index` it makes one Gymnasium `Env` and is called once for
    each index in [0, num_envs); with `num_envs` it is called once and makes a Gymnasium `VectorEnv`
    or a `HostEnv` of that many, and is told `num_threads`, too, if it asks for it:

        def make_one(index: int, size: int = 8) -> gymnasium.Env:
            return Maze(size)

        def make_all(num_envs: int, size: int = 8) -> gymnasium.vector.VectorEnv:
            return gymnasium.vector.SyncVectorEnv([lambda: Maze(size)] * num_envs)

        podracer train runner=sebulba env=custom_host env.make=mazes:make_one env.kwargs.size=10

    Every actor makes its own batch, and seeds come with `reset`. `env.time_limit` applies to single
    environments; the other two bring their own.

    Raises:
      ImportError: there is no such module.
      ValueError: the path is missing or malformed, or the arguments do not fit.
      TypeError: what came back is none of these.
    """
    if config.make is None:
        raise ValueError("env.suite=custom_host needs env.make=package.module:function")
    function = load_object(config.make, "env.make")
    parameters = inspect.signature(function).parameters
    asks_index, asks_num_envs = "index" in parameters, "num_envs" in parameters
    if asks_index == asks_num_envs:
        raise ValueError(
            f"env.make={config.make} takes ({', '.join(parameters)}); it has to take either index, to make one"
            " gymnasium.Env, or num_envs, to make a VectorEnv or a HostEnv of so many"
        )
    if asks_index:
        return _batch_singles(config, function, num_envs)
    given = {"num_envs": num_envs}
    if "num_threads" in parameters:
        given["num_threads"] = num_threads
    made = call(function, {**config.kwargs, **given}, "env.kwargs")
    return _from_batch(config, made, num_envs)


def _batch_singles(config: EnvConfig, function: Any, num_envs: int) -> HostEnv:
    envs = [call(function, {**config.kwargs, "index": index}, "env.kwargs") for index in range(num_envs)]
    gymnasium_env = _gymnasium_class("Env")
    for env in envs:
        if gymnasium_env is None or not isinstance(env, gymnasium_env):
            raise TypeError(
                f"env.make={config.make} takes index and returned {_described(env)};"
                " it has to return one gymnasium.Env, or to take num_envs"
            )
    from podracer.envs.gymnasium_loop import EnvLoop

    if config.time_limit is not None:
        envs = [_with_time_limit(env, config.time_limit, config.make) for env in envs]
    return EnvLoop(envs, config.id or config.make, config.time_limit)


def _from_batch(config: EnvConfig, made: Any, num_envs: int) -> HostEnv:
    vector_env = _gymnasium_class("vector.VectorEnv")
    is_vector = vector_env is not None and isinstance(made, vector_env)
    if not is_vector and not isinstance(getattr(made, "spec", None), EnvSpec):
        raise TypeError(
            f"env.make={config.make} takes num_envs and returned {_described(made)}; it has to return a"
            " gymnasium.vector.VectorEnv or a HostEnv (podracer.envs.base), or to take index in place of num_envs"
        )
    if made.num_envs != num_envs:
        raise ValueError(f"env.make={config.make} was asked for {num_envs} environments and made {made.num_envs}")
    if config.time_limit is not None:
        raise ValueError(
            f"env.time_limit={config.time_limit} cannot be applied to a whole batch; let env.make={config.make} apply"
            " it, or let it take index and make one gymnasium.Env"
        )
    if not is_vector:
        return made
    from podracer.envs.gymnasium_vector import VectorLoop

    return VectorLoop(made, config.id or config.make)


def _with_time_limit(env: Any, time_limit: int, path: str) -> Any:
    """Truncates after `time_limit` steps in place of the environment's own limit."""
    from gymnasium.wrappers import TimeLimit

    if isinstance(env, TimeLimit):
        return TimeLimit(env.env, time_limit)
    inner = env
    while inner is not inner.unwrapped:
        if isinstance(inner, TimeLimit):
            raise ValueError(
                f"env.time_limit={time_limit}: env.make={path} returned {env}, with a limit of its own inside;"
                " make it without, or with the limit outermost"
            )
        inner = inner.env
    return TimeLimit(env, time_limit)


def _gymnasium_class(name: str) -> type | None:
    """A class of Gymnasium; None if it is not installed, as a `HostEnv` needs none of it."""
    try:
        return load_object(f"gymnasium:{name}", "env.make")
    except ImportError:
        return None


def _described(made: Any) -> str:
    return f"{type(made).__module__}.{type(made).__name__}"
