"""A mixture against one list for each of its stores."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podracer.agents.importance import importance_weights
from podracer.config import load_config
from podracer.replay.base import ReplaySpec
from podracer.replay.mixture import Mixture, shares
from podracer.stores import build_store
from podracer.types import Batch, Trajectory
from tests.replay.oracle import Oracle, make_streams, to_trajectory
from tests.replay.test_stores import check_sequences

SPEC = ReplaySpec(num_envs=3, unroll_length=2, batch_size=4096, sequence_length=4)
STORES = {
    "recent": "{name:uniform,proportion:1,capacity:24}",
    "urgent": "{name:prioritised,proportion:2,capacity:42,priority_exponent:1.0}",
    "all": "{name:uniform,proportion:1,capacity:90}",
}
ROWS = (8, 14, 30)  # of each store: its capacity over 3 environments


@pytest.mark.parametrize(
    ("proportions", "batch_size", "expected"),
    [
        ((1, 1), 8, (4, 4)),
        ((0.5, 0.25, 0.25), 6, (3, 2, 1)),  # 3, 1.5, 1.5: the first of two equal remainders
        ((1, 2), 10, (3, 7)),  # 3.33, 6.67
        ((0.9, 0.1), 32, (29, 3)),  # 28.8, 3.2
    ],
)
def test_shares_are_whole_and_add_up(proportions, batch_size, expected):
    assert tuple(shares(dict(zip("abc", proportions)), batch_size).values()) == expected


@given(
    proportions=st.lists(st.floats(0.05, 1.0), min_size=1, max_size=5),
    batch_size=st.integers(200, 1000),
)
def test_shares_are_within_one_of_the_proportions(proportions, batch_size):
    result = shares({str(index): value for index, value in enumerate(proportions)}, batch_size)
    assert sum(result.values()) == batch_size
    for share, value in zip(result.values(), proportions, strict=True):
        assert abs(share - batch_size * value / sum(proportions)) < 1


class Compiled(NamedTuple):
    store: Mixture
    add: Any
    sample: Any
    set_priorities: Any


def build(*overrides: str, spec: ReplaySpec = SPEC) -> Mixture:
    config = load_config(["replay=mixture", "replay.learning_starts=0", *overrides])
    return build_store(config.replay, spec, axis_name=None)


@functools.cache
def compiled() -> Compiled:
    store = build(*[f"replay.stores.{name}={value}" for name, value in STORES.items()])
    return Compiled(store, jax.jit(store.add), jax.jit(store.sample), jax.jit(store.set_priorities))


def fill(seed: int, adds: int) -> tuple[Compiled, list[Oracle], Any]:
    functions, streams = compiled(), make_streams(np.random.default_rng(seed), 3, 2 * adds + 1)
    oracles = [Oracle(SPEC, rows, streams) for rows in ROWS]
    state = functions.store.init(jax.eval_shape(lambda: jax.tree.map(jnp.asarray, to_trajectory(streams, 0, 2))))
    for _ in range(adds):
        trajectories = [oracle.add() for oracle in oracles]
        state = functions.add(state, trajectories[0])
    return functions, oracles, state


def share(batch: Batch, start: int, stop: int) -> Batch:
    steps = jax.tree.map(lambda leaf: leaf[:, start:stop], batch.trajectory.steps)
    assert batch.trajectory.actor_state == ()
    return Batch(Trajectory(steps, ()), batch.indices[start:stop], batch.probabilities[start:stop])


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**20), adds=st.integers(1, 30))
def test_F09_every_store_fills_its_share_with_what_its_list_holds(seed, adds):
    functions, oracles, state = fill(seed, adds)
    starts = [oracle.starts() for oracle in oracles]
    assert functions.store.can_sample(state) == all(starts)
    assert functions.store.size(state) == sum(3 * min(oracle.written, oracle.num_rows) for oracle in oracles)
    if not all(starts):
        return
    _, batch = functions.sample(state, jax.random.key(seed))
    for oracle, bounds in zip(oracles, [(0, 1024), (1024, 3072), (3072, 4096)]):
        assert set(check_sequences(oracle, share(batch, *bounds))) == set(oracle.starts())


def test_priorities_reach_the_store_that_was_sampled():
    functions, _, state = fill(1, 20)
    _, batch = functions.sample(state, jax.random.key(0))
    urgent = np.asarray(batch.indices[1024:3072])
    priorities = np.full(4096, 1e6, np.float32)  # of the others, whose indices exist in this one, too
    priorities[1024:3072] = np.where(urgent == urgent[0], 3.0, 1.0)
    state = functions.set_priorities(state, batch.indices, priorities)
    leaves = np.asarray(state.parts[1].tree.sums[0])
    np.testing.assert_allclose(leaves[urgent], priorities[1024:3072], rtol=1e-5)
    assert leaves.max() < 4.0


def test_weights_undo_priorities_and_not_proportions():
    """Starts of priority 1 and 3 in one store: at β = 1 their weights are 3 to 1; all of a uniform store are alike."""
    functions, _, state = fill(1, 20)
    _, batch = functions.sample(state, jax.random.key(0))
    urgent = np.asarray(batch.indices[1024:3072])
    priorities = np.ones(4096, np.float32)
    priorities[1024:3072] = np.where(urgent % 2 == 0, 3.0, 1.0)
    state = functions.set_priorities(state, batch.indices, priorities)
    _, batch = functions.sample(state, jax.random.key(1))
    weights = np.asarray(importance_weights(batch.probabilities, 1.0, 1.0, None))
    is_even = np.asarray(batch.indices[1024:3072]) % 2 == 0
    np.testing.assert_allclose(weights[1024:3072][~is_even].mean() / weights[1024:3072][is_even].mean(), 3.0, rtol=1e-4)
    for part in np.split(weights, [1024, 3072]):
        np.testing.assert_allclose(part.mean(), weights.mean(), rtol=1e-4)
    assert np.ptp(weights[:1024]) == np.ptp(weights[3072:]) == 0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((), "has no stores; name some: replay.stores.recent.name=uniform"),
        (("replay.stores.a.name=uniform",), "stores.a=.* lacks a setting; set .*stores.a.proportion=0.5"),
        (("replay.stores.a={name:queue,proportion:1}",), "stores.a.name=queue is none of uniform, prioritised"),
        (("replay.stores.a={name:uniform,proportion:0}",), "stores.a.proportion=0.0 is not positive"),
        (("replay.stores.a={name:uniform,proportion:1,capcity:5}",), "did you mean replay.stores.a.capacity"),
        (("replay.stores.a={name:uniform,proportion:1,capacity:5}",), "stores.a.capacity=5 .* use at least"),
        (("replay.stores.a={name:uniform,proportion:1,learning_starts:5}",), "set replay.learning_starts for the"),
        (
            ("replay.stores.a={name:uniform,proportion:1}", "replay.stores.b={name:uniform,proportion:0.0001}"),
            "stores.b.proportion=0.0001 of 1.0001 is no whole sequence of the 4096 a device; use at least 0.000244",
        ),
    ],
)
def test_settings_are_refused(overrides, message):
    with pytest.raises(ValueError, match=message):
        build(*overrides)


def test_a_batch_that_does_not_divide_is_refused():
    spec = ReplaySpec(num_envs=4, unroll_length=2, batch_size=10, sequence_length=2, num_devices=4)
    with pytest.raises(ValueError, match=r"agent.batch_size=10 does not divide over 4 .* use 8"):
        build("replay.stores.a={name:uniform,proportion:1}", spec=spec)
