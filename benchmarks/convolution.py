"""Measures the gradient of the convolutional torsos inside and outside of a compiled loop.

    python benchmarks/convolution.py --out convolution.json

A learner takes its gradients inside `scan` (minibatches, epochs, updates), where XLA's convolution on a CPU
is many times slower than outside. For each torso it prints microseconds a sample: the native convolution
outside and inside, and patches inside. What counts is the last over the first: at most 1.2 on a CPU.
"""

import argparse
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podracer.networks.config import NetworkConfig
from podracer.networks.models import actor_critic
from podracer.spaces import Box, Discrete, EnvSpec
from podracer.types import ArrayTree


class Case(NamedTuple):
    torso: str
    shape: tuple[int, ...]
    dtype: type
    batch_size: int


CASES = (
    Case("minatar_cnn", (10, 10, 4), np.float32, 256),
    Case("nature_cnn", (84, 84, 4), np.uint8, 32),
    Case("nature_cnn", (4, 84, 84), np.uint8, 32),
    Case("impala_resnet", (84, 84, 4), np.uint8, 8),
)
MINIBATCHES = 4
_LEARNING_RATE = 1e-4


def gradient_step(case: Case, convolution: str) -> tuple[Callable, ArrayTree, np.ndarray]:
    """Makes one step of gradient descent, its parameters, and images `[MINIBATCHES, batch_size, ...]`."""
    spec = EnvSpec("benchmark", Box(case.shape, case.dtype), Discrete(6))
    config = NetworkConfig(torso=case.torso, convolution=convolution, shared_torso=True)
    network = actor_critic(config, spec)
    images = np.random.default_rng(0).integers(0, 2, (MINIBATCHES, case.batch_size, *case.shape)).astype(case.dtype)
    is_first = jnp.zeros(case.batch_size, bool)
    params = jax.jit(network.init)(jax.random.key(0), (), images[0], is_first)

    def loss(params, images):
        _, (policy, value) = network.apply(params, (), images, is_first)
        return jnp.mean(jnp.square(value)) + jnp.mean(jnp.square(policy.logits))

    def step(params, images):
        gradient = jax.grad(loss)(params, images)
        return jax.tree.map(lambda p, g: p - _LEARNING_RATE * g, params, gradient), None

    return step, params, images


def measure(case: Case, seconds: float) -> dict[str, float]:
    """Measures microseconds a sample, the best of all runs within `seconds` of each variant.

    The variants take turns, so that the load of a shared machine hits all of them.
    """
    programs = {}
    for convolution in ("native", "patches"):
        step, params, images = gradient_step(case, convolution)
        programs[f"{convolution}_outside"] = (functools.partial(_loop, jax.jit(step)), params, images)
        programs[f"{convolution}_inside"] = (jax.jit(functools.partial(jax.lax.scan, step)), params, images)
    samples = case.batch_size * MINIBATCHES
    for program, params, images in programs.values():
        jax.block_until_ready(program(params, images))  # compiles
    best, spent = dict.fromkeys(programs, float("inf")), dict.fromkeys(programs, 0.0)
    while min(spent.values()) < seconds:
        for name, (program, params, images) in programs.items():
            if spent[name] < seconds:
                start = time.perf_counter()
                jax.block_until_ready(program(params, images))
                elapsed = time.perf_counter() - start
                spent[name] += elapsed
                best[name] = min(best[name], elapsed / samples * 1e6)
    return best


def _loop(step: Callable, params: ArrayTree, images: np.ndarray) -> ArrayTree:
    for minibatch in images:
        params, _ = step(params, minibatch)
    return params


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to save the figures as JSON")
    parser.add_argument("--seconds", type=float, default=3.0, help="spent on each variant of each torso")
    arguments = parser.parse_args()
    columns = ("native_outside", "native_inside", "patches_outside", "patches_inside")
    print(f"{jax.devices()[0].device_kind}, microseconds a sample")
    print(f"{'torso':<14}{'image':<14}{'batch':>6}" + "".join(f"{name:>17}" for name in columns) + f"{'ratio':>8}")
    rows = []
    for case in CASES:
        figures = measure(case, arguments.seconds)
        ratio = figures["patches_inside"] / figures["native_outside"]
        rows.append(case._asdict() | {"dtype": np.dtype(case.dtype).name, "ratio": ratio} | figures)
        shape = "x".join(map(str, case.shape))
        numbers = "".join(f"{figures[name]:>17.1f}" for name in columns)
        print(f"{case.torso:<14}{shape:<14}{case.batch_size:>6}{numbers}{ratio:>8.2f}", flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps({"device": jax.devices()[0].device_kind, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
