"""A user's own JAX environment, named by import path."""

from podracer.envs.base import EnvConfig, JaxEnv
from podracer.envs.gymnax import from_gymnax
from podracer.importing import call, load_object
from podracer.spaces import EnvSpec


def make(config: EnvConfig) -> JaxEnv:
    """Calls the function `env.make=package.module:function` with `env.kwargs`.

    The function returns a `JaxEnv`, or a gymnax-style environment and its parameters as a pair; of
    those, `env.params` and `env.time_limit` replace fields.

    Raises:
      ImportError: there is no such module.
      ValueError: the path is missing or malformed, the module lacks the name, or the arguments do not fit.
      TypeError: what came back is neither.
    """
    if config.make is None:
        raise ValueError("env.suite=custom_jax needs env.make=package.module:function")
    made = call(load_object(config.make, "env.make"), config.kwargs, "env.kwargs")
    if isinstance(made, tuple) and len(made) == 2 and _has(made[0], "reset_env", "step_env", "observation_space"):
        env, params = made
        return from_gymnax(env, params, config, config.id or getattr(env, "name", config.make))
    if not (_has(made, "reset", "step") and isinstance(getattr(made, "spec", None), EnvSpec)):
        raise TypeError(
            f"env.make={config.make} returned a {type(made).__name__}; it must return a JaxEnv (spec: EnvSpec, "
            "reset, step: podracer.envs.base) or a pair (env, params) in gymnax's form (reset_env, step_env, "
            "observation_space, action_space)"
        )
    if config.params:
        raise ValueError(
            f"env.params={dict(config.params)} are for a gymnax-style environment; env.make={config.make} returned a "
            "JaxEnv, whose settings are env.kwargs"
        )
    return made


def _has(candidate: object, *methods: str) -> bool:
    return all(callable(getattr(candidate, method, None)) for method in methods)
