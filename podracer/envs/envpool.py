"""EnvPool: batches of environments stepped by C++ threads (Atari, classic control, Box2D, MuJoCo, ...).

Its stream resets on the next step already. Three things are peculiar to it:
  - Its seeds are fixed when a pool is made, so every `reset` makes a new pool.
  - Where an episode truly ends on the very step of its time limit, EnvPool reports the limit only, and
    the learner bootstraps there. Only Atari says more, and is heard.
  - With `episodic_life` it plays up to `noop_max` no-ops after a lost life; the rewards of those are
    lost to the learner and to the statistics.
"""

import difflib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from podracer.envs.atari_presets import PRESETS
from podracer.envs.base import EnvConfig, HostEnv
from podracer.spaces import StackedFrames
from podracer.suggest import did_you_mean

# Keywords of EnvPool that Podracer sets, and the key to change each of them by.
_RESERVED = {
    "env_type": None,
    "gym_reset_return_info": None,
    "num_envs": "env.num_envs",
    "batch_size": "env.num_envs",
    "num_threads": "the settings of the runner",
    "seed": "seed",
    "env_seed": "seed",
    "max_episode_steps": "env.time_limit",
}


def make(config: EnvConfig, num_envs: int, num_threads: int) -> HostEnv:
    """Makes `num_envs` environments that `num_threads` C++ threads step together.

    `config.kwargs` go to EnvPool and override the preset (`img_height`, `stack_num`, ...).

    Raises:
      ImportError: EnvPool is not installed.
      ValueError: for an unknown id or keyword, with the nearest known ones, and for settings that contradict.
    """
    envpool = _import_envpool()
    from podracer.envs.envpool_host import EnvPoolHost

    if config.id not in envpool.list_all_envs():
        nearest = difflib.get_close_matches(config.id, envpool.list_all_envs(), n=3, cutoff=0.0)
        raise ValueError(f"EnvPool has no env.id={config.id!r}; the nearest are {', '.join(nearest)}")
    kwargs = _pool_kwargs(config)
    with _quiet():
        pool_spec = _make_spec(envpool, config, kwargs)
        is_atari = "full_action_space" in pool_spec.config._fields
        _check_settings(config, pool_spec.config, is_atari)

        def make_pool(seeds: np.ndarray) -> Any:
            with _quiet():
                pool = envpool.make(
                    config.id,
                    env_type="gymnasium",
                    num_envs=num_envs,
                    batch_size=num_envs,
                    num_threads=num_threads,
                    env_seed=[int(seed) for seed in seeds],
                    **kwargs,
                )
                _ = pool.observation_space  # converted on first use and kept: here, where it is quiet
            return pool

        is_stacked = is_atari and pool_spec.config.stack_num > 1
        return EnvPoolHost(
            config.id,
            pool_spec,
            make_pool,
            num_envs,
            has_lives=is_atari,
            stacked_frames=StackedFrames(pool_spec.config.stack_num, axis=-3) if is_stacked else None,
        )


def _import_envpool() -> ModuleType:
    try:
        import envpool
    except ModuleNotFoundError as error:
        raise ImportError('env.suite=envpool needs EnvPool: pip install "podracer[envpool]"') from error
    return envpool


def _pool_kwargs(config: EnvConfig) -> dict[str, Any]:
    """Merges preset, keywords and time limit; refuses keywords that are set elsewhere."""
    for name in config.kwargs:
        if name in _RESERVED:
            repair = f"use {_RESERVED[name]}" if _RESERVED[name] else "leave it out"
            raise ValueError(f"env.kwargs.{name} is set by Podracer; {repair}")
    kwargs = {**PRESETS[config.preset], **config.kwargs} if config.preset else dict(config.kwargs)
    if config.time_limit is not None:
        kwargs["max_episode_steps"] = config.time_limit
    return kwargs


def _make_spec(envpool: ModuleType, config: EnvConfig, kwargs: dict[str, Any]) -> Any:
    try:
        return envpool.make_spec(config.id, **kwargs)
    except TypeError as error:
        known = envpool.make_spec(config.id).config._fields
        unknown = [name for name in kwargs if name not in known]
        if not unknown:
            raise ValueError(
                f"EnvPool's {config.id} does not take env.kwargs={dict(config.kwargs)}: {error}"
            ) from error
    if unknown[0] in config.kwargs:
        near = did_you_mean(unknown[0], known)
        raise ValueError(f"EnvPool's {config.id} has no setting env.kwargs.{unknown[0]}; {near}")
    raise ValueError(f"env.preset={config.preset} is for Atari, env.id={config.id} is not; leave it out")


def _check_settings(config: EnvConfig, settings: Any, is_atari: bool) -> None:
    """Refuses settings that EnvPool would take and that would not do what they say."""
    if settings.max_num_players != 1:
        raise ValueError(f"EnvPool's {config.id} has {settings.max_num_players} players; only one can act")
    if not is_atari:
        return
    if settings.reward_clip and (config.reward_clip is not None or config.reward_scale != 1.0):
        raise ValueError(
            f"EnvPool clips the rewards of {config.id} already (env.preset={config.preset} or env.kwargs.reward_clip);"
            f" env.reward_clip={config.reward_clip} and env.reward_scale={config.reward_scale} would apply to"
            " clipped rewards; set env.kwargs.reward_clip=false"
        )
    if config.frame_stack != 1:
        raise ValueError(
            f"EnvPool stacks {settings.stack_num} frames of {config.id} itself;"
            f" use env.kwargs.stack_num={config.frame_stack} in place of env.frame_stack={config.frame_stack}"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences Gymnasium's warning that float64 bounds become float32 ones."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*precision lowered by casting")
        yield
