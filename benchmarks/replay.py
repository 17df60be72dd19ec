"""Microseconds an operation of the replay stores, beside flashbax's, and the memory of both.

python benchmarks/replay.py
python benchmarks/replay.py --cells vector-100k/transitions/prioritised,minatar-1M/3-step/uniform --repeats 3
python benchmarks/replay.py --end-to-end
"""

import argparse
import functools
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from benchmarks import off_policy, stores
from benchmarks.stores import Setting, Store
from podracer.logging import write_json
from podracer.parallel.memory import tree_bytes
from podracer.provenance import provenance
from podracer.spaces import StackedFrames
from podracer.types import Array, ArrayTree, Key

RESULTS = Path(__file__).parent / "results"

_FRAMES = StackedFrames(count=4, axis=-1)
CONTENTS = {
    "vector-100k": {"shape": (8,), "dtype": jnp.float32, "capacity": 100_000},
    "vector-1M": {"shape": (8,), "dtype": jnp.float32, "capacity": 1_000_000},
    "minatar-100k": {"shape": (10, 10, 4), "dtype": jnp.bool, "capacity": 100_000},
    "minatar-1M": {"shape": (10, 10, 4), "dtype": jnp.bool, "capacity": 1_000_000},
    "atari-100k": {"shape": (84, 84, 4), "dtype": jnp.uint8, "capacity": 100_000},
    # Ours stores single frames and stacks them again; flashbax stores stacks.
    "atari-frames-100k": {"shape": (84, 84, 4), "dtype": jnp.uint8, "capacity": 100_000, "stacked_frames": _FRAMES},
}
ACCESSES = {
    "transitions": {"unroll_length": 1, "sequence_length": 2},
    "3-step": {"unroll_length": 1, "sequence_length": 4},
    # As a recurrent agent: those that begin where an unroll does.
    "sequences": {"unroll_length": 16, "sequence_length": 80, "period": 16, "episode_ends": "reset"},
}
CELLS = {
    f"{contents}/{access}/{kind}": Setting(**CONTENTS[contents], **ACCESSES[access], prioritised=kind == "prioritised")
    for contents in CONTENTS
    for access in ACCESSES
    for kind in ("uniform", "prioritised")
    # 256 sequences of 80 stacks of images would be 0.6 GB.
    if not (contents.startswith("atari") and access == "sequences")
}
# So many different inputs take turns, for the compiler to move no work on them out of the loop.
_INPUTS = 4


class Piece(NamedTuple):
    """A stretch of the same operation again and again."""

    wall_us: float  # an operation
    cpu_us: float  # of the process, over all its threads


