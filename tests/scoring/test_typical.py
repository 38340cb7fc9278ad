"""Would this model make it: a p-value that is right for fresh samples, and the same alone and in a batch."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from guda.scoring.origin import CELLS, LEAST, Described, _spanned, coarse, typical_p

STRATA, ROUNDS = 4, 2
MIX = np.random.default_rng(9).normal(size=(12, 30)) / 12**0.5  # pictures of 30 cells that vary in 12 directions


def make(n: int, rng: np.random.Generator, shift: float = 0.0) -> Described:
    """KL terms that follow a curve along t, with what a picture has in common over its strata."""
    t = rng.integers(1, 25, (n, ROUNDS, STRATA)) + 25 * np.arange(STRATA)
    common = rng.standard_t(4, (n, 1, 1)) * 0.3 + shift
    logs = common - 0.02 * t + 1e-4 * t**2 + 0.2 * rng.standard_normal(t.shape)
    return Described(np.exp(logs), t, rng.normal(100, 20, (n, 12)) @ MIX)


def near(some: Described, rng: np.random.Generator, times: float = 1.0) -> Described:
    """The same pictures, so far from their nearest training images."""
    return replace(some, nearest=times * np.exp(rng.normal(size=len(some)) * 0.2))


def outside(n: int) -> np.ndarray:
    return np.full(n, -1)


def test_p_is_the_share_of_samples_as_far_out() -> None:
    """Timesteps that do not vary, one stratum: the distance is that of the logarithms from their mean."""
    logs = np.random.default_rng(0).standard_normal(50)
    t = np.ones((50, 1, 1), int)
    samples = Described(np.exp(logs)[:, None, None], t)
    for own in (0.1, -1.3, 2.5, 9.0):
        both = np.append(logs, own)
        expected = (np.abs(both - both.mean()) >= abs(own - both.mean()) - 1e-9).sum() / 51
        found = typical_p(samples, Described(np.full((1, 1, 1), np.exp(own)), t[:1]), outside(1))
        assert found is not None
        assert found[0] == expected


@pytest.mark.parametrize("images", [False, True])
def test_fresh_samples_raise_no_more_false_alarms_than_said(images: bool) -> None:
    rng = np.random.default_rng(1)
    p = []
    for _ in range(60):
        samples, fresh = make(60, rng), make(20, rng)
        if images:
            samples, fresh = near(samples, rng), near(fresh, rng)
        found = typical_p(samples, fresh, outside(20))
        assert found is not None
        p.extend(found)
    rates = [float(np.mean(np.array(p) <= alpha)) for alpha in (0.05, 0.2, 0.5)]
    # 1,200 pictures, those of one set of samples correlated: about three standard errors
    assert np.allclose(rates, [0.05, 0.2, 0.5], atol=[0.03, 0.06, 0.08])


def test_far_from_every_training_image_is_unusual_and_near_one_is_not() -> None:
    rng = np.random.default_rng(11)
    samples = near(make(200, rng), rng)
    fresh = make(40, rng)
    far, alike, close = (typical_p(samples, near(fresh, rng, times), outside(40)) for times in (9.0, 1.0, 0.1))
    assert far is not None
    assert alike is not None
    assert close is not None
    assert (far < 0.05).mean() > 0.8  # unless all else is very usual: then u v is that of a less distant one
    assert (close >= alike - 1e-12).mean() > 0.9
    assert (close < 0.05).mean() <= 0.05
    assert (far <= alike + 1e-12).all()


def test_with_training_images_it_is_the_rank_of_a_product_of_ranks() -> None:
    """By hand, for terms of one stratum: u and v are shares of the 51 pictures."""
    rng = np.random.default_rng(12)
    logs, distance = rng.standard_normal(51), rng.random(51)
    t = np.ones((51, 1, 1), int)
    every = Described(np.exp(logs)[:, None, None], t, None, distance)
    found = typical_p(every.of(np.arange(50)), every.of(np.array([50])), outside(1))
    out = np.abs(logs - logs.mean())
    product = [(out >= a - 1e-12).mean() * (distance >= d).mean() for a, d in zip(out, distance, strict=True)]
    assert found is not None
    assert found[0] == np.mean(np.array(product) <= product[50] + 1e-12)


def test_too_large_and_too_small_errors_are_both_found() -> None:
    rng = np.random.default_rng(2)
    samples = make(100, rng)
    for shift in (5.0, -5.0):
        found = typical_p(samples, make(10, rng, shift), outside(10))
        assert found is not None
        assert (found == 1 / 101).all()


def test_one_picture_has_the_same_p_alone_in_a_batch_and_in_any_order() -> None:
    rng = np.random.default_rng(3)
    samples, pictures = near(make(80, rng), rng), near(make(9, rng), rng)
    whole = typical_p(samples, pictures, outside(9))
    assert whole is not None
    for q in range(9):
        alone = typical_p(samples, pictures.of(np.array([q])), outside(1))
        assert alone is not None
        assert alone[0] == whole[q]
    shuffled = typical_p(samples.of(rng.permutation(80)), pictures.of(np.arange(9)[::-1]), outside(9))
    assert shuffled is not None
    assert (shuffled[::-1] == whole).all()


def test_a_sample_is_compared_with_the_others() -> None:
    rng = np.random.default_rng(4)
    samples = make(60, rng)
    inside = typical_p(samples, samples, np.arange(60))
    others = np.arange(60) != 7
    left_out = typical_p(samples.of(others), samples.of(np.array([7])), outside(1))
    assert inside is not None
    assert left_out is not None
    assert abs(inside[7] - left_out[0]) < 1e-12  # its place among 60 either way
    assert sorted(np.round(inside * 60)) == list(range(1, 61))


def test_too_few_samples_do_not_tell() -> None:
    rng = np.random.default_rng(5)
    assert typical_p(make(LEAST - 1, rng), make(3, rng, 9.0), outside(3)) is None
    found = typical_p(make(LEAST, rng), make(3, rng, 9.0), outside(3))
    assert found is not None
    assert (found < 0.05).all()


def test_pictures_of_other_content_are_found_by_their_spanned_alone() -> None:
    rng = np.random.default_rng(6)
    samples, pictures = make(100, rng), make(10, rng)
    assert pictures.cells is not None
    size = pictures.cells.std(axis=1, keepdims=True)
    outside_the_span = rng.normal(size=pictures.cells.shape)
    outside_the_span *= size / outside_the_span.std(axis=1, keepdims=True)
    other = Described(pictures.kl, pictures.t, outside_the_span + pictures.cells.mean(axis=1, keepdims=True))
    found = typical_p(samples, other, outside(10))
    same = typical_p(samples, pictures, outside(10))
    assert found is not None
    assert same is not None
    assert (found < 0.05).all()
    assert (same > 0.05).sum() >= 8


def test_leverage_is_that_of_ridge_regression() -> None:
    """h_i: by how much the fit of picture i changes with its own target, brute force."""
    cells = np.random.default_rng(7).normal(120, 30, (40, 8))
    x = cells - cells.mean(axis=0)
    ridge = np.square(x).sum() / 40
    hat = x @ np.linalg.solve(x.T @ x + ridge * np.eye(8), x.T)
    h = np.array([(hat @ np.eye(40)[i])[i] for i in range(40)])
    assert np.allclose(_spanned(cells)[:, 0], np.log(h / (1 - h)))


def test_flat_pictures_and_equal_samples_have_finite_spanneds() -> None:
    assert np.isfinite(_spanned(np.full((5, 9), 7.0))).all()
    assert _spanned(np.empty((5, 0))).shape == (5, 0)


def test_cells_are_means_of_pixels() -> None:
    images = np.random.default_rng(8).integers(0, 256, (2, 3, 40, 8), np.uint8)
    found = coarse(images).reshape(2, 3, CELLS, 8)  # 40 rows in 16 cells of 2 or 3; 8 columns as they are
    edges = np.linspace(0, 40, CELLS + 1).astype(int)
    for i, (low, high) in enumerate(pairwise(edges)):
        assert np.allclose(found[:, :, i], images[:, :, low:high].mean(axis=2))
