import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.checkpoint import restore_policy, save_policy
from podracer.types import PolicySnapshot


def snapshot(version):
    params = {"w": jnp.arange(6.0).reshape(2, 3) + version, "count": jnp.int32(version), "half": jnp.bfloat16(1.5)}
    return PolicySnapshot({"params": params, "statistics": ()}, jnp.float32(0.25), jnp.int32(version))


def test_parameters_come_back_as_they_were_on_the_first_device(tmp_path):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[2:6]), ("learner",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    save_policy(tmp_path, jax.device_put(snapshot(3), sharding))
    save_policy(tmp_path, jax.device_put(snapshot(7), sharding))  # over the one before it
    restored = restore_policy(tmp_path, jax.eval_shape(lambda: snapshot(0)))
    assert jax.tree.structure(restored) == jax.tree.structure(snapshot(7))
    for got, expected in zip(jax.tree.leaves(restored), jax.tree.leaves(snapshot(7))):
        assert got.dtype == expected.dtype and got.devices() == {jax.devices()[0]}
        np.testing.assert_array_equal(got, expected)


def test_a_folder_without_parameters_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no parameters"):
        restore_policy(tmp_path, jax.eval_shape(lambda: snapshot(0)))
