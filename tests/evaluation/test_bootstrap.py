"""Bootstrap intervals: coverage, pairing, determinism, and when seeds are resampled."""

from __future__ import annotations

import numpy as np
import pytest

from guda.errors import GudaError
from guda.evaluation import intervals as bootstrap
from guda.evaluation.intervals import Figure, bootstrap_mean, resampled_means
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
