"""Golden numbers of the running statistics, over splits, devices, trees and very long runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.networks import statistics
from podracer.types import StepType, valid_transitions

FIRST, MID, LAST = StepType.FIRST, StepType.MID, StepType.LAST


def merge(*batches, where=None):
    batches = [np.asarray(batch, np.float32) for batch in batches]
    merged, update = statistics.init(batches[0][0]), jax.jit(statistics.update)
    for batch in batches:
        merged = update(merged, batch, np.ones(len(batch), bool) if where is None else where)
    return merged


@pytest.mark.parametrize(
    "batches",
    [([1, 2, 3, 4], [10, 20]), ([1, 2, 3, 4, 10, 20],), ([20, 1], [10], [4, 3, 2]), ([1], [2], [3], [4], [10], [20])],
)
def test_A19_any_split_gives_the_same_result(batches):
    # Mean 40 / 6; variance (1 + 4 + 9 + 16 + 100 + 400) / 6 − 6.66667² = 43.88889
    merged = merge(*batches)
    np.testing.assert_allclose(merged, [6, 6.66667, 43.88889], rtol=1e-5)


def test_A19_masked_rows_and_empty_batches_do_not_count():
    merged = merge([1, 2, np.nan, 4], where=np.array([True, True, False, True]))
    np.testing.assert_allclose(merged, [3, 7 / 3, 14 / 9], rtol=1e-5)
    again = statistics.update(merged, np.full(2, 9, np.float32), np.zeros(2, bool))
    np.testing.assert_array_equal(again, merged)
    empty = merge([1, 2], where=np.zeros(2, bool))
    np.testing.assert_array_equal(empty, statistics.init(np.zeros((), np.float32)))


def test_A19_devices_with_different_shares_equal_one_device():
    batch = np.random.default_rng(0).normal(1000, 1, (2, 5, 3)).astype(np.float32)
    where = np.array([[True] * 5, [True, False, True, False, False]])
    start = statistics.init(np.zeros(3, np.float32))
    update = jax.vmap(lambda x, w: statistics.update(start, x, w, "learner"), axis_name="learner")
    samples = batch[where].astype(np.float64)
    for device in range(2):
        count, mean, variance = jax.tree.map(lambda x, d=device: x[d], update(batch, where))
        assert count == 7
        np.testing.assert_allclose(mean, samples.mean(axis=0), rtol=1e-6)
        np.testing.assert_allclose(variance, samples.var(axis=0), rtol=1e-3)


def test_A19_digits_survive_a_large_offset():
    rng = np.random.default_rng(1)
    batches = rng.normal(10_000, 1, (50, 1000)).astype(np.float32)
    merged = merge(*batches)
    assert merged.mean == pytest.approx(batches.mean(dtype=np.float64), abs=0.01)
    assert merged.variance == pytest.approx(batches.var(dtype=np.float64), rel=0.01)


def test_A19_after_a_billion_samples_the_statistics_still_follow_the_data():
    merged = statistics.RunningStatistics(jnp.float32(1e9), jnp.float32(0), jnp.float32(1))
    batch, where = jnp.full(1024, 5.0), jnp.ones(1024, bool)

    @jax.jit
    def run(merged):
        return jax.lax.fori_loop(0, 50_000, lambda _, s: statistics.update(s, batch, where), merged)

    after = run(merged)
    # The count stays at 2²⁴; each of 50,000 batches weighs 1024 / (2²⁴ + 1024): 1 − e^(−50000·6.103e-5) = .953
    assert after.count == 2**24
    assert after.mean == pytest.approx(5 * 0.953, rel=0.01)


OBSERVATION = {
    "image": np.zeros((2, 2), np.uint8),
    "vector": np.zeros(3, np.float32),
    "goal": (np.zeros((), np.float64), np.zeros(2, np.int32)),
    "action_mask": np.zeros(4, bool),
}


def test_E07_only_float_leaves_are_counted_and_normalised():
    rng = np.random.default_rng(2)
    batch = jax.tree.map(lambda x: (9 * rng.random((6, 5, *x.shape))).astype(x.dtype), OBSERVATION)
    start = statistics.init(OBSERVATION)
    merged = jax.jit(statistics.update)(start, batch, np.ones((6, 5), bool))
    assert jax.tree.map(jnp.shape, merged) == jax.tree.map(jnp.shape, start)
    assert merged.mean["image"] == () and merged.mean["goal"][1] == ()

    result = statistics.normalise(merged, batch)
    np.testing.assert_allclose(np.mean(result["vector"], axis=(0, 1)), 0, atol=1e-5)
    np.testing.assert_allclose(np.std(result["vector"], axis=(0, 1)), 1, atol=1e-4)
    assert result["goal"][0].dtype == jnp.float32
    for name in ("image", "action_mask"):
        assert result[name].dtype == OBSERVATION[name].dtype
        np.testing.assert_array_equal(result[name], batch[name])
    np.testing.assert_array_equal(result["goal"][1], batch["goal"][1])


def test_E06_an_image_alone_has_nothing_to_normalise():
    image = np.full((4, 2, 2), 255, np.uint8)
    start = statistics.init(image[0])
    update = jax.vmap(lambda x, w: statistics.update(start, x, w, "learner"), axis_name="learner")
    merged = update(image[None], np.ones((1, 4), bool))
    assert merged.mean == () and merged.count == 4
    assert statistics.normalise(start, image) is image


def test_normalise_is_the_identity_at_first_and_clips():
    start = statistics.init(np.zeros(2, np.float32))
    np.testing.assert_allclose(statistics.normalise(start, np.array([3.0, -50.0], np.float32)), [3, -10], rtol=1e-6)
    constant = merge([[7, 1], [7, 3]])
    result = statistics.normalise(constant, np.array([[7, 4], [7, 2]], np.float32), clip=1.5)
    np.testing.assert_allclose(result, [[0, 1.5], [0, 0]], rtol=1e-6)


def accumulate(step_type, reward):
    def step(carry, row):
        return statistics.return_accumulator(carry, row[1], row[0], 0.9)

    return jax.lax.scan(step, jnp.zeros(()), (step_type, reward))[1]


# Reward 1 a step, two episodes of three steps: where each step resets, and what it carries.
NEXT_STEP = [FIRST, MID, MID, LAST] * 2, [0, 1, 1, 1] * 2
SAME_STEP = [FIRST, MID, MID] * 2 + [FIRST], [0, 1, 1] + [1] * 4


@pytest.mark.parametrize(
    "step_type, reward, discount", [(*NEXT_STEP, [1] * 8), (*SAME_STEP, [1, 1, 1, 0, 1, 1, 0])], ids=["next", "same"]
)
def test_A22_the_return_is_cut_at_ends_and_resets_do_not_count(step_type, reward, discount):
    step_type, discount = np.array(step_type), np.array(discount, np.float32)
    total = accumulate(step_type, np.array(reward, np.float32))
    valid = valid_transitions(step_type, discount)
    # 1, 1 + .9·1, 1 + .9·1.9
    np.testing.assert_allclose(total[1:][valid], [1, 1.9, 2.71, 1, 1.9, 2.71], rtol=1e-6)
    merged = statistics.update(statistics.init(np.zeros((), np.float32)), total[1:], valid)
    # Mean 1.87; variance (1 + 3.61 + 7.3441) / 3 − 1.87² = .4878
    np.testing.assert_allclose(merged, [6, 1.87, 0.4878], rtol=1e-4)


def test_A22_a_reset_has_no_return():
    total = accumulate(*(np.array(x, dtype) for x, dtype in zip(NEXT_STEP, (np.int8, np.float32))))
    np.testing.assert_array_equal(total[np.array([0, 4])], 0)


def test_A22_a_restart_does_not_join_two_episodes():
    total = accumulate(np.array([FIRST, MID, FIRST, MID]), np.array([0, 1, 0, 1], np.float32))
    assert total[3] == 1


def test_A22_rewards_are_scaled_but_not_shifted():
    merged = statistics.RunningStatistics(jnp.float32(6), jnp.float32(1.87), jnp.float32(4.0))
    np.testing.assert_allclose(
        statistics.scale_reward(merged, np.array([[0, 1], [-3, 100]], np.float32)), [[0, 0.5], [-1.5, 10]], rtol=1e-6
    )
