import json
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import podracer
from podracer import checkpoint
from podracer.checkpoint import CheckpointConfig, Checkpoints, latest, load, restore_policy
from podracer.types import PolicySnapshot


def snapshot(version):
    params = {"w": jnp.arange(6.0).reshape(2, 3) + version, "count": jnp.int32(version), "half": jnp.bfloat16(1.5)}
    return PolicySnapshot({"params": params, "statistics": ()}, jnp.float32(0.25), jnp.int32(version))


EXAMPLE = jax.eval_shape(lambda: snapshot(0))


def save(folder, returns, **config):
    """Saves checkpoints 1, 2, ... with these returns, each complete before the next; returns those that are left."""
    checkpoints = Checkpoints(folder, CheckpointConfig(**config))
    for updates, episode_return in enumerate(returns, 1):
        checkpoints.save(
            updates, snapshot(updates), {"x": jnp.arange(3) * updates}, {"env_steps": updates}, episode_return
        )
        checkpoints._manager.wait_until_finished()
    checkpoints.close()
    return checkpoint._complete(folder)


def test_a_checkpoint_comes_back(tmp_path):
    save(tmp_path, [None, None])
    saved = load(tmp_path, with_state=True)
    assert saved.updates == latest(tmp_path) == 2
    assert (saved.meta["env_steps"], saved.meta["format"]) == (2, checkpoint.FORMAT)
    np.testing.assert_array_equal(saved.state["x"], [0, 2, 4])


def test_D01_parameters_come_back_as_they_were_on_the_first_device(tmp_path):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[2:6]), ("learner",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    checkpoints = Checkpoints(tmp_path, CheckpointConfig())
    checkpoints.save(7, jax.device_put(snapshot(7), sharding), None, {})
    checkpoints.close()
    restored = restore_policy(tmp_path, EXAMPLE)
    assert jax.tree.structure(restored) == jax.tree.structure(snapshot(7))
    for got, expected in zip(jax.tree.leaves(restored), jax.tree.leaves(snapshot(7))):
        assert got.dtype == expected.dtype and got.devices() == {jax.devices()[0]}
        np.testing.assert_array_equal(got, expected)
    with pytest.raises(ValueError, match="parameters only"):
        load(tmp_path, with_state=True)


@pytest.mark.parametrize(
    ("returns", "config", "kept"),
    [
        ([5.0, 9.0, 7.0], {}, [2, 3]),
        ([5.0, 9.0, None, float("nan"), float("inf"), 8.0], {}, [2, 6]),  # NaN and infinity are never best
        ([5.0, 9.0, 9.0, 1.0], {}, [3, 4]),  # of equal ones the later
        ([5.0, 9.0, 7.0, 8.0, 1.0], {"keep_best": 2, "keep_latest": 2}, [2, 4, 5]),
        ([5.0, 9.0, 7.0], {"keep_best": 0}, [3]),
        ([-3.0, -2.0, -4.0], {}, [2, 3]),
    ],
)
def test_latest_and_best_are_kept_apart(tmp_path, returns, config, kept):
    assert save(tmp_path, returns, **config) == kept


def test_the_best_is_read_and_outlives_a_resume(tmp_path):
    save(tmp_path, [5.0, 9.0, 7.0])
    assert load(tmp_path, "best").updates == 2 and int(restore_policy(tmp_path, EXAMPLE, "best").version) == 2
    checkpoints = Checkpoints(tmp_path, CheckpointConfig(), load(tmp_path).meta["best"])
    checkpoints.save(4, snapshot(4), None, {}, 6.0)
    checkpoints.close()
    assert checkpoint._complete(tmp_path) == [2, 4]
    with pytest.raises(FileNotFoundError, match="no checkpoint 3; there are 2, 4"):
        load(tmp_path, 3)


def test_what_is_saved_does_not_change_afterwards(tmp_path):
    """Training goes on, and donates its state, while the checkpoint is written."""
    double = jax.jit(lambda x: x * 2, donate_argnums=0)
    state = jnp.arange(100_000)
    checkpoints = Checkpoints(tmp_path, CheckpointConfig())
    checkpoints.save(1, snapshot(1), {"x": state}, {})
    state = double(state)
    checkpoints.close()
    np.testing.assert_array_equal(load(tmp_path, with_state=True).state["x"], np.arange(100_000))


def test_a_folder_without_a_checkpoint_says_so(tmp_path):
    assert latest(tmp_path) is None
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        restore_policy(tmp_path, EXAMPLE)


def test_parameters_of_another_network_are_refused(tmp_path):
    save(tmp_path, [None])
    other = EXAMPLE._replace(params={"params": {"v": jax.ShapeDtypeStruct((2, 3), jnp.float32)}, "statistics": ()})
    with pytest.raises(ValueError, match="params/params/count is not known"):
        restore_policy(tmp_path, other)


def test_another_format_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", 0)
    save(tmp_path, [None])
    monkeypatch.undo()
    with pytest.raises(ValueError, match="has format 0, and this version of podracer reads format 1"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("setting", "value", "repair"),
    [("keep_latest", 0, "at least 1"), ("keep_best", -1, "at least 0"), ("period_seconds", 0, "null")],
)
def test_settings_that_make_no_sense_are_refused(setting, value, repair):
    with pytest.raises(ValueError, match=f"checkpoint.{setting}={value} .*{repair}"):
        CheckpointConfig(**{setting: value})


_WRITER = """
import sys, jax.numpy as jnp
from pathlib import Path
from podracer.checkpoint import CheckpointConfig, Checkpoints
from podracer.types import PolicySnapshot
checkpoints = Checkpoints(Path(sys.argv[1]), CheckpointConfig(keep_best=0))
for n in range(1, 10**6):
    policy = PolicySnapshot(jnp.full((1000,), n), jnp.float32(0), jnp.int32(n))
    checkpoints.save(n, policy, {"x": jnp.full((300_000,), n)}, {"n": n})
    print(n, flush=True)
"""


def test_D03_a_kill_at_any_instant_leaves_a_complete_checkpoint(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    while int(process.stdout.readline()) < 3:
        pass
    time.sleep(np.random.default_rng(0).uniform(0, 0.2))
    process.send_signal(signal.SIGKILL)
    process.wait()
    saved = load(tmp_path, with_state=True)
    assert saved.updates >= 2 and saved.meta["n"] == saved.updates
    assert set(saved.policy["params"]) == set(saved.state["x"]) == {saved.updates}
    assert json.dumps(dict(saved.meta))


_FULL_DISK = """
import resource, sys
from podracer import cli
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
sys.exit(cli.main(["train", "resume=" + sys.argv[1], "total_env_steps=640"]))
"""


def test_D03_a_disk_that_is_full_ends_the_run_and_keeps_the_last_checkpoint(tmp_path):
    settings = ["env=catch", "env.num_envs=8", "agent.unroll_length=8", "agent.num_minibatches=1", "logger=quiet"]
    settings += ["network=mlp", "network.hidden_sizes=[300,300]", "evaluation.num_episodes=0", "total_env_steps=320"]
    podracer.train(podracer.load_config([*settings, "mesh.learner=1"]), tmp_path)
    done = subprocess.run([sys.executable, "-c", _FULL_DISK, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "File too large" in done.stderr and "the newest complete one is 5" in done.stderr
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "failed"
    assert load(tmp_path, with_state=True).updates == 5
