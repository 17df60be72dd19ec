"""Every file under `configs/` makes a run: an environment, an agent, a plan, and the shapes of all it will hold."""

from pathlib import Path

import jax
import numpy as np
import pytest

from podracer import build
from podracer.config import load_config
from podracer.locations import config_files
from podracer.parallel.mesh import Topology
from podracer.runners.unroll import example_trajectory
from tests.replay.recordings import record

OPTIONS = [option for option, _ in config_files() if "/" in option]
# What a file leaves to the user, or needs beside it.
IMAGES = ["env=custom_jax", "env.make=tests.contract.custom_parts:Images"]
GIVEN = {
    "agent/custom": ["agent.make=podracer.agents.ppo:PPO"],
    "agent/td3": ["env=gymnax/pendulum"],
    "env/custom_jax": ["env.make=tests.contract.custom_parts:Images"],
    "env/custom_host": ["env.make=tests.contract.custom_parts:make_cartpole"],
    "env/envpool": ["env.id=CartPole-v1"],
    "env/gymnasium": ["env.id=CartPole-v1"],
    "env/gymnax": ["env.id=CartPole-v1"],
    "network/impala_resnet": IMAGES,
    "network/minatar_cnn": IMAGES,
    "network/nature_cnn": IMAGES,
    "replay/dataset": ["agent=sac"],
    "replay/host": ["agent=sac", "checkpoint.enabled=false"],
    "replay/mixture": ["agent=sac", "replay.stores={one:{name:uniform,proportion:1}}"],
    "replay/prioritised": ["agent=sac"],
    "replay/uniform": ["agent=sac"],
}


@pytest.fixture(scope="module")
def recording(tmp_path_factory) -> Path:
    """Of the environment that is the default, by an agent that records nothing of its own."""
    config = load_config(["agent=sac"])
    environments = build.build_environments(config)
    agent = build.build_agent(config, environments, "cpu")
    example = example_trajectory(agent, environments.spec, 2, 2)
    folder = tmp_path_factory.mktemp("recording")
    record(folder, [[jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), example)]])
    return folder


def overrides(option: str) -> list[str]:
    group, _, name = option.partition("/")
    return [f"{group}={name}", *GIVEN.get(option, [])]


def make_plan(option: str, *more: str) -> None:
    config = load_config([*overrides(option), *more])
    if config.env.suite in build.HOST_SUITES and config.runner.name == "anakin":
        config = load_config([*overrides(option), "runner=sebulba", *more])
    topology = Topology(devices_per_host=1)
    # The library's own code relies on rank promotion in places.
    with jax.numpy_rank_promotion("allow"):
        plan, _ = build.build_plan(config, build.build_environments(config), topology)
    assert plan.updates > 0
    assert all(size >= 0 for size in plan.memory.values())


@pytest.mark.parametrize("option", OPTIONS)
def test_contract_viii_every_file_makes_a_run(option, recording):
    make_plan(option, *[f"replay.folder={recording}"] * (option == "replay/dataset"))


@pytest.mark.parametrize(
    ("option", "override"),
    [
        ("experiment/ppo", "agent.num_minibatches=7"),  # does not divide
        ("env/gymnax/cartpole", "env.id=CartPole-v7"),
        ("env/gymnax/pendulum", "agent=pqn"),  # continuous actions
        ("network/nature_cnn", "env=gymnax/cartpole"),  # no images
    ],
)
def test_files_that_make_no_run_are_rejected(option, override):
    with pytest.raises(ValueError):
        make_plan(option, override)
