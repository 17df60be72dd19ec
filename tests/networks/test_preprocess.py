"""Observations of every kind become the features that are promised."""

import jax
import numpy as np

from podracer.networks.preprocess import image_sides, preprocess
from podracer.spaces import ACTION_MASK, Box, Discrete


def _convert(space, observation, batch_ndim=1, with_images=True):
    return preprocess(space, observation, batch_ndim=batch_ndim, with_images=with_images)


def test_E06_an_image_of_255_becomes_exactly_1_inside_and_outside_of_jit():
    space, image = Box((84, 84, 4), np.uint8), np.full((2, 84, 84, 4), 255, np.uint8)
    for convert in (_convert, jax.jit(lambda space, x: _convert(space, x), static_argnums=0)):
        (converted,) = convert(space, image).images
        assert converted.dtype == np.float32
        assert np.all(np.asarray(converted) == 1.0)


def test_E06_a_float_image_is_not_scaled():
    image = np.full((1, 10, 10, 4), 3.0, np.float32)
    np.testing.assert_array_equal(_convert(Box((10, 10, 4), np.float32), image).images[0], image)


def test_images_leave_with_their_channels_last():
    channels_first = np.arange(2 * 4 * 6 * 8, dtype=np.float32).reshape(2, 4, 6, 8)
    space = Box((4, 6, 8), np.float32)
    np.testing.assert_array_equal(_convert(space, channels_first).images[0], channels_first.transpose(0, 2, 3, 1))
    assert image_sides(space) == [(6, 8)]
    assert image_sides(Box((10, 10, 10), np.float32)) == [(10, 10)]
    assert image_sides({"vector": Box((7,), np.float32), "grid": Box((10, 5), np.float32)}) == []


def test_E07_leaves_are_concatenated_in_the_order_of_sorted_keys():
    space = {
        "vec": Box((2,), np.float32),
        "img": Box((5, 6, 3), np.uint8),
        "goal": (Discrete(3, start=1), Box((), np.int32)),
    }
    observation = {
        "img": np.full((2, 5, 6, 3), 51, np.uint8),
        "goal": (np.array([1, 3], np.int32), np.array([7, -8], np.int32)),
        "vec": np.array([[0.5, 0.25], [1.5, 2.5]], np.float32),
    }
    features = _convert(space, observation)
    np.testing.assert_allclose(features.images[0], np.full((2, 5, 6, 3), 0.2), rtol=1e-6)  # 51 / 255
    # goal (one of 1..3, then a number) before vec.
    np.testing.assert_array_equal(features.vector, [[1, 0, 0, 7, 0.5, 0.25], [0, 0, 1, -8, 1.5, 2.5]])
    flat = _convert(space, observation, with_images=False)
    assert flat.images == () and flat.vector.shape == (2, 3 + 1 + 5 * 6 * 3 + 2)


def test_A18_the_action_mask_is_no_feature():
    space = {"board": Box((2,), np.bool_), ACTION_MASK: Box((3,), np.bool_)}
    action_mask = np.array([[[True, False, True]]])
    features = _convert(space, {"board": np.array([[[True, False]]]), ACTION_MASK: action_mask}, batch_ndim=2)
    np.testing.assert_array_equal(features.vector, [[1.0, 0.0]])
    np.testing.assert_array_equal(features.action_mask, action_mask[0])


def test_a_discrete_observation_without_dimensions_becomes_one_hot():
    features = _convert(Discrete(16), np.array([[3, 0, 15]]), batch_ndim=2)
    np.testing.assert_array_equal(features.vector, np.eye(16, dtype=np.float32)[[3, 0, 15]])
