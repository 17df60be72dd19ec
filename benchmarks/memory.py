"""Whether a long run of Sebulba holds its memory: resident bytes over ten thousand updates.

python benchmarks/memory.py
python benchmarks/memory.py --updates 100000
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import jax

from podracer.build import build
from podracer.config import load_config
from podracer.logging import write_json
from podracer.provenance import provenance
from podracer.runner import Due

RESULTS = Path(__file__).parent / "results"

_ENVS, _UNROLL = 8, 4
_OVERRIDES = (
    "runner=sebulba",
    "runner.updates_per_report=100",
    "env=envpool/cartpole",
    f"env.num_envs={_ENVS}",
    "agent=impala",
    f"agent.unroll_length={_UNROLL}",
    "network=mlp",
    "network.hidden_sizes=[32]",
    "evaluation.num_episodes=0",
    "logger=quiet",
)


def measure(updates: int) -> list[tuple[int, int, int]]:
    """Trains; returns (updates, resident bytes, live JAX arrays) after every hundredth update."""
    run = build(load_config([*_OVERRIDES, f"total_env_steps={updates * _ENVS * _UNROLL}"]))
    reports = run.runner.run(run.runner.init(), lambda done: Due(updates))
    return [(report.updates, _resident_bytes(), len(jax.live_arrays())) for report in reports]


def _resident_bytes() -> int:
    """Of this process; the second figure of Linux's statm, in pages."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=RESULTS / "memory.json")
    options = parser.parse_args(arguments)
    samples = measure(options.updates)
    quarter = len(samples) // 4
    first, last = samples[quarter], samples[-1]
    result = {
        **provenance(),
        "overrides": list(_OVERRIDES),
        "growth_bytes_per_update": (last[1] - first[1]) / max(1, last[0] - first[0]),
        "samples": [{"updates": n, "resident_bytes": size, "live_arrays": arrays} for n, size, arrays in samples],
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(options.out, result)
    for updates, size, arrays in samples[:: max(1, len(samples) // 10)]:
        print(f"{updates:8d} updates  {size / 2**20:8.1f} MiB  {arrays} live arrays")
    print(f"growth after the first quarter: {result['growth_bytes_per_update']:.0f} bytes an update")


if __name__ == "__main__":
    main()