class Contestant:
    """A full store and its operations, each compiled into one loop that the state is donated to."""

    def __init__(self, store: Store, setting: Setting):
        self._store, self._key = store, jax.random.key(0)
        self._state = jax.jit(store.init)()
        self._unrolls = jax.jit(lambda: store.to_addable(stores.random_unrolls(self._key, _INPUTS, setting)))()
        self._loops: dict[str, Callable] = {}
        self._carries: dict[str, ArrayTree] = {}
        self._counts: dict[str, int] = {}
        self._inputs: dict[str, ArrayTree] = {}
        self._compile("add", lambda state, carry, inputs: (store.add(state, inputs), carry), (), self._unrolls)
        unrolls = setting.capacity // (stores.NUM_ENVS * setting.unroll_length)
        self._run("add", unrolls + setting.sequence_length)
        self._compile_sampling(setting.prioritised)

    @property
    def operations(self) -> list[str]:
        return list(self._loops)

    def measure(self, operation: str, seconds: float) -> Piece:
        """Repeats an operation for about so many seconds."""
        count = self._counts[operation]
        wall, cpu = self._run(operation, count)
        self._counts[operation] = max(1, round(count * seconds / wall))
        return Piece(1e6 * wall / count, 1e6 * cpu / count)

    def _compile_sampling(self, prioritised: bool) -> None:
        store = self._store

        def sample(state: ArrayTree, carry: ArrayTree, key: Key) -> tuple[ArrayTree, ArrayTree]:
            # What is sampled is carried on, so that all of it is made.
            return state, store.sample(state, key)

        def set_priorities(state: ArrayTree, carry: ArrayTree, inputs: ArrayTree) -> tuple[ArrayTree, ArrayTree]:
            return store.set_priorities(state, *inputs), carry

        def learn(state: ArrayTree, carry: ArrayTree, inputs: ArrayTree) -> tuple[ArrayTree, ArrayTree]:
            unroll, key, priorities = inputs
            state = store.add(state, unroll)
            drawn = store.sample(state, key)
            return store.set_priorities(state, drawn.indices, priorities), drawn

        keys = jax.random.split(self._key, _INPUTS)
        priorities = jax.random.exponential(self._key, (_INPUTS, stores.BATCH_SIZE))
        shapes = jax.eval_shape(store.sample, self._state, self._key)
        nothing = jax.jit(lambda: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes))
        self._compile("sample", sample, nothing(), keys)
        if prioritised:
            indices = jax.lax.map(lambda key: store.sample(self._state, key).indices, keys)
            self._compile("set_priorities", set_priorities, (), (indices, priorities))
        self._compile("all in turn", learn, nothing(), (self._unrolls, keys, priorities))

    def _compile(self, name: str, operation: Callable, carry: ArrayTree, inputs: ArrayTree) -> None:
        @functools.partial(jax.jit, donate_argnums=(0, 1))
        def loop(state: ArrayTree, carry: ArrayTree, inputs: ArrayTree, count: int) -> tuple[ArrayTree, ArrayTree]:
            def step(i: Array, both: tuple[ArrayTree, ArrayTree]) -> tuple[ArrayTree, ArrayTree]:
                taken = jax.tree.map(lambda leaf: leaf[i % _INPUTS], inputs)
                return operation(*both, taken)

            return jax.lax.fori_loop(0, count, step, (state, carry))

        self._loops[name], self._carries[name], self._inputs[name], self._counts[name] = loop, carry, inputs, 1

    def _run(self, operation: str, count: int) -> tuple[float, float]:
        """Seconds of the wall and of processors."""
        arguments = self._state, self._carries[operation], self._inputs[operation]
        wall, cpu = time.perf_counter(), time.process_time()
        self._state, self._carries[operation] = jax.block_until_ready(self._loops[operation](*arguments, count))
        return time.perf_counter() - wall, time.process_time() - cpu


def measure_cell(setting: Setting, repeats: int, seconds: float) -> dict[str, Any]:
    """Measures every operation of both stores in turns."""
    contestants = [Contestant(make(setting), setting) for make in (stores.ours, stores.flashbax)]
    result = {}
    for operation in contestants[0].operations:
        for contestant in contestants:
            contestant.measure(operation, seconds)  # compiles
            contestant.measure(operation, seconds)
        pairs = [[contestant.measure(operation, seconds) for contestant in contestants] for _ in range(repeats)]
        us, peer = (_summarise(pieces) for pieces in zip(*pairs))
        result[operation] = {
            **us,
            "flashbax": peer,
            # How many times as fast, of neighbours in time.
            "ratio": statistics.median(theirs.wall_us / own.wall_us for own, theirs in pairs),
            "cpu_ratio": peer["cpu_us"] / us["cpu_us"],
        }
    return result


def memory() -> dict[str, dict[str, float]]:
    """Bytes of all states, from their shapes; also of stores that are too large to be measured."""
    result = {}
    for name, setting in CELLS.items():
        result[name] = _bytes(setting)
        if name.startswith("atari"):
            result[name.replace("100k", "1M")] = _bytes(replace(setting, capacity=1_000_000))
    return result


