"""Sign-flip tests against scipy and closed forms; Holm against a worked example."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from guda.evaluation.intervals import EXACT, holm, sign_flip_test
from refusals import refused


def scipy_p(a: np.ndarray, b: np.ndarray) -> float:
    def mean(x: np.ndarray, y: np.ndarray, axis: int) -> np.ndarray:
        return np.asarray(np.mean(x - y, axis=axis))

    exact = {"permutation_type": "samples", "vectorized": True, "n_resamples": np.inf}
    return float(stats.permutation_test((a, b), mean, **exact).pvalue)


@pytest.mark.parametrize("seed", range(6))
def test_exact_p_is_scipys(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = 5 + seed
    a, b = rng.normal(0.4, 1, n), rng.normal(size=n)
    assert sign_flip_test(a - b) == pytest.approx(scipy_p(a, b), abs=1e-12)
    a, b = rng.integers(0, 2, n).astype(float), rng.integers(0, 2, n).astype(float)  # ties, as in Top-1
    assert sign_flip_test(a - b) == pytest.approx(scipy_p(a, b), abs=1e-12)


def test_of_equal_sizes_it_is_the_binomial_test() -> None:
    """Top-1 with one gold: d is -1, 0 or 1, and McNemar's exact test counts the 1s among those that differ."""
    for wins, losses in ((9, 2), (40, 20), (130, 100)):
        d = np.array([1.0] * wins + [-1.0] * losses + [0.0] * 50)
        exact = stats.binomtest(wins, wins + losses).pvalue
        drawn = wins + losses > EXACT
        error = 4 * np.sqrt(exact * (1 - exact) / 19_999) + 1e-4 if drawn else 1e-12
        assert sign_flip_test(d) == pytest.approx(exact, abs=error)


def test_drawn_signs_agree_with_the_normal_limit() -> None:
    d = np.random.default_rng(1).normal(0.1, 1, 400)
    z = d.sum() / np.sqrt((d**2).sum())
    assert sign_flip_test(d) == pytest.approx(2 * stats.norm.sf(abs(z)), abs=0.01)


def test_under_the_null_p_is_uniform_enough() -> None:
    rng = np.random.default_rng(2)
    p = sign_flip_test(rng.laplace(size=(500, 40)), n=999)
    assert stats.kstest(p, "uniform").pvalue > 0.01
    assert (p <= 0.05).mean() == pytest.approx(0.05, abs=0.03)


def test_shapes_signs_and_order() -> None:
    d = np.random.default_rng(3).normal(0.2, 1, (2, 3, 60))
    p = sign_flip_test(d)
    assert p.shape == (2, 3)
    assert np.array_equal(p, sign_flip_test(-d))  # two-sided
    assert np.array_equal(p, sign_flip_test(3 * d))
    assert p[1, 2] == sign_flip_test(d[1, 2])  # whatever else is in the table
    assert sign_flip_test(np.zeros(30)) == 1.0
    assert sign_flip_test(np.full(200, 1.0)) == pytest.approx(1 / 20_000)  # never 0
    with refused("values-not-finite"):
        sign_flip_test([0.1, np.nan])
    with refused("queries-too-few", match="at least 1 query"):
        sign_flip_test(np.zeros((3, 0)))


def test_holm_worked_example() -> None:
    # sorted .005 .01 .03 .04 times 4 3 2 1 = .02 .03 .06 .04, and none below its predecessor
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.5]) == pytest.approx([1.0, 1.0])
    assert holm([0.2]) == pytest.approx([0.2])
