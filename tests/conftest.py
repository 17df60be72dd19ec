"""Eight CPU devices, a persistent compile cache, and strictness for every test."""

import os
import signal
import tempfile
from pathlib import Path

import jax
import pytest

_CACHE = Path(os.environ.get("PODRACER_TEST_CACHE", Path(tempfile.gettempdir()) / "podracer-test-cache"))

# Ignored where the tests run in the background of a shell; some of them interrupt themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_compilation_cache_dir", str(_CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def key() -> jax.Array:
    return jax.random.key(0)