def to_tables(cells: dict[str, dict[str, Any]], sizes: dict[str, dict[str, float]]) -> list[Table]:
    """The results as tables for a terminal."""
    times = Table(title="µs an operation; ratios above 1: ours is faster")
    for heading in ("cell", "operation"):
        times.add_column(heading, no_wrap=True)
    for heading in ("ours", "min", "max", "flashbax", "min", "max", "ratio", "CPU µs", "flashbax", "ratio"):
        times.add_column(heading, justify="right", no_wrap=True)
    for name, operations in cells.items():
        for operation, result in operations.items():
            peer = result["flashbax"]
            figures = [side[f"wall_us{suffix}"] for side in (result, peer) for suffix in ("", "_min", "_max")]
            figures += [result["ratio"], result["cpu_us"], peer["cpu_us"], result["cpu_ratio"]]
            times.add_row(name, operation, *(f"{figure:.{2 if figure < 10 else 0}f}" for figure in figures))
    memory = Table("cell", "MB", "flashbax", "share", title="memory")
    for name, size in sizes.items():
        memory.add_row(name, *(f"{size[side] / 1e6:.1f}" for side in ("ours", "flashbax")), f"{size['share']:.2f}")
    return [times, memory]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default=",".join(CELLS), help="names, separated by commas; by default all of them")
    parser.add_argument("--repeats", type=int, default=5, help="pieces that an operation is measured in")
    parser.add_argument("--seconds", type=float, default=0.3, help="length of a piece; of whole runs ten times as much")
    parser.add_argument("--end-to-end", action="store_true", help="whole runs of agents instead of stores alone")
    parser.add_argument("--out", type=Path, help="a JSON file in benchmarks/results/ by default")
    options = parser.parse_args(arguments)
    console = Console()
    if not console.is_terminal:
        console.width = 160
    document: dict[str, Any] = {**provenance(), "load_average_before": os.getloadavg()}
    out = options.out or RESULTS / ("off_policy.json" if options.end_to_end else "replay.json")
    out.parent.mkdir(parents=True, exist_ok=True)

    def keep(results: dict[str, Any]) -> None:
        write_json(out, {**document, **results, "load_average_after": os.getloadavg()})

    if options.end_to_end:
        runs: dict[str, Any] = {}
        for name, case in off_policy.CASES.items():
            runs[name] = off_policy.measure(case, options.repeats, 10 * options.seconds)
            keep({"runs": runs})
        console.print(off_policy.to_table(runs))
        return
    names = options.cells.split(",")
    if unknown := set(names) - set(CELLS):
        parser.error(f"there is no cell {', '.join(sorted(unknown))}, but {', '.join(CELLS)}")
    try:
        document["flashbax"] = metadata.version("flashbax")
    except metadata.PackageNotFoundError:
        parser.exit(1, "flashbax is not installed: pip install -e '.[bench]' -c constraints.txt\n")
    cells: dict[str, Any] = {}
    sizes = memory()
    for name in names:
        cells[name] = measure_cell(CELLS[name], options.repeats, options.seconds)
        keep({"cells": cells, "memory": sizes})
        console.print(name, {operation: round(result["ratio"], 2) for operation, result in cells[name].items()})
    console.print(*to_tables(cells, sizes))


def _summarise(pieces: Sequence[Piece]) -> dict[str, float]:
    wall = [piece.wall_us for piece in pieces]
    return {
        "wall_us": statistics.median(wall),
        "wall_us_min": min(wall),
        "wall_us_max": max(wall),
        "cpu_us": statistics.median(piece.cpu_us for piece in pieces),
    }


def _bytes(setting: Setting) -> dict[str, float]:
    sizes = [tree_bytes(jax.eval_shape(make(setting).init)) for make in (stores.ours, stores.flashbax)]
    return {"ours": sizes[0], "flashbax": sizes[1], "share": sizes[0] / sizes[1]}


if __name__ == "__main__":
    main()
