"""What the error bars say about a ranking: pairwise errors, rank intervals, the probability of being first."""

import numpy as np
import pytest

from guda.scoring.estimate import CONTENDERS, Moments, difference, effective_df, moments, rank_columns


def with_df(mean: np.ndarray, cov: np.ndarray, df: float) -> Moments:
    """The same degrees of freedom for all differences."""
    return Moments(mean, cov, np.full(cov.shape, float(df)))


def correlated(rng: np.random.Generator, n: int, rounds: int, groups: int, strata: int) -> np.ndarray:
    """[R, n, G, S] noise: shared by the groups in part, as the same draws give it."""
    shared = rng.normal(size=(rounds, n, 1, strata))
    loading = np.linspace(-1, 2, groups)[:, None]
    return loading * shared + rng.normal(size=(rounds, n, groups, strata)) * np.linspace(0.5, 1.5, groups)[:, None]


def test_pairwise_errors_are_those_of_the_differences() -> None:
    d = correlated(np.random.default_rng(0), 1, 4, 5, 7)[:, 0] + np.arange(5)[:, None]
    found = moments(d)
    gap, error = found.pairwise()
    assert (found.df <= 7 * 3).all()
    for j in range(5):
        single = difference(d[:, [j]])
        assert found.mean[j] == pytest.approx(single.score[0])
        assert np.sqrt(found.cov[j, j]) == pytest.approx(single.stderr[0])  # type: ignore[index]
        for k in range(5):
            direct = difference((d[:, j] - d[:, k])[:, None])
            assert gap[j, k] == pytest.approx(direct.score[0], abs=1e-12)
            assert error[j, k] == pytest.approx(direct.stderr[0], abs=1e-7)  # type: ignore[index]
            apart = (d[:, j] - d[:, k]).var(axis=0, ddof=1) / 4
            assert found.df[j, k] == pytest.approx(effective_df(apart, 4))


def test_p_first_has_the_right_limits() -> None:
    clear = with_df(np.array([0.0, 50.0, 1.0]), np.eye(3), 30).p_first()
    assert clear.tolist() == [0, 1, 0]
    tie = with_df(np.array([1.0, 1.0]), np.eye(2), 30).p_first()
    assert abs(tie - 0.5).max() < 0.03
    far = with_df(np.array([1.0, 1.0, -90.0]), np.eye(3), 30).p_first()
    assert far[2] == 0
    assert abs(far[:2] - 0.5).max() < 0.03


@pytest.mark.parametrize("noise", [0.0, 1.0, 1e6])
def test_identical_counterfactuals_share_the_first_place_evenly(noise: float) -> None:
    """The same model twice has the same errors draw by draw: nothing can tell them apart, rounding must not."""
    root = np.array([[1.0, 0.3], [1.0, 0.3], [0.2, 1.0]]) * noise
    found = with_df(np.array([3.0, 3.0, -1e9]), root @ root.T, 20).p_first()
    np.testing.assert_allclose(found, [0.5, 0.5, 0])


def test_p_first_agrees_with_brute_force() -> None:
    rng = np.random.default_rng(1)
    root = rng.normal(size=(4, 4))
    cov, mean, df = root @ root.T, np.array([0.0, 0.8, 1.0, -0.5]), 6
    found = with_df(mean, cov, df).p_first()
    assert found.sum() == pytest.approx(1)
    n = 200_000
    draws = rng.multivariate_normal(np.zeros(4), cov, n) * np.sqrt(df / rng.chisquare(df, n))[:, None]
    brute = np.bincount((mean + draws).argmax(axis=1), minlength=4) / n
    assert abs(found - brute).max() < 4 * np.sqrt(0.25 / 4096) + 0.005


def test_with_more_groups_than_contenders_those_far_behind_get_zero() -> None:
    groups = CONTENDERS + 9
    mean = -np.arange(groups, dtype=float)[::-1]  # the last is the best
    found = with_df(mean, np.eye(groups) * 0.5, 40)
    p = found.p_first()
    assert p.sum() == pytest.approx(1)
    assert (p[: groups - CONTENDERS] == 0).all()
    few = with_df(mean[-CONTENDERS:], np.eye(CONTENDERS) * 0.5, 40).p_first()
    np.testing.assert_array_equal(p[-CONTENDERS:], few)
    lo, hi = found.rank_interval()
    assert (lo <= groups - np.arange(groups)).all()
    assert (groups - np.arange(groups) <= hi).all()


def test_rank_intervals_cover_the_true_ranks() -> None:
    rng = np.random.default_rng(2)
    n, groups, strata, rounds = 800, 6, 8, 3
    truth = np.array([0.0, 0.4, 1.0, 1.1, 3.0, 6.0])
    d = 0.1 * correlated(rng, n, rounds, groups, strata) + truth[:, None] / strata
    columns = rank_columns(d)
    rank = groups - np.arange(groups)
    covered = (columns["rank_lo"] <= rank) & (rank <= columns["rank_hi"])
    assert (covered.mean(axis=0) >= 0.95).all()
    assert (columns["rank_hi"] - columns["rank_lo"]).mean() < groups - 2  # and they say something
    assert (columns["rank_hi"][:, -1] == 1).mean() > 0.1
    np.testing.assert_allclose(columns["p_first"].sum(axis=1), 1)


def test_rank_intervals_narrow_to_the_rank_and_widen_to_everything() -> None:
    mean = np.array([3.0, 1.0, 2.0])
    for scale, lo, hi in ((1e-9, [1, 3, 2], [1, 3, 2]), (1e9, [1, 1, 1], [3, 3, 3])):
        found = with_df(mean, np.eye(3) * scale, 20).rank_interval()
        assert found[0].tolist() == lo
        assert found[1].tolist() == hi


def test_one_round_has_no_ranks_and_one_group_no_rivals() -> None:
    assert rank_columns(np.ones((1, 2, 3, 4))) == {"rank_lo": None, "rank_hi": None, "p_first": None}
    alone = rank_columns(np.random.default_rng(0).normal(size=(2, 3, 1, 4)))
    assert (alone["rank_lo"] == 1).all()
    assert (alone["rank_hi"] == 1).all()
    np.testing.assert_allclose(alone["p_first"], 1)
