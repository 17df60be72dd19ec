import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.replay import ratio
from podracer.replay.base import ReplaySpec
from tests.replay.oracle import make_streams, to_trajectory

SPEC = ReplaySpec(num_envs=4, unroll_length=5, batch_size=32, sequence_length=2)


@pytest.mark.parametrize(
    ("samples_per_insert", "replay_ratio", "expected"),
    [
        (None, None, 8 / 32),  # the spec's own 8 samples an insert
        (64.0, None, 2.0),
        (None, 0.125, 0.125),
        (4.0, 0.125, 0.125),  # the same twice
    ],
)
def test_a_ratio_is_resolved_to_updates(samples_per_insert, replay_ratio, expected):
    assert ratio.updates_per_insert(SPEC, samples_per_insert, replay_ratio) == expected


def test_sequences_count_for_their_transitions():
    spec = ReplaySpec(num_envs=4, unroll_length=5, batch_size=32, sequence_length=11, transitions_per_sequence=10)
    assert ratio.updates_per_insert(spec, 80.0, None) == 80 / 320


@pytest.mark.parametrize(("updates_per_insert", "learning_starts"), [(0.013, 0), (0.25, 100), (3.7, 33)])
def test_updates_follow_the_valid_transitions(updates_per_insert, learning_starts):
    streams = make_streams(np.random.default_rng(0), 4, 1001)
    credit, inserted, made = ratio.no_credit(), 0, 0

    @jax.jit
    def advance(credit, trajectory):
        credit = ratio.insert(credit, trajectory, updates_per_insert, learning_starts, None)
        return ratio.take(credit, jnp.array(True), None)

    for start in range(0, 1000, 5):
        credit, updates = advance(credit, to_trajectory(streams, start, 5))
        made += int(updates)
        inserted = sum(
            a.step_type != 2 and not (b.step_type == 0 and b.discount)
            for stream in streams
            for a, b in itertools.pairwise(stream[: start + 6])
        )
        assert abs(made - updates_per_insert * max(inserted - learning_starts, 0)) < 1.001
    assert credit.inserted[0] == inserted < 4000  # not all steps are transitions


def test_what_cannot_be_sampled_yet_is_made_up_for():
    credit = ratio.Credit(jnp.array([100]), jnp.array([2.5]))
    credit, updates = ratio.take(credit, jnp.array(False), None)
    assert updates == 0
    credit, updates = ratio.take(credit, jnp.array(True), None)
    assert updates == 2 and credit.updates[0] == 0.5


def test_B14_counting_does_not_end_learning():
    """Past 2³⁰ transitions the count stays, and updates go on."""
    trajectory = to_trajectory(make_streams(np.random.default_rng(1), 4, 6), 0, 5)
    credit = ratio.Credit(jnp.array([2**30 - 1]), jnp.array([0.0]))
    for _ in range(3):
        credit, updates = ratio.take(ratio.insert(credit, trajectory, 1.0, 1000, None), jnp.array(True), None)
        assert updates > 0 and credit.inserted[0] == 2**30
