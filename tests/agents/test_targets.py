import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.agents.targets import check_target, update_target

ONLINE, TARGET = {"w": jnp.ones((2,))}, {"w": jnp.zeros((2,))}


def test_A29_polyak_averaging():
    # 0 + .005 (1 − 0), then .005 + .005 (1 − .005)
    once = update_target(TARGET, ONLINE, jnp.int32(1), 1, 0.005)
    np.testing.assert_allclose(once["w"], 0.005, rtol=1e-6)
    np.testing.assert_allclose(update_target(once, ONLINE, jnp.int32(2), 1, 0.005)["w"], 0.009975, rtol=1e-6)


def test_A29_a_copy_is_exact_and_made_once_a_period():
    @jax.jit
    def step(target, updates):
        online = {"w": jnp.full((2,), 0.1) * updates}
        return update_target(target, online, updates, 10, 1.0), online

    target, copies = TARGET, []
    for updates in range(1, 101):
        before = target
        target, online = step(target, jnp.int32(updates))
        if not np.array_equal(before["w"], target["w"]):
            np.testing.assert_array_equal(target["w"], online["w"])
            copies.append(updates)
    assert copies == list(range(10, 101, 10))


@pytest.mark.parametrize(
    ("period", "tau", "message"),
    [
        (0, 1.0, r"agent.target_period=0.*at least 1"),
        (1, 0.0, r"agent.target_tau=0.0 is not in \(0, 1\]"),
        (1, 1.5, r"agent.target_tau=1.5 is not in \(0, 1\]"),
    ],
)
def test_bad_settings_are_refused(period, tau, message):
    with pytest.raises(ValueError, match=message):
        check_target(period, tau)
