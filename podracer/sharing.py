"""One machine for several processes of a launcher: each takes cores and accelerators of its own, before JAX starts.

Hydra's joblib launcher says nothing to its processes about their number or place, so they find that out from what
the command leaves them: a folder, in which each holds a lock as long as it lives.
"""

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TypeVar

_T = TypeVar("_T")

# The environment variable by which the processes of a launcher learn among how many the machine is shared.
PROCESSES = "PODRACER_PROCESSES"
# What processes on one accelerator leave to it together, for buffers that no one of them allocates.
_MEMORY_FRACTION = 0.9
# A process that joblib replaces may still be ending when the next one looks for its place.
_PATIENCE_SECONDS = 5.0


def take_share(locks: Path, num_processes: int, *, with_gpus: bool = True) -> None:
    """Leaves this process its share of the cores and the GPUs that it sees; a second call does nothing.

    Args:
      locks: a folder that the processes share.
      num_processes: among which the machine is divided. More cores or GPUs than that are divided among them, fewer
        are shared, and then the memory of a GPU is divided.
      with_gpus: False leaves the GPUs to what the environment says.
    """
    place = _place(locks, num_processes)
    if place is None:
        return
    if hasattr(os, "sched_setaffinity"):  # thread pools of JAX, BLAS and EnvPool have the size that this allows
        os.sched_setaffinity(0, share_of(sorted(os.sched_getaffinity(0)), place, num_processes))
    gpus = visible_gpus() if with_gpus else []
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(share_of(gpus, place, num_processes))
        divide_gpu_memory(-(-num_processes // len(gpus)))


def divide_gpu_memory(sharers: float) -> None:
    """Lets JAX take a share of a GPU's memory, in place of three quarters, where several processes train on one."""
    if sharers > 1:
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{_MEMORY_FRACTION / sharers:.3f}")


def share_of(items: Sequence[_T], place: int, num_processes: int) -> Sequence[_T]:
    """Divides items among processes in blocks; where there are fewer items than processes, each gets one."""
    start, end = (place * len(items) // num_processes, (place + 1) * len(items) // num_processes)
    return items[start : max(end, start + 1)]


def visible_gpus() -> list[str]:
    """The NVIDIA GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them. Starts no JAX backend."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [name.strip() for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name.strip()]
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return listed.stdout.split() if listed.returncode == 0 else []


# The lock of this process: open files, which the system lets go of when the process ends, however that comes about.
_held: dict[Path, IO] = {}


def _place(locks: Path, num_processes: int) -> int | None:
    """Takes the first place that no living process holds; None if this process has one, or all are held."""
    import fcntl

    if locks in _held:
        return None
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        for place in range(num_processes):
            file = open(locks / f"place-{place}.lock", "w", encoding="utf-8")  # noqa: SIM115 - held until the end
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                continue
            _held[locks] = file
            return place
        time.sleep(0.1)
    return None
