"""How processes share a machine, of which nothing but its cores has to be there."""

import os
import subprocess
import sys

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode

from podracer import sharing
from podracer.composition import PRIMARY, register
from podracer.sweeps import processes_of
from tests.commands import environment


@pytest.mark.parametrize(("items", "processes"), [(8, 2), (8, 3), (3, 3), (2, 5), (1, 4)])
def test_everything_is_shared_out_and_nobody_goes_without(items, processes):
    shares = [sharing.share_of(range(items), place, processes) for place in range(processes)]
    sizes = [len(share) for share in shares]
    assert min(sizes) >= 1 and max(sizes) - min(sizes) <= 1
    together = [item for share in shares for item in share]
    assert sorted(set(together)) == list(range(items))
    if items >= processes:
        assert together == list(range(items))  # no item twice
    else:
        assert max(together.count(item) for item in range(items)) <= -(-processes // items)


# Takes a share of four GPUs among two or more processes, tells of it, and holds it until its input ends.
_CODE = """
import os, sys
from pathlib import Path
from podracer import sharing
sharing.take_share(Path(sys.argv[1]), int(sys.argv[2]))
sharing.take_share(Path(sys.argv[1]), int(sys.argv[2]))
cores = sorted(os.sched_getaffinity(0))
print(cores, os.environ["CUDA_VISIBLE_DEVICES"], os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION"), flush=True)
sys.stdin.read()
"""


def hold(folder, processes, gpus):
    process = subprocess.Popen(
        [sys.executable, "-c", _CODE, str(folder), str(processes)],
        env={**environment(folder), "CUDA_VISIBLE_DEVICES": gpus},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    return process, process.stdout.readline().strip()


def test_each_process_holds_its_share_until_it_ends(tmp_path):
    cores = sorted(os.sched_getaffinity(0))
    first, said_first = hold(tmp_path, 2, "4,5,6,7")
    second, said_second = hold(tmp_path, 2, "4,5,6,7")
    assert said_first == f"{sharing.share_of(cores, 0, 2)} 4,5 None"
    assert said_second == f"{sharing.share_of(cores, 1, 2)} 6,7 None"
    first.kill()
    first.wait()
    third, said_third = hold(tmp_path, 2, "4,5,6,7")
    assert said_third == said_first
    for process in (second, third):
        process.communicate("")


def test_processes_on_one_gpu_share_its_memory(tmp_path):
    held = [hold(tmp_path, 3, "0,1") for _ in range(3)]
    assert [said.split("] ")[1] for _, said in held] == ["0 0.450", "0 0.450", "1 0.450"]
    for process, _ in held:
        process.communicate("")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["seed=0,1,2"], None),  # one after the other in this process
        (["hydra/launcher=joblib", "hydra.launcher.n_jobs=8", "seed=0,1,2"], 3),
        (["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "seed=0,1,2"], 2),
        (["hydra/launcher=joblib", "hydra.launcher.n_jobs=8", "sweep=seeds", "runner=anakin,sebulba"], 8),
        (["hydra/launcher=joblib", "hydra.launcher.n_jobs=8", "hydra.sweeper.max_batch_size=4", "seed=range(9)"], 4),
    ],
)
def test_a_machine_is_divided_among_as_many_as_train_at_a_time(overrides, expected):
    register()
    with hydra.initialize(config_path=None, version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        config = loader.load_configuration(PRIMARY, overrides, RunMode.MULTIRUN)
    assert processes_of(config) == expected
