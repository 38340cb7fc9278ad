"""Cosine to the group's mean image, by hand."""

import numpy as np
import pytest

from guda.baselines.similarity import ENCODERS, cosines, group_means, pixels
from guda.data.images import ImageData
from guda.errors import GudaError


def grey(*rows: list[int]) -> np.ndarray:
    """Images of 1x1x2 pixels."""
    return np.array(rows, np.uint8).reshape(len(rows), 1, 1, 2)


@pytest.fixture
def data() -> ImageData:
    return ImageData.from_arrays(grey([255, 0], [255, 0], [0, 255], [255, 255]), ["a", "a", "b", "b"], layout="NCHW")


def test_means_and_cosines_by_hand(data: ImageData) -> None:
    means = group_means(data, pixels)
    np.testing.assert_allclose(means, [[1, 0], [0.5, 1]])
    found = cosines(pixels(grey([255, 0], [0, 51], [51, 102])), means)
    root = np.sqrt(5)
    np.testing.assert_allclose(found, [[1, 1 / root], [0, 2 / root], [1 / root, 1]], atol=1e-12)


def test_brightness_does_not_matter_and_the_range_is_that_of_a_cosine(data: ImageData) -> None:
    means = group_means(data, ENCODERS["pixel"])
    found = cosines(pixels(grey([200, 100], [100, 50], [20, 10])), means)
    np.testing.assert_allclose(found, found[:1].repeat(3, axis=0))
    assert (abs(found) <= 1 + 1e-12).all()


def test_a_black_image_and_a_black_group_have_cosine_zero_not_nan(data: ImageData) -> None:
    means = group_means(data, pixels)
    assert cosines(pixels(grey([0, 0])), means).tolist() == [[0, 0]]
    dark = ImageData.from_arrays(grey([0, 0], [255, 0]), ["dark", "lit"], layout="NCHW")
    np.testing.assert_allclose(cosines(pixels(grey([9, 0])), group_means(dark, pixels)), [[0, 1]])


def test_queries_of_another_size_are_refused(data: ImageData) -> None:
    with pytest.raises(GudaError, match="same size needed"):
        cosines(pixels(np.zeros((1, 1, 2, 2), np.uint8)), group_means(data, pixels))
