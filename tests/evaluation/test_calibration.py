"""Calibration: exact intervals against closed forms and brute force, bins counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from guda.evaluation.calibration import EDGES, by_kind, by_probability, clopper_pearson


@pytest.mark.parametrize("n", [1, 7, 50])
def test_none_and_all_have_closed_forms(n):
    assert clopper_pearson(0, n) == pytest.approx((0.0, 1 - 0.025 ** (1 / n)))
    assert clopper_pearson(n, n) == pytest.approx((0.025 ** (1 / n), 1.0))


@pytest.mark.parametrize(("k", "n"), [(1, 4), (9, 10), (191, 210)])
def test_ends_are_where_the_tails_of_the_binomial_are_alpha_half(k, n):
    lo, hi = clopper_pearson(k, n)
    assert binom.sf(k - 1, n, lo) == pytest.approx(0.025)
    assert binom.cdf(k, n, hi) == pytest.approx(0.025)
    assert lo < k / n < hi


def test_it_covers_at_least_its_level():
    for p in (0.03, 0.5, 0.91):
        inside = sum(
            binom.pmf(k, 20, p) for k in range(21) if clopper_pearson(k, 20)[0] <= p <= clopper_pearson(k, 20)[1]
        )
        assert inside >= 0.95


def test_no_share_is_refused():
    for k, n in ((0, 0), (3, 2), (-1, 2)):
        with pytest.raises(ValueError, match="no share"):
            clopper_pearson(k, n)


def test_bins_take_each_claim_once_and_skip_the_empty():
    p = np.array([0.3, 0.5, 0.79, 0.995, 1.0, np.nan, 0.99])
    agree = np.array([False, True, False, True, True, True, False])
    found = by_probability(p, agree)
    assert [(s.claim, s.k, s.n) for s in found] == [("0-50 %", 0, 1), ("50-80 %", 1, 2), ("99-100 %", 2, 3)]
    assert [s.said for s in found] == pytest.approx([0.3, 0.645, (0.995 + 1 + 0.99) / 3])
    assert sum(s.n for s in by_probability(np.array(EDGES), np.ones(len(EDGES), bool))) == len(EDGES)


def test_a_calibrated_claim_is_inside_its_interval_and_a_boast_is_not():
    rng = np.random.default_rng(0)
    p = rng.uniform(0.5, 1.0, 4000)
    honest, boast = rng.random(4000) < p, rng.random(4000) < p / 2
    assert all(s.lo <= s.said <= s.hi for s in by_probability(p, honest))
    assert all(s.hi < s.said for s in by_probability(p, boast))


def test_by_kind_keeps_the_kinds_apart():
    found = by_kind(["clear", "none", "clear", "tied"], np.array([True, False, False, True]))
    assert [(s.claim, s.k, s.n, s.said) for s in found] == [
        ("clear", 1, 2, None), ("none", 0, 1, None), ("tied", 1, 1, None)
    ]  # fmt: skip
