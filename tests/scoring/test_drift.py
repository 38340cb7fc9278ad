"""Drift and its subtraction, against loops over images."""

import numpy as np
import pytest
from scipy import stats

from guda.scoring.estimate import difference, moments, rank_columns
from guda.scoring.reference import measure_drift
from refusals import refused

RNG = np.random.default_rng(0)
GROUP = np.repeat([0, 1, 2], [4, 6, 5])
SCORE = RNG.normal(1, 2, (15, 3))
OUTSIDE = GROUP[:, None] != np.arange(3)
D = RNG.normal(0.2, 1, (3, 4, 3, 5))  # rounds, queries, groups, strata


def test_drift_is_the_mean_over_the_images_of_other_groups():
    found = measure_drift(SCORE, OUTSIDE)
    for k in range(3):
        values = [SCORE[q, k] for q in range(15) if GROUP[q] != k]
        assert found.n[k] == len(values)
        np.testing.assert_allclose(found.mean[k], np.mean(values))
        np.testing.assert_allclose(found.stderr[k], stats.sem(values))
        np.testing.assert_allclose(found.reach[k], stats.sem(values) * stats.t.ppf(0.975, len(values) - 1))


def test_drifts_measured_on_the_same_images_are_correlated_as_the_bootstrap_says():
    rng = np.random.default_rng(1)
    shared = rng.normal(0, 3, (300, 1))  # what all counterfactuals make of an image
    group = np.arange(300) % 3
    score, outside = shared + rng.normal(0, 1, (300, 3)), group[:, None] != np.arange(3)
    found = measure_drift(score, outside)
    drawn = []
    for _ in range(4000):
        some = rng.integers(0, 300, 300)
        drawn.append([score[some[group[some] != k], k].mean() for k in range(3)])
    np.testing.assert_allclose(found.cov, np.cov(np.array(drawn).T), rtol=0.15)


@pytest.mark.parametrize("rounds", [1, 3])
def test_the_shift_moves_scores_and_leaves_the_scoring_error(rounds):
    drift = measure_drift(SCORE, OUTSIDE)
    for k in range(3):
        before = difference(D[:rounds, :, k], grid=rounds == 1)
        after = difference(drift.spread(D[:rounds])[:, :, k], grid=rounds == 1)
        np.testing.assert_allclose(after.score, before.score - drift.mean[k])
        np.testing.assert_allclose(after.stderr, before.stderr)


def test_errors_are_combined_in_quadrature():
    drift = measure_drift(SCORE, OUTSIDE)
    before = vars(difference(D))
    after = drift.widen(before)
    for q in range(4):
        for k in range(3):
            others = [SCORE[i, k] for i in range(15) if GROUP[i] != k]
            own = before["hi"][q, k] - before["score"][q, k]
            reach = np.sqrt(own**2 + (stats.t.ppf(0.975, len(others) - 1) * stats.sem(others)) ** 2)
            np.testing.assert_allclose(after["stderr"][q, k] ** 2, before["stderr"][q, k] ** 2 + stats.sem(others) ** 2)
            np.testing.assert_allclose(after["hi"][q, k] - after["score"][q, k], reach)
            np.testing.assert_allclose(after["score"][q, k] - after["lo"][q, k], reach)
    single = vars(difference(D[:1]))
    assert drift.widen(single)["stderr"] is None  # one round has no error; the drift's alone would flatter


def test_ranks_see_the_shift_and_the_error_of_it():
    drift = measure_drift(SCORE, OUTSIDE)
    shifted = drift.spread(D)
    for q in range(4):
        plain, found = moments(D[:, q]), moments(shifted[:, q], drift.cov)
        np.testing.assert_allclose(found.mean, plain.mean - drift.mean)
        gap, error = found.pairwise()
        for j in range(3):
            for k in range(3):
                own = np.var(D[:, q, j] - D[:, q, k], axis=0, ddof=1).sum() / 3
                extra = drift.cov[j, j] + drift.cov[k, k] - 2 * drift.cov[j, k]
                np.testing.assert_allclose(gap[j, k], plain.mean[j] - plain.mean[k] - drift.mean[j] + drift.mean[k])
                np.testing.assert_allclose(error[j, k], np.sqrt(own + extra) if j != k else 0, atol=1e-6)
    sure = measure_drift(np.tile([0.0, 50.0, 0.0], (15, 1)), OUTSIDE)  # one group drifted far, as all images say
    drifted = D + np.array([[0], [10], [0]])  # in each of five strata
    without, subtracted = rank_columns(drifted), rank_columns(sure.spread(drifted), sure.cov)
    assert (without["p_first"][:, 1] > 0.99).all()
    np.testing.assert_allclose(subtracted["p_first"], rank_columns(D)["p_first"], atol=0.02)


def test_too_few_images():
    with refused("drift-images-too-few"):
        measure_drift(np.zeros((2, 2)), np.eye(2, dtype=bool))
