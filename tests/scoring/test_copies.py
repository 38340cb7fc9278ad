"""Near copies of training images: found whether the image was there once or fifty times; ordinary pictures are not."""

from __future__ import annotations

import numpy as np
import pytest

from guda.scoring.copies import crowding, find_copies, nearest


@pytest.fixture(scope="module")
def digits() -> np.ndarray:
    from sklearn.datasets import load_digits

    return (load_digits().data / 8 - 1).astype(np.float32)


def jitter(images: np.ndarray, size: float, seed: int = 0) -> np.ndarray:
    return (images + size * np.random.default_rng(seed).standard_normal(images.shape)).astype(np.float32)


@pytest.mark.parametrize("times", [1, 5, 50])
def test_planted_copies_are_found(digits: np.ndarray, times: int) -> None:
    planted, others, fresh = digits[:10], digits[10:900], digits[900:1200]
    images = np.concatenate([others, *(jitter(planted, 0.02, n) for n in range(times))])
    about = crowding(images)
    samples = nearest(np.concatenate([fresh, jitter(planted[:3], 0.05)]), images, None, about)  # some are copies too
    found = nearest(jitter(planted, 0.06, 99), images, None, about)
    copies, usual = find_copies(found, samples, about)
    assert copies.all()
    assert (found.index >= len(others)).all()
    assert ((found.index - len(others)) % 10 == np.arange(10)).all()
    assert (found.distance < usual / 2).all()
    ordinary, _ = find_copies(nearest(digits[1200:], images, None, about), samples, about)
    assert ordinary.mean() <= 0.01  # this data has a few near-duplicates of its own


def test_a_model_that_only_repeats_is_found_out(digits: np.ndarray) -> None:
    """All samples are copies, so that their own distances tell nothing: those among training images do."""
    images = digits[:800]
    about = crowding(images)
    samples = nearest(jitter(images[::4], 0.05), images, None, about)
    copies, _ = find_copies(samples, samples, about)
    assert copies.mean() > 0.95


def test_every_image_several_times(digits: np.ndarray) -> None:
    images = np.concatenate([jitter(digits[:400], 0.01, n) for n in range(5)])
    about = crowding(images)
    copies, _ = find_copies(nearest(jitter(digits[:40], 0.06, 9), images, None, about), None, about)
    assert copies.all()
    copies, _ = find_copies(nearest(digits[400:800], images, None, about), None, about)
    assert copies.mean() <= 0.02


def test_one_of_a_crowd_is_no_copy() -> None:
    """Near to many images alike: none of them explains the picture by itself."""
    rng = np.random.default_rng(0)
    crowd = 3 + 1.2 * rng.standard_normal((300, 8))
    images = np.concatenate([6 * rng.standard_normal((700, 8)), crowd]).astype(np.float32)
    about = crowding(images)
    inside = nearest((3 + 1.2 * rng.standard_normal((50, 8))).astype(np.float32), images, None, about)
    copies, usual = find_copies(inside, None, about)
    assert (inside.distance < usual / 2).mean() > 0.9
    assert copies.mean() < 0.1


def test_mirror_images_count_where_training_flips(digits: np.ndarray) -> None:
    images = digits[:600]
    turned = images.reshape(-1, 8, 8)[:, :, ::-1].reshape(-1, 64)
    pictures = jitter(turned[:20], 0.03)
    for mirrored, expected in ((turned, True), (None, False)):
        about = crowding(images, mirrored)
        found = nearest(pictures, images, mirrored, about)
        copies, _ = find_copies(found, None, about)
        assert (copies.mean() > 0.9) == expected
        if expected:
            assert (found.index == np.arange(20)).all()


def test_a_picture_gets_the_same_alone_and_among_others(digits: np.ndarray) -> None:
    images, pictures = digits[:700], digits[700:777]
    about = crowding(images)
    whole = nearest(pictures, images, None, about)
    brute = np.sqrt(((pictures[:, None].astype(np.float64) - images[None]) ** 2).sum(axis=2))
    assert (whole.index == brute.argmin(axis=1)).all()
    np.testing.assert_allclose(whole.distance, brute.min(axis=1), rtol=1e-12)
    for q in (0, 40, 76):
        alone = nearest(pictures[q : q + 1], images, None, about)
        assert alone.index[0] == whole.index[q]
        assert alone.distance[0] == whole.distance[q]
        assert (alone.mass[0] == whole.mass[q]).all()


def test_images_that_are_all_the_same_tell_nothing() -> None:
    images = np.zeros((9, 4), np.float32)
    about = crowding(images)
    copies, _ = find_copies(nearest(images[:2], images, None, about), None, about)
    assert not copies.any()
