"""Joint scores against sums of singles: closed forms, numpy's correlation, a bootstrap by hand."""

from __future__ import annotations

import numpy as np
import pytest

from guda.steps.pairs import ADDITIVE, HEADER, PairsFile, additivity, pair_row, pairs_table, pearson, repeatability

RNG = np.random.default_rng(0)
ONE, TWO = (RNG.normal(0.5, 1, (3, 40, 6)) for _ in range(2))  # rounds, queries, strata


def test_additive_scores_have_no_excess() -> None:
    found = additivity(ONE + TWO, ONE, TWO, n=100)
    assert np.abs(found.excess).max() < 1e-12
    assert found.difference.mean == pytest.approx(0.0, abs=1e-12)
    assert found.ratio is not None
    assert found.correlation is not None
    assert (found.ratio.lo, found.ratio.hi) == pytest.approx((1.0, 1.0))
    assert (found.correlation.mean, found.correlation.lo) == pytest.approx((1.0, 1.0))


def test_a_known_excess_is_found() -> None:
    found = additivity(1.5 * (ONE + TWO), ONE, TWO, n=200)
    total = (ONE + TWO).mean(axis=0).sum(axis=-1)
    assert found.excess == pytest.approx(0.5 * total)
    assert found.joint.mean == pytest.approx(1.5 * total.mean())
    assert found.difference.mean == pytest.approx(0.5 * total.mean())
    assert found.ratio is not None
    assert (found.ratio.mean, found.ratio.lo, found.ratio.hi) == pytest.approx((1.5, 1.5, 1.5))


def test_queries_off_are_those_whose_own_interval_leaves_out_0() -> None:
    shift = np.zeros((3, 40, 6))
    shift[:, :7] = 5.0
    noise = 0.01 * RNG.normal(size=(3, 40, 6))
    one, two = np.round(8 * ONE), np.round(8 * TWO)  # whole numbers add without rounding
    assert additivity(one + two + shift, one, two, n=20).off == 7
    assert 7 <= (additivity(ONE + TWO + shift + noise, ONE, TWO, n=20).off or 0) <= 15
    assert additivity(ONE[:1] + TWO[:1], ONE[:1], TWO[:1], n=20).off is None  # one round has no error model


def test_a_sum_that_may_be_0_has_no_ratio() -> None:
    assert additivity(ONE - TWO, ONE - 0.5, TWO * 0 - ONE.mean() + 0.5, n=50).ratio is None


def test_pearson_is_numpys_and_its_interval_a_bootstrap() -> None:
    x = RNG.normal(size=200)
    y = x + RNG.normal(size=200)
    found = pearson(x, y, n=2000)
    assert found is not None
    assert found.mean == pytest.approx(np.corrcoef(x, y)[0, 1])
    drawn = [np.corrcoef(x[i], y[i])[0, 1] for i in RNG.integers(0, 200, (2000, 200))]
    assert [found.lo, found.hi] == pytest.approx(np.quantile(drawn, [0.025, 0.975]).tolist(), abs=0.02)
    assert pearson(x, np.ones(200)) is None


def test_repeatability_is_the_mean_over_pairs_of_seeds() -> None:
    a, b, c = RNG.normal(size=(3, 50))
    expected = np.mean([np.corrcoef(p, q)[0, 1] for p, q in ((a, b), (a, c), (b, c))])
    assert repeatability([a, b, c]) == pytest.approx(expected)
    assert repeatability([a]) is None
    assert repeatability([a, np.zeros(50)]) is None


def test_rows_and_markdown() -> None:
    logo, off = additivity(ONE + TWO, ONE, TWO, n=50), additivity(2 * ONE + 2 * TWO, ONE, TWO, n=50)
    seeds = [RNG.normal(1.0, size=40), RNG.normal(2.0, size=40)]
    rows = (
        pair_row("logo", ("cat", "d|g"), off, None, seeds, 50),
        pair_row("retrack", ("cat", "d|g"), logo, off, (), 50),
    )
    found = PairsFile(queries="q", n_queries=40, seeds=[1, 2], estimand="ELBO: sum over 1 <= t <= 96", rows=rows)
    one, two = pairs_table(found).texts()
    assert len(one) == len(HEADER)
    assert one[0] == "cat + d|g, logo"
    assert ADDITIVE not in one[3]
    assert ADDITIVE in two[3]
    assert one[-1] == f"{np.corrcoef(*seeds)[0, 1]:.2f} (one seed with another)"
    assert one[-2] == f"{seeds[0].mean():+.3g}, {seeds[1].mean():+.3g}"
    assert two[-2] == "–"
    assert "queries off" not in HEADER
    text = pairs_table(found).markdown()
    assert r"cat + d\|g, retrack" in text
    assert "ELBO: sum over 1 <= t <= 96 (nats), 40 queries, 2 LOGO seeds" in text
    assert "the noise of retraining is not in the interval" in text
    assert PairsFile.model_validate(found.model_dump(mode="json")) == found
