"""The regression on halves: exact on additive values, its variance against the closed form, its intervals cover."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from guda.methods.subsets import draw_pair
from guda.scoring.datamodel import fit
from refusals import refused


def halves(pairs: int, groups: int, seed: int = 0) -> np.ndarray:
    return np.stack([draw_pair(np.eye(groups, dtype=bool), seed, p) for p in range(pairs)])


def test_additive_values_are_found_exactly() -> None:
    inside, rng = halves(24, 6), np.random.default_rng(0)
    b, b0 = rng.normal(size=(5, 6)), rng.normal(size=5)
    first, second = b0 + inside @ b.T, b0 + ~inside @ b.T
    found = fit(inside, first, second)
    assert np.allclose(found.coefficients, b)
    assert np.allclose(found.spread, 0)
    subsets = rng.random((9, 6)) < 0.5
    assert np.allclose(found.predict(subsets)[0], (b0 + subsets @ b.T).T)


def test_what_a_pair_shares_and_pairwise_interactions_cancel() -> None:
    inside, rng = halves(24, 6), np.random.default_rng(1)
    b, luck = rng.normal(size=6), rng.normal(size=24) * 100
    pairwise = rng.normal(size=(6, 6))
    z = np.where(inside, 1.0, -1.0)
    even = np.einsum("pj,jk,pk->p", z, pairwise, z) + luck
    found = fit(inside, (inside @ b + even)[:, None], (~inside @ b + even)[:, None])
    assert np.allclose(found.coefficients[0], b)


def test_the_variance_is_that_of_a_weighing_design() -> None:
    """4 sigma^2 / M for each coefficient, up to the chance correlations of the halves (P / (P - G - 1))."""
    pairs, groups, sigma, repeats = 60, 10, 3.0, 4000
    rng, inside = np.random.default_rng(2), halves(60, 10)
    noise = rng.normal(scale=sigma, size=(2, pairs, repeats))
    found = fit(inside, noise[0], noise[1])
    z = np.where(inside, 1.0, -1.0)
    exact = 2 * sigma**2 * np.diag(np.linalg.inv(z.T @ z))
    assert found.coefficients.var(axis=0) == pytest.approx(exact, rel=0.12)
    assert (found.stderr**2).mean(axis=0) == pytest.approx(exact, rel=0.05)
    closed = 4 * sigma**2 / (2 * pairs)
    assert closed < exact.mean() < closed * pairs / (pairs - groups - 1) * 1.15
    # LOGO with the same number of trainings: 2 P / G models of every group, one of each of the full model
    assert exact.mean() < sigma**2 * groups / (2 * pairs)


def test_intervals_cover_the_average_marginal_contribution() -> None:
    pairs, groups, repeats = 40, 6, 3000
    rng, inside = np.random.default_rng(3), halves(40, 6, 5)
    b = rng.normal(size=groups)
    noise = rng.normal(size=(2, pairs, repeats))
    found = fit(inside, (inside @ b)[:, None] + noise[0], (~inside @ b)[:, None] + noise[1])
    reach = stats.t.ppf(0.975, found.df)[:, None] * found.stderr
    covered = (np.abs(found.coefficients - b) < reach).mean()
    assert covered == pytest.approx(0.95, abs=0.012)


def test_the_estimand_is_banzhaf_at_half() -> None:
    """Of any game, with all pairs there are: the mean of v(S + k) - v(S) over the halves of the others."""
    groups = 5
    every = np.array([[(s >> k) & 1 for k in range(groups)] for s in range(2**groups)], bool)
    values = np.random.default_rng(4).normal(size=2**groups)
    first = every[: 2 ** (groups - 1)]  # the last group is out: each pair once
    of = {tuple(row): v for row, v in zip(every, values, strict=True)}
    v1, v2 = (np.array([[of[tuple(r)]] for r in rows]) for rows in (first, ~first))
    found = fit(first, v1, v2)
    banzhaf = []
    for k in range(groups):
        without = every[~every[:, k]]
        joined = without.copy()
        joined[:, k] = True
        banzhaf.append(np.mean([of[tuple(j)] - of[tuple(w)] for j, w in zip(joined, without, strict=True)]))
    assert np.allclose(found.coefficients[0], banzhaf)


def test_few_pairs_are_drawn_towards_zero_and_still_order_the_groups() -> None:
    pairs, groups = 16, 20
    inside, rng = halves(pairs, groups, 7), np.random.default_rng(5)
    b = np.zeros(groups)
    b[3] = 4.0
    noise = rng.normal(size=(2, pairs, 200))
    found = fit(inside, (inside @ b)[:, None] + noise[0], (~inside @ b)[:, None] + noise[1])
    assert (found.ridge > 0).all()
    assert (found.coefficients.argmax(axis=1) == 3).mean() > 0.9
    assert (found.coefficients[:, 3] < 4.5).all()
    by_rounds = np.einsum("qgp,pq->qg", found.weights, noise[0] - noise[1] + (np.where(inside, 1, -1) @ b)[:, None])
    assert np.allclose(found.coefficients, by_rounds)  # linear in the values: errors of draws pass through
    with refused("datamodel-pairs-too-few"):
        fit(inside, noise[0], noise[1], ridge=0)
