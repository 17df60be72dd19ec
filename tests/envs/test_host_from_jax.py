"""JAX environments behind the host's interface, against the same environments in one program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.envs.autoreset import AutoReset
from podracer.envs.base import EnvConfig
from podracer.envs.catch import Catch
from podracer.envs.host_from_jax import HostFromJax
from podracer.envs.probe_structures import ActionMask, Tree
from podracer.envs.wrappers import wrap

NUM_ENVS = 3


def batched(env, **config):
    return AutoReset(wrap(env, EnvConfig(suite="probe", **config)))


def on_host(env, key, **kwargs):
    return HostFromJax(env, NUM_ENVS, *jax.random.split(key), **kwargs)


def actions(env, num_steps):
    return np.random.default_rng(0).integers(0, env.spec.action.num_values, (num_steps, NUM_ENVS), np.int32)


def play(host, sequence):
    timesteps = [host.reset(np.arange(NUM_ENVS)), *(host.step(action) for action in sequence)]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *timesteps)


@pytest.mark.parametrize("env", [Catch(), ActionMask(), Tree()], ids=lambda env: env.spec.id)
def test_B12_its_randomness_is_that_of_one_program(env, key):
    env = batched(env)
    sequence = actions(env, 25)

    @jax.jit
    def unroll(key):
        reset_key, step_key = jax.random.split(key)
        state, first = env.reset(reset_key, NUM_ENVS)

        def step(state, inputs):
            time, action = inputs
            return env.step(jax.random.fold_in(step_key, time), state, action)

        _, later = jax.lax.scan(step, state, (jnp.arange(len(sequence)), sequence))
        return jax.tree.map(lambda x, xs: jnp.concatenate([x[None], xs]), first, later)

    jax.tree.map(np.testing.assert_array_equal, play(on_host(env, key), sequence), unroll(key))


def test_B22_it_hands_out_fresh_numpy_memory(key):
    host = on_host(batched(Catch()), key)
    first = host.reset(np.arange(NUM_ENVS))
    kept = jax.tree.map(np.copy, first)
    for leaf in jax.tree.leaves(first):
        assert type(leaf) is np.ndarray
        assert leaf.flags.owndata and leaf.flags.writeable
    for action in actions(host, 12):
        host.step(action)
    jax.tree.map(np.testing.assert_array_equal, first, kept)


def test_it_goes_on_from_a_state_that_is_set(key):
    host = on_host(batched(Catch()), key)
    sequence = actions(host, 30)
    play(host, sequence[:10])
    state = host.state
    expected = [host.step(action) for action in sequence[10:]]
    other = on_host(batched(Catch()), key)
    other.state = state
    jax.tree.map(np.testing.assert_array_equal, [other.step(action) for action in sequence[10:]], expected)
    assert other.state.time == 30


def test_E10_a_second_reset_starts_other_episodes(key):
    host = on_host(batched(Catch(), time_limit=5), key)
    starts = [np.argmax(host.reset(np.arange(NUM_ENVS)).observation.reshape(NUM_ENVS, -1), axis=-1) for _ in range(8)]
    assert len({tuple(start) for start in starts}) > 1
    host.step(np.zeros(NUM_ENVS, np.int32))
    assert host.reset(np.arange(NUM_ENVS)).extras.episode_length.tolist() == [0] * NUM_ENVS


def test_it_lives_on_its_device_and_compiles_once(key):
    device = jax.devices()[3]
    host = on_host(batched(Catch()), key, device=device)
    play(host, actions(host, 3))
    # Whatever the dtype that an actor gives its indices.
    host.step(np.zeros(NUM_ENVS, np.int64))
    assert all(leaf.devices() == {device} for leaf in jax.tree.leaves(host.state.env))
    assert host._step._cache_size() == host._reset._cache_size() == 1


@pytest.mark.parametrize(
    ("action", "message"), [([0, 1, 3], "environment 2 is 3"), ([0, 1], r"shape \(3,\), got \(2,\)")]
)
def test_actions_are_checked(action, message, key):
    host = on_host(batched(Catch()), key)
    host.reset(np.arange(NUM_ENVS))
    with pytest.raises(ValueError, match=message):
        host.step(np.array(action))


def test_steps_before_a_reset_are_refused(key):
    with pytest.raises(RuntimeError, match="has to be reset"):
        on_host(batched(Catch()), key).step(np.zeros(NUM_ENVS, np.int32))
