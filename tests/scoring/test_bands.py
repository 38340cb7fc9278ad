"""Noise bands: what is parsed, what is refused, and that bands add up to the score."""

from itertools import pairwise

import numpy as np
import pytest

from guda.errors import GudaError
from guda.scoring.bands import Bands, by_band, default_edges
from guda.scoring.estimate import difference


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "write FROM:TO"), ("100", "write FROM:TO"), ("a:b", "write FROM:TO"), ("1:2:3", "write FROM:TO"),
        ("1:", "write FROM:TO"), ("1:50=", "write FROM:TO"), ("1:50=x", "write FROM:TO"), ("1:50=nan", "write FROM:TO"),
        ("1:50=inf", "write FROM:TO"), ("1:50=-1", "write FROM:TO"), ("1:50,,60:70", "write FROM:TO"),
        ("1.5:50", "write FROM:TO"), ("-1:50", "outside this schedule"), ("50:101", r"TO <= 100"),
        ("50:50", "outside this schedule"), ("60:50", "outside this schedule"),
        ("1:50,49:60", "1:50 and 49:60 overlap"),
        ("40:60,1:50", "overlap"), ("1:50,1:50", "overlap"),
    ],
)  # fmt: skip
def test_bad_bands_are_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(GudaError, match=message):
        Bands.parse(text, 100)


def test_factors_names_and_order() -> None:
    bands = Bands.parse("50:100, 1:10=0.25", 100)
    assert bands.name == "1:10=0.25,50:100"
    assert bands.slug == "1-10x0.25_50-100"
    factors = bands.factors(100)
    assert factors[0] == 0
    assert (factors[1:10] == 0.25).all()
    assert (factors[10:50] == 0).all()
    assert (factors[50:] == 1).all()
    assert Bands.parse(bands.name, 100) == bands


@pytest.mark.parametrize("T", [20, 100, 1000, 4000])
def test_bands_partition_the_schedule_and_sum_exactly_to_the_score(T: int) -> None:
    edges = default_edges(T)
    assert edges[0] == 0
    assert edges[-1] == T
    assert list(edges) == sorted(set(edges))
    rng = np.random.default_rng(T)
    t = rng.integers(1, T, (4, 7, 9))
    d = rng.integers(-1000, 1000, t.shape).astype(float)  # whole numbers over 4 rounds: sums have no rounding
    parts = by_band(d, t, edges)
    assert parts.shape == (len(edges) - 1, 7)
    np.testing.assert_array_equal(parts.sum(axis=0), difference(d).score)
    for b, (low, high) in enumerate(pairwise(edges)):
        inside = np.where((low <= t) & (t < high), d, 0)
        np.testing.assert_array_equal(parts[b], difference(inside).score)
