"""The stores against plain Python lists, over random episodes, lengths, periods, ends and priorities."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podracer.replay.base import ReplaySpec
from podracer.replay.prioritised import Prioritised
from podracer.replay.uniform import Uniform
from podracer.types import StepType, valid_transitions
from tests.replay.oracle import MID, Oracle, Record, make_streams, to_trajectory

# More draws than are needed to find every start of a small store: one is missed with a probability below 1e-20.
_MANY = 4096


def make_spec(**settings: Any) -> ReplaySpec:
    return ReplaySpec(**{"num_envs": 3, "unroll_length": 2, "batch_size": _MANY, "sequence_length": 2, **settings})


# Name: the spec, and a capacity in transitions.
CASES = {
    "transitions": (make_spec(), 24),
    "one_step_unrolls": (make_spec(unroll_length=1), 24),
    "one_environment": (make_spec(num_envs=1, unroll_length=1), 8),
    "n_step": (make_spec(sequence_length=4), 30),
    "n_step_cut": (make_spec(sequence_length=4, episode_ends="cut"), 30),
    "n_step_over_ends": (make_spec(sequence_length=4, episode_ends="reset"), 30),
    "longer_than_unrolls": (make_spec(sequence_length=7), 60),
    "capacity_that_does_not_divide": (make_spec(sequence_length=3, unroll_length=3), 50),
    "unrolls": (make_spec(unroll_length=3, sequence_length=4, sequence_period=3, episode_ends="reset"), 45),
    "two_unrolls": (make_spec(unroll_length=2, sequence_length=5, sequence_period=2, episode_ends="reset"), 48),
    "every_other_unroll": (make_spec(unroll_length=2, sequence_length=4, sequence_period=4), 48),
    "all_of_the_store": (make_spec(unroll_length=4, sequence_length=2), 12),
}


class Compiled(NamedTuple):
    store: Any
    init: Callable
    add: Callable
    sample: Callable
    set_priorities: Callable


@functools.cache
def compiled(kind: type, name: str) -> Compiled:
    spec, capacity = CASES[name]
    store = kind(spec=spec, capacity=capacity, learning_starts=0)

    def init():
        streams = make_streams(np.random.default_rng(0), spec.num_envs, spec.unroll_length + 1)
        return store.init(
            jax.eval_shape(lambda: jax.tree.map(jnp.asarray, to_trajectory(streams, 0, spec.unroll_length)))
        )

    return Compiled(store, init, jax.jit(store.add), jax.jit(store.sample), jax.jit(store.set_priorities))


def fill(kind: type, name: str, seed: int, adds: int, length: int = 0) -> tuple[Compiled, Oracle, Any]:
    """A store and its oracle after `adds` unrolls, of `length` that could be added."""
    functions, spec = compiled(kind, name), CASES[name][0]
    streams = make_streams(np.random.default_rng(seed), spec.num_envs, max(adds, length) * spec.unroll_length + 1)
    oracle, state = Oracle(spec, functions.store.num_rows, streams), functions.init()
    for _ in range(adds):
        state = functions.add(state, oracle.add())
    return functions, oracle, state


def check_sequences(oracle: Oracle, batch: Any) -> list[int]:
    """Compares every sequence of a batch with what the lists say; returns the starts."""
    steps = jax.tree.map(np.asarray, batch.trajectory.steps)
    timestep = steps.timestep
    numbers = timestep.observation
    np.testing.assert_array_equal(steps.action, numbers + 1)
    np.testing.assert_array_equal(steps.extras["extra"], numbers + 2)
    if oracle.spec.sequence_period % oracle.spec.unroll_length == 0:
        np.testing.assert_array_equal(batch.trajectory.actor_state["first"], numbers[0])
    else:
        assert batch.trajectory.actor_state == ()
    rows = np.stack([numbers, timestep.step_type, timestep.reward, timestep.discount], axis=-1)  # [L, N, 4]
    for n in {int(number): n for n, number in enumerate(numbers[0])}.values():
        np.testing.assert_array_equal(rows[:, n], oracle.sequence(int(numbers[0, n])))
    return numbers[0].tolist()


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**20), adds=st.integers(1, 30))
def test_A10_F09_uniform_samples_what_the_lists_hold(name, seed, adds):
    functions, oracle, state = fill(Uniform, name, seed, adds)
    starts = oracle.starts()
    assert functions.store.can_sample(state) == bool(starts)
    assert functions.store.size(state) == min(oracle.written, oracle.num_rows) * oracle.spec.num_envs
    if not starts:
        return
    _, batch = functions.sample(state, jax.random.key(seed))
    assert set(check_sequences(oracle, batch)) == set(starts)
    np.testing.assert_allclose(batch.probabilities, 1 / len(starts), rtol=1e-6)


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**20), adds=st.integers(1, 12), rounds=st.integers(0, 6))
def test_A10_A27_prioritised_samples_what_the_lists_hold(name, seed, adds, rounds):
    functions, oracle, state = fill(Prioritised, name, seed, adds=0, length=adds + rounds)
    rng, store = np.random.default_rng(seed), functions.store
    weights: dict[int, float] = {}
    for turn in range(adds + rounds):
        newest = max(weights.values(), default=1.0)
        state = functions.add(state, oracle.add())
        weights = {start: weights.get(start, newest) for start in oracle.starts()}
        assert store.can_sample(state) == bool(weights)
        if turn < adds or not weights:
            continue
        _, batch = functions.sample(state, jax.random.key(turn))
        starts, total = check_sequences(oracle, batch), sum(weights.values())
        expected = [weights[start] / total for start in starts]
        np.testing.assert_allclose(batch.probabilities, expected, rtol=1e-4)
        likely = {start for start, weight in weights.items() if weight / total > 0.01}
        assert likely <= set(starts)
        # Some of the batch, duplicates among them.
        some = rng.integers(0, _MANY, 40)
        priorities = rng.exponential(size=_MANY).astype(np.float32)
        chosen = np.zeros(_MANY, bool)
        chosen[some] = True
        state = functions.set_priorities(state, batch.indices, np.where(chosen, priorities, np.nan))
        changed: dict[int, list[float]] = {}
        for n, start in enumerate(starts):
            leaf = (priorities[n] + store.priority_epsilon) ** store.priority_exponent if chosen[n] else weights[start]
            changed.setdefault(start, []).append(leaf)
        weights |= {start: float(max(leaves)) for start, leaves in changed.items()}


def one_episode(length: int) -> list[list[Record]]:
    """A single environment in the middle of an episode."""
    return [[Record(t, MID, 1.0, 1.0) for t in range(length)]]


@pytest.mark.parametrize("kind", [Uniform, Prioritised])
def test_A10_windows_are_those_of_the_case(kind):
    """Capacity 8, 0 ... 10 written: the store holds 3 ... 10, so windows of 3 start at 3, 4, 5, 6, 7, 8."""
    spec = make_spec(num_envs=1, unroll_length=1, sequence_length=3)
    store = kind(spec=spec, capacity=8, learning_starts=0)
    streams = one_episode(13)
    state = store.init(jax.eval_shape(lambda: jax.tree.map(jnp.asarray, to_trajectory(streams, 0, 1))))
    for t in range(11):
        state = jax.jit(store.add)(state, to_trajectory(streams, t, 1))
    assert store.size(state) == 8
    np.testing.assert_array_equal(state.ring.steps.timestep.observation[0], [8, 9, 10, 3, 4, 5, 6, 7])
    numbers = np.asarray(jax.jit(store.sample)(state, jax.random.key(0))[1].trajectory.steps.timestep.observation)
    np.testing.assert_array_equal(np.diff(numbers, axis=0), 1)
    assert set(numbers[0]) == {3, 4, 5, 6, 7, 8}


def test_A26_frequencies_are_those_of_the_priorities():
    """Priorities 1, 2, 3, 4 with α = 1: P = 0.1, 0.2, 0.3, 0.4."""
    spec = make_spec(num_envs=1, unroll_length=1, batch_size=100_000)
    store = Prioritised(spec=spec, capacity=5, learning_starts=0, priority_exponent=1.0)
    streams = one_episode(13)
    state = store.init(jax.eval_shape(lambda: jax.tree.map(jnp.asarray, to_trajectory(streams, 0, 1))))
    for t in range(5):
        state = store.add(state, to_trajectory(streams, t, 1))
    state = store.set_priorities(state, jnp.arange(4), jnp.array([1.0, 2.0, 3.0, 4.0]))
    _, batch = jax.jit(store.sample)(state, jax.random.key(0))
    counts = np.bincount(batch.indices, minlength=4)
    expected = np.array([0.1, 0.2, 0.3, 0.4])
    np.testing.assert_allclose(batch.probabilities, expected[np.asarray(batch.indices)], rtol=1e-5)
    assert chi_square(counts, expected) < 16.3  # 3 degrees of freedom: exceeded with a probability of 0.001


@pytest.mark.parametrize("kind", [Uniform, Prioritised])
def test_F09_frequencies_are_uniform(kind):
    functions, oracle, state = fill(kind, "n_step", 5, 23)
    counts = np.zeros(6000)
    for index in range(20):
        numbers = functions.sample(state, jax.random.key(index))[1].trajectory.steps.timestep.observation[0]
        counts += np.bincount(numbers, minlength=6000)
    starts = oracle.starts()
    assert chi_square(counts[starts], np.full(len(starts), 1 / len(starts))) < len(starts) + 5 * np.sqrt(
        2 * len(starts)
    )


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    expected = counts.sum() * probabilities
    return float(np.sum((counts - expected) ** 2 / expected))


def test_padding_holds_no_transition():
    functions, oracle, state = fill(Uniform, "longer_than_unrolls", 3, 20)
    timestep = functions.sample(state, jax.random.key(0))[1].trajectory.steps.timestep
    valid = np.asarray(valid_transitions(timestep.step_type, timestep.discount))
    first_invalid = np.argmin(np.pad(valid, [(0, 1), (0, 0)]), axis=0)
    assert all(not valid[k:, n].any() for n, k in enumerate(first_invalid)) and valid[0].all()
    assert np.any(first_invalid < oracle.spec.sequence_length - 1)
    assert not np.any(np.asarray(timestep.step_type[1:-1]) == StepType.LAST) or np.any(first_invalid > 1)


@pytest.mark.parametrize("kind", [Uniform, Prioritised])
def test_what_was_handed_in_may_be_overwritten_B22(kind):
    functions, oracle, state = fill(kind, "transitions", 2, adds=0, length=1)
    trajectory = jax.tree.map(np.array, oracle.add())
    state = jax.block_until_ready(functions.add(state, trajectory))
    kept = np.array(state.ring.steps.timestep.observation)
    trajectory.steps.timestep.observation[:] = -7
    np.testing.assert_array_equal(state.ring.steps.timestep.observation, kept)


@pytest.mark.parametrize("kind", [Uniform, Prioritised])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"capacity": 5}, "capacity=5 .* use at least 6"),
        ({"learning_starts": 25}, "learning_starts=25 .* use 0 to 24"),
        ({"learning_starts": -1}, "learning_starts=-1"),
        ({"samples_per_insert": 0}, "samples_per_insert=0 is not positive"),
        ({"replay_ratio": -1.0}, "replay_ratio=-1.0 is not positive"),
        ({"samples_per_insert": 8.0, "replay_ratio": 1.0}, "contradicts replay.samples_per_insert=8"),
        ({"spec": make_spec(batch_size=10, num_devices=4)}, "batch_size=10 does not divide over 4 .* use 8"),
    ],
)
def test_settings_are_refused(kind, changes, message):
    with pytest.raises(ValueError, match=message):
        kind(**{"spec": make_spec(), "capacity": 24, "learning_starts": 0, **changes})


@pytest.mark.parametrize(
    ("changes", "message"), [({"priority_exponent": -0.1}, "exponent=-0.1"), ({"priority_epsilon": 0.0}, "epsilon=0")]
)
def test_settings_of_priorities_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Prioritised(spec=make_spec(), capacity=24, learning_starts=0, **changes)


def test_uniform_draws_any_of_more_starts_than_float32_can_tell_apart(monkeypatch):
    store = Uniform(spec=make_spec(), capacity=24, learning_starts=0)
    streams = make_streams(np.random.default_rng(0), 3, 7)
    state = store.init(jax.tree.map(jnp.asarray, to_trajectory(streams, 0, 2)))
    monkeypatch.setattr(Uniform, "_num_starts", lambda self, state: jnp.uint32(2**26))
    monkeypatch.setattr(Uniform, "_find", lambda self, state, chosen: chosen)
    monkeypatch.setattr("podracer.replay.ring.read", lambda *_: ())
    chosen = np.asarray(store.sample(state, jax.random.key(0))[1].indices)
    # Four bits at the end, each set in half of the numbers: within five standard deviations.
    for bit in range(4):
        assert abs(np.mean(chosen >> bit & 1) - 0.5) < 5 * 0.5 / _MANY**0.5
    assert chosen.max() > 0.99 * 2**26
