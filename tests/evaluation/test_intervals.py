"""Bootstrap intervals: coverage, pairing, determinism, and when seeds are resampled.

Sign-flip tests against scipy and closed forms; Holm against a worked example.

Calibration: exact intervals against closed forms and brute force, bins counted by hand.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.stats import binom

from guda.errors import GudaError
from guda.evaluation import intervals as bootstrap
from guda.evaluation.intervals import (
    EDGES,
    EXACT,
    Figure,
    bin_of,
    bootstrap_mean,
    by_kind,
    by_probability,
    clopper_pearson,
    holm,
    resampled_means,
    sign_flip_test,
)
from refusals import refused

RNG = np.random.default_rng(0)


def test_close_to_the_normal_interval() -> None:
    values = np.random.default_rng(3).normal(2.0, 1.0, 400)
    found = bootstrap_mean(values, n=4000)
    half = 1.96 * values.std() / np.sqrt(400)
    assert found.mean == values.mean()
    assert found.lo == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert found.hi == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_coverage_of_a_proportion() -> None:
    rng = np.random.default_rng(4)
    hits = 0
    for _ in range(300):
        found = bootstrap_mean(rng.random(120) < 0.7, n=300)
        hits += found.lo <= 0.7 <= found.hi
    assert 0.90 <= hits / 300 <= 0.98


def test_level_widens_the_interval() -> None:
    values = RNG.normal(size=50)
    narrow, wide = bootstrap_mean(values, level=0.5), bootstrap_mean(values, level=0.99)
    assert wide.lo < narrow.lo < narrow.hi < wide.hi


def test_same_seed_same_interval_other_seed_other_interval() -> None:
    values = RNG.normal(size=60)
    assert bootstrap_mean(values, seed=1) == bootstrap_mean(values, seed=1)
    assert bootstrap_mean(values, seed=1) != bootstrap_mean(values, seed=2)


def test_two_methods_meet_the_same_resamples() -> None:
    a = RNG.normal(size=(1, 80))
    alone = resampled_means(a)
    assert resampled_means(a + 0.25) == pytest.approx(alone + 0.25)
    beside_others = resampled_means(np.stack([RNG.normal(size=(1, 80)), a]))
    assert beside_others[:, 1] == pytest.approx(alone)


def test_query_resamples_do_not_depend_on_the_number_of_seeds() -> None:
    a = RNG.normal(size=80)
    assert resampled_means(np.stack([a] * 5)) == pytest.approx(resampled_means(a[None]))


def test_difference_is_paired() -> None:
    a = RNG.normal(size=200)
    b = a - 0.05 + RNG.normal(size=200) * 0.01
    paired = bootstrap_mean(a - b)
    assert paired.separated
    assert paired.hi - paired.lo < 0.01
    apart_a, apart_b = bootstrap_mean(a), bootstrap_mean(b)
    assert apart_a.lo < apart_b.hi  # unpaired, they overlap widely
    assert bootstrap_mean(a - a) == Figure(mean=0.0, lo=0.0, hi=0.0)
    assert not bootstrap_mean(a - a).separated


def test_difference_is_antisymmetric() -> None:
    a, b = RNG.normal(size=(2, 4, 90))
    one, other = bootstrap_mean(a - b), bootstrap_mean(b - a)
    assert (one.mean, one.lo, one.hi) == pytest.approx((-other.mean, -other.hi, -other.lo))


def test_separated_means_zero_is_left_out() -> None:
    assert Figure(mean=1, lo=0.1, hi=2).separated
    assert Figure(mean=-1, lo=-2, hi=-0.1).separated
    assert not Figure(mean=0.5, lo=-0.1, hi=1).separated
    assert not Figure(mean=0.0, lo=0.0, hi=0.0).separated


def test_two_seeds_are_averaged_and_three_are_resampled() -> None:
    queries = RNG.normal(size=300) * 0.01
    two, three = np.array([[-1.0], [1.0]]) + queries, np.array([[-1.0], [0.0], [1.0]]) + queries
    assert resampled_means(two) == pytest.approx(resampled_means(two.mean(axis=0, keepdims=True)))
    assert bootstrap_mean(two).hi < 0.01
    found = bootstrap_mean(three)  # seeds differ by far more than queries
    assert found.mean == pytest.approx(queries.mean())
    assert found.lo < -0.6
    assert found.hi > 0.6


def test_seed_variance_is_that_of_a_mean_of_seeds() -> None:
    effects = np.random.default_rng(5).normal(size=40)
    samples = resampled_means(effects[:, None] + np.zeros((40, 10)), n=4000)
    assert samples.std() == pytest.approx(effects.std() / np.sqrt(40), rel=0.05)


def test_block_size_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    values = RNG.normal(size=(3, 33))
    whole = resampled_means(values, n=101)
    monkeypatch.setattr(bootstrap, "BLOCK", 70)
    assert resampled_means(values, n=101) == pytest.approx(whole, abs=1e-12)


def test_memory_is_bounded_for_many_queries() -> None:
    import tracemalloc

    values = RNG.normal(size=(1, 10_000))
    tracemalloc.start()
    resampled_means(values, n=1000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 120e6  # all weights at once would be 80 MB, three times over


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0], "at least 2 queries"),
        ([1.0, np.nan], "NaN"),
        (np.zeros((2, 2, 2)), r"\[seeds, queries\]"),
        (np.zeros((0, 5)), "shape"),
    ],
)
def test_values_without_an_interval_are_refused(values: object, message: str) -> None:
    with pytest.raises(GudaError, match=message):
        bootstrap_mean(values)  # type: ignore[arg-type]


def test_bad_settings_are_refused() -> None:
    with refused("interval-level-invalid"):
        bootstrap_mean([1.0, 2.0], level=95)
    with refused("resamples-invalid"):
        bootstrap_mean([1.0, 2.0], n=0)


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


def test_shares_hold_what_each_retraining_says_alone() -> None:
    p = np.array([0.999] * 10 + [0.6] * 4)
    agree = np.array([True] * 9 + [False] + [True] * 2 + [False] * 2)
    alone = np.stack([np.array([True] * 10 + [False] * 4), np.array([True] * 6 + [False] * 8)])
    plain, wide = by_probability(p, agree), by_probability(p, agree, alone=alone)
    assert [(s.k, s.n, s.said) for s in plain] == [(s.k, s.n, s.said) for s in wide]
    assert [(s.lo, s.hi) for s in plain] == [clopper_pearson(2, 4), clopper_pearson(9, 10)]
    assert (wide[1].lo, wide[1].hi) == (clopper_pearson(6, 10)[0], clopper_pearson(10, 10)[1])
    assert (wide[0].lo, wide[0].hi) == (clopper_pearson(0, 4)[0], clopper_pearson(2, 4)[1])
    assert [s.seeds for s in (*plain, *wide)] == [0, 0, 2, 2]
    assert by_probability(p, agree, alone=alone[:1]) == plain  # one retraining is the mean of its seeds
    kinds = by_kind(["a"] * 10 + ["b"] * 4, agree, alone)
    assert [(s.lo, s.hi) for s in kinds] == [(s.lo, s.hi) for s in reversed(wide)]


def test_every_probability_has_its_bin() -> None:
    for p in (0.0, 0.3, 0.5, 0.8, 0.95, 0.99, 1.0):
        [share] = by_probability(np.array([p]), np.array([True]))
        assert bin_of(p) == share.claim
    assert bin_of(float("nan")) is None


def test_holm_worked_example() -> None:
    # sorted .005 .01 .03 .04 times 4 3 2 1 = .02 .03 .06 .04, and none below its predecessor
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.5]) == pytest.approx([1.0, 1.0])
    assert holm([0.2]) == pytest.approx([0.2])


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
        with pytest.raises(ValueError, match="not a share"):
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
    found = by_kind(["stands-out", "nothing", "stands-out", "close"], np.array([True, False, False, True]))
    assert [(s.claim, s.k, s.n, s.said) for s in found] == [
        ("stands-out", 1, 2, None), ("nothing", 0, 1, None), ("close", 1, 1, None)
    ]  # fmt: skip
