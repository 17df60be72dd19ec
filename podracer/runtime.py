"""What has to be settled in JAX before the first computation of a process."""

import os
import tempfile
import warnings
from pathlib import Path

import jax

from podracer.config import Config
from podracer.conversion import ConfigError


def prepare(config: Config) -> None:
    """Settles JAX for a run; a second call with the same configuration changes nothing.

    Raises:
      ConfigError: devices cannot be emulated any more.
    """
    enable_compile_cache()
    _emulate_devices(config.mesh.emulated_devices)


def enable_compile_cache() -> None:
    """Keeps compiled programs on disk, all of them, for later processes.

    The folder is `JAX_COMPILATION_CACHE_DIR`, or `podracer/jax` in the user's cache. One that cannot
    be written is warned of, and the run goes on without.
    """
    folder = Path(jax.config.jax_compilation_cache_dir or _user_cache() / "podracer" / "jax")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        warnings.warn(
            f"compiled programs are not kept: {error}; set JAX_COMPILATION_CACHE_DIR to a folder that can be written",
            stacklevel=2,
        )
        jax.config.update("jax_enable_compilation_cache", False)
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # JAX's own thresholds, 1 s above all, would leave out most of what a small run compiles.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _emulate_devices(count: int | None) -> None:
    if count is None or count == jax.config.jax_num_cpu_devices:
        return
    if count < 1:
        raise ConfigError(f"mesh.emulated_devices={count} is not positive; use 8")
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError as error:
        raise ConfigError(
            f"mesh.emulated_devices={count} comes too late, JAX already runs on {jax.device_count()} devices; "
            "start a new process"
        ) from error
    # The CPU is what is split, also where there is an accelerator.
    jax.config.update("jax_platforms", "cpu")
