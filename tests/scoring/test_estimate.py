"""Standard errors and intervals: coverage measured on data whose truth is known."""

import numpy as np
import pytest
from scipy import stats

from guda.scoring.estimate import difference


def test_score_is_the_sum_over_strata_of_the_mean_over_rounds_counterfactual_minus_full() -> None:
    """By hand: two rounds, one query, two strata."""
    full = np.array([[[1.0, 10.0]], [[2.0, 20.0]]])
    without = np.array([[[4.0, 11.0]], [[7.0, 25.0]]])  # d = 3, 1; 5, 5
    found = difference(without - full)
    assert found.score.tolist() == [4 + 3]  # positive: the model explains it worse without the group
    assert found.stderr == pytest.approx([np.sqrt((2 + 8) / 2)])
    df = (1 + 4) ** 2 / (1**2 + 4**2)  # Welch and Satterthwaite: variances 1 and 4 of the strata's means
    reach = stats.t.ppf(0.975, np.floor(10 * df) / 10) * np.sqrt(5)
    assert found.lo == pytest.approx([7 - reach])
    assert found.hi == pytest.approx([7 + reach])
    assert difference(full - without).score.tolist() == [-7]


@pytest.mark.parametrize("rounds", [2, 3])
@pytest.mark.parametrize("sizes", [np.ones(12), np.r_[1, np.zeros(11)], np.r_[5, np.ones(11)], 0.6 ** np.arange(12)])
def test_intervals_cover_whatever_stratum_dominates(rounds: int, sizes: np.ndarray) -> None:
    """S (R - 1) degrees of freedom would cover .73 where one stratum has all the variance and there are two rounds."""
    d = np.random.default_rng(0).normal(size=(rounds, 20_000, 12)) * sizes
    found = difference(d)
    assert found.lo is not None
    assert found.hi is not None
    assert 0.93 < ((found.lo <= 0) & (found.hi >= 0)).mean() < 0.985


def test_noise_that_both_models_share_cancels() -> None:
    rng = np.random.default_rng(0)
    full = rng.normal(size=(3, 5, 8)) * 1e6
    found = difference((full + 2.0) - full)
    np.testing.assert_allclose(found.score, 16, rtol=1e-6)
    np.testing.assert_allclose(found.stderr, 0, atol=1e-6)


def test_one_round_of_random_timesteps_has_no_error_model() -> None:
    found = difference(np.ones((1, 2, 5)))
    assert found.score.tolist() == [5, 5]
    assert found.stderr is found.lo is found.hi is None


@pytest.mark.parametrize(("strata", "rounds"), [(5, 2), (10, 3), (40, 2)])
def test_student_intervals_cover_95_percent(strata: int, rounds: int) -> None:
    rng = np.random.default_rng(strata)
    n = 6000
    means = rng.normal(size=strata)
    d = rng.normal(means, 1.0, size=(rounds, n, strata))
    found = difference(d)
    assert found.lo is not None
    assert found.hi is not None
    inside = (found.lo <= means.sum()) & (means.sum() <= found.hi)
    assert (
        0.938 < inside.mean() < 0.985
    )  # equal strata: degrees of freedom from few rounds are too few, on the safe side


def test_normal_quantiles_would_under_cover_at_5_strata_by_2_rounds() -> None:
    d = np.random.default_rng(0).normal(size=(2, 6000, 5))
    found = difference(d)
    inside = np.abs(found.score) <= stats.norm.ppf(0.975) * found.stderr
    assert 0.87 < inside.mean() < 0.91


def test_stderr_is_unbiased_in_the_square_with_unequal_strata() -> None:
    rng = np.random.default_rng(1)
    sigma = np.array([5.0, 1.0, 0.2, 3.0])
    d = rng.normal(size=(3, 20000, 4)) * sigma
    found = difference(d)
    assert found.stderr is not None
    assert (found.stderr**2).mean() == pytest.approx((sigma**2).sum() / 3, rel=0.03)
    assert found.score.var() == pytest.approx((sigma**2).sum() / 3, rel=0.03)


# ---- one draw per timestep of the paper's grid --------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["level", "falling", "rising", "first only", "last only", "two"])
def test_the_grids_standard_error_is_conservative_whatever_the_variances(shape: str) -> None:
    """The variance falls steeply with t, and an end term is in one successive difference only."""
    sigma = {
        "level": np.ones(60), "falling": 1 / np.arange(1, 61), "rising": np.arange(1, 61) / 60.0,
        "first only": np.eye(60)[0] + 1e-3, "last only": np.eye(60)[-1] + 1e-3, "two": np.array([1.0, 0.1]),
    }[shape]  # fmt: skip
    d = np.random.default_rng(0).normal(size=(1, 20000, len(sigma))) * sigma
    found = difference(d, grid=True)
    assert found.stderr is not None
    assert (found.stderr**2).mean() > 0.97 * (sigma**2).sum()
    if shape in ("level", "rising"):
        assert (found.stderr**2).mean() < 1.1 * (sigma**2).sum()  # and not absurdly so


def test_the_grids_standard_error_counts_a_trend_as_noise() -> None:
    trend = np.linspace(0, 50, 11)
    d = np.random.default_rng(0).normal(trend, 1.0, size=(1, 4000, 11))
    found = difference(d, grid=True)
    assert found.lo is not None
    assert found.hi is not None
    assert ((found.lo <= trend.sum()) & (trend.sum() <= found.hi)).mean() > 0.99


def test_more_rounds_on_the_grid_use_the_variance_over_rounds() -> None:
    d = np.random.default_rng(0).normal(np.linspace(0, 50, 11), 1.0, size=(4, 500, 11))
    a, b = difference(d, grid=True), difference(d)
    np.testing.assert_array_equal(a.stderr, b.stderr)  # type: ignore[arg-type]
