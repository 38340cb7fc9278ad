"""The randomness of training: components, errors and predictive intervals of Gaussian models that are known."""

from __future__ import annotations

import numpy as np
import pytest

from guda.scoring.estimate import rank_columns
from guda.scoring.training_noise import own_sampling, shrink, training_noise
from refusals import refused


def draw(
    rng: np.random.Generator, trainings: int, pictures: int = 60, groups: int = 6, b: float = 0.0, mixed: bool = False,
    scoring: float = 0.0,
) -> np.ndarray:  # fmt: skip
    """Scores [M, Q, G]; `mixed`: every cell has a standard deviation of its own."""
    size = np.array([0.5, 1.0, 2.0, 1.0, 3.0, 1.0])[:groups]
    cells = size * np.exp(rng.normal(0, 0.5 if mixed else 0.0, (pictures, groups)))
    mu = rng.normal(0, 5, (pictures, groups))
    shared = scoring * rng.standard_normal((pictures, groups))
    own = scoring * rng.standard_normal((trainings, pictures, groups))
    constants = b * rng.standard_normal((trainings, 1, groups))
    return np.asarray(mu + shared + own + constants + cells * rng.standard_normal((trainings, pictures, groups)))


@pytest.mark.parametrize("seen", [2, 3, 4])
@pytest.mark.parametrize(("b", "mixed", "scoring"), [(0.0, False, 0.0), (1.0, False, 0.5), (1.0, True, 0.0)])
def test_a_fresh_training_is_predicted_as_often_as_claimed(seen: int, b: float, mixed: bool, scoring: float) -> None:
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(100):
        scores = draw(rng, seen + 1, b=b, mixed=mixed, scoring=scoring)
        lo, hi = training_noise(scores[:-1]).predicted()
        hits.append(((lo <= scores[-1]) & (scores[-1] <= hi)).mean())
    assert 0.93 < np.mean(hits) < 0.97


def test_components_are_found() -> None:
    rng = np.random.default_rng(1)
    found = [training_noise(draw(rng, 4, b=2.0, scoring=1.0), sampling=1.0) for _ in range(200)]
    assert np.mean([f.constant for f in found]) == pytest.approx(4.0, rel=0.1)
    size = np.array([0.5, 1.0, 2.0, 1.0, 3.0, 1.0])
    own = np.mean([(f.own - f.sampling).mean(axis=0) for f in found], axis=0)
    np.testing.assert_allclose(own, size**2, rtol=0.1, atol=0.15)
    error = np.mean([f.stderr**2 for f in found], axis=(0, 1))
    np.testing.assert_allclose(error, (4.0 + size**2) / 4, rtol=0.25)


def test_variances_are_never_negative_and_identical_trainings_have_none() -> None:
    rng = np.random.default_rng(2)
    scores = draw(rng, 3)
    found = training_noise(scores, sampling=1e6)  # all that differs is sampling error
    assert (found.variance >= 0).all()
    assert (found.constant >= 0).all()
    same = training_noise(np.repeat(scores[:1], 3, axis=0))
    assert same.stderr.max() < 1e-12
    np.testing.assert_allclose(same.predicted(), [scores[0], scores[0]])


def test_answers_do_not_depend_on_the_order_of_trainings_pictures_or_groups() -> None:
    scores = draw(np.random.default_rng(3), 4, b=1.0, mixed=True)
    found = training_noise(scores)
    pictures, groups = np.random.default_rng(4).permutation(60), np.array([5, 2, 0, 1, 4, 3])
    other = training_noise(scores[::-1][:, pictures][:, :, groups])
    np.testing.assert_allclose(other.stderr, found.stderr[pictures][:, groups])
    np.testing.assert_allclose(other.predicted()[0], found.predicted()[0][pictures][:, groups])
    np.testing.assert_allclose(other.covariance(0)[0], found.covariance(pictures[0])[0][np.ix_(groups, groups)])


def test_one_picture_has_an_answer_too() -> None:
    found = training_noise(draw(np.random.default_rng(5), 2, pictures=1))
    assert np.isfinite(found.predicted()).all()
    assert (found.stderr > 0).all()
    assert (found.constant == 0).all()


def test_one_training_is_refused() -> None:
    with refused("trainings-too-few"):
        training_noise(np.zeros((1, 3, 2)))


def test_sampling_error_that_trainings_share_is_not_their_own() -> None:
    rng = np.random.default_rng(6)
    rounds, pictures, groups, strata = 400, 4, 2, 3
    shared = 5 * rng.standard_normal((1, rounds, pictures, groups, strata))
    own = 2 * rng.standard_normal((3, rounds, pictures, groups, strata))
    np.testing.assert_allclose(own_sampling(shared + own), strata * 4 / rounds, rtol=0.15)
    assert (own_sampling((shared + own)[:, :1]) == 0).all()  # one round has no error model


def test_shrinking_weighs_by_what_the_variances_show() -> None:
    rng = np.random.default_rng(7)
    alike, df = shrink(rng.chisquare(3, 2000) / 3, 3.0)
    np.testing.assert_allclose(alike, 1.0, atol=0.1)
    assert df.min() > 100
    true = 6 / rng.chisquare(6, 4000)
    found, df = shrink(true * rng.chisquare(3, 4000) / 3, 3.0)
    assert df[0] == pytest.approx(9, abs=1.5)
    assert np.log(found / true).std() < np.log(true).std()


def test_ranks_contain_the_randomness_of_training() -> None:
    rng = np.random.default_rng(8)
    d = np.array([1.0, 0.6, -2.0])[None, None, :, None] + 1e-3 * rng.standard_normal((3, 1, 3, 4))
    sure = rank_columns(d)
    assert sure["p_first"][0, 0] > 0.99
    cov, df = np.diag([1.0, 1.0, 1.0]), np.full((3, 3), 4.0)
    unsure = rank_columns(d, training=lambda q: (cov, df))
    assert 0.6 < unsure["p_first"][0, 0] < 0.99
    assert unsure["rank_hi"][0, 0] > sure["rank_hi"][0, 0]
    together = rank_columns(d, training=lambda q: (np.ones((3, 3)), df))  # all groups move alike: the order stays
    assert together["p_first"][0, 0] > 0.99
