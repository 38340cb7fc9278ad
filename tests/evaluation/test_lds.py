"""The linear datamodeling score: what additive values, noise and reversed scores must give; its interval covers."""

from __future__ import annotations

import numpy as np
import pytest

from guda.evaluation.lds import cross_fitted, lds, sums
from guda.methods.subsets import draw_pair


def halves(pairs: int, groups: int, seed: int = 0) -> np.ndarray:
    first = np.stack([draw_pair(np.eye(groups, dtype=bool), seed, p) for p in range(pairs)])
    return np.stack([first, ~first], axis=1).reshape(2 * pairs, groups)


def test_true_scores_of_additive_values_reach_one_and_reversed_ones_minus_one() -> None:
    inside, b = halves(16, 6), np.random.default_rng(0).normal(size=(5, 6))
    values = sums(b, inside).T
    assert lds(sums(b, inside), values).mean == pytest.approx(1)
    assert lds(sums(-b, inside), values).mean == pytest.approx(-1)
    # what a model has that no group explains, and the picture's own level, change no order
    assert lds(sums(2 * b, inside), values + 7.0).mean == pytest.approx(1)


def test_cross_fitted_predictions_have_not_seen_what_they_predict() -> None:
    inside, rng = halves(24, 6), np.random.default_rng(1)
    b = rng.normal(size=(4, 6))
    values = sums(b, inside).T
    assert np.allclose(cross_fitted(inside, values), values.T)
    moved = values.copy()
    moved[6:8] += 100 * rng.normal(size=(2, 4))  # pair 3
    before, after = cross_fitted(inside, values), cross_fitted(inside, moved)
    fold = np.arange(24) % 8 == 3
    assert np.allclose(after[:, np.repeat(fold, 2)], before[:, np.repeat(fold, 2)])
    assert not np.allclose(after[:, ~np.repeat(fold, 2)], before[:, ~np.repeat(fold, 2)])


def test_noise_alone_has_no_lds_and_its_interval_says_so() -> None:
    """All pictures meet the same subsets: their common luck must be in the interval."""
    rng, inside, covered = np.random.default_rng(2), halves(32, 8), []
    for _ in range(60):
        luck = rng.normal(size=(64, 1)) + 0.3 * rng.normal(size=(64, 30))
        scores = rng.normal(size=(1, 8)) + 0.3 * rng.normal(size=(30, 8))
        found = lds(sums(scores, inside), luck)
        covered.append(found.lo <= 0 <= found.hi)
    assert np.mean(covered) > 0.85
