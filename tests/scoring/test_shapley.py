"""Shapley values against brute force over all orders: efficiency, symmetry, null group, shells; trained coalitions."""

from __future__ import annotations

from itertools import pairwise, permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guda.methods.subsets import draw_pair
from guda.scoring.estimate import t_quantile
from guda.scoring.shapley import by_orders, coalitions, exact, kernel_regression, order, size_terms, walk

games = st.integers(0, 2**31)


def table(parcels: tuple[int, ...], seed: int) -> dict[tuple[int, ...], float]:
    rng = np.random.default_rng(seed)
    return {n: float(rng.normal()) for n in product(*(range(p + 1) for p in parcels))}


def values(parcels: tuple[int, ...], v: dict[tuple[int, ...], float]) -> np.ndarray:
    return np.array([v[tuple(n)] for n in coalitions(parcels)])


def brute(parcels: tuple[int, ...], v: dict[tuple[int, ...], float]) -> np.ndarray:
    every = [k for k, n in enumerate(parcels) for _ in range(n)]
    shares, n = np.zeros(len(parcels)), 0
    for one in permutations(every):
        passed = walk(np.array(one), len(parcels))
        for k, (before, after) in zip(one, pairwise(passed), strict=True):
            shares[k] += v[tuple(after)] - v[tuple(before)]
        n += 1
    return shares / n


@pytest.mark.parametrize("parcels", [(1, 1, 1), (1, 1, 1, 1, 1), (2, 1, 1), (3, 2), (1, 2, 3)])
def test_exact_shares_are_the_mean_over_all_orders(parcels: tuple[int, ...]) -> None:
    v = table(parcels, 0)
    assert exact(parcels) @ values(parcels, v) == pytest.approx(brute(parcels, v))


@settings(max_examples=25, deadline=None)
@given(games, st.lists(st.integers(1, 2), min_size=2, max_size=5))
def test_shares_add_up_to_the_whole(seed: int, sizes: list[int]) -> None:
    parcels = tuple(sizes)
    v = table(parcels, seed)
    total = v[parcels] - v[(0,) * len(parcels)]
    assert (exact(parcels) @ values(parcels, v)).sum() == pytest.approx(total)


@settings(max_examples=25, deadline=None)
@given(games)
def test_a_group_that_adds_nothing_gets_nothing_and_equals_get_the_same(seed: int) -> None:
    inner = table((1, 1, 1), seed)
    null = {(*n, m): v for n, v in inner.items() for m in (0, 1)}
    shares = exact((1, 1, 1, 1)) @ values((1, 1, 1, 1), null)
    assert shares[3] == pytest.approx(0, abs=1e-12)
    assert shares[:3] == pytest.approx(exact((1, 1, 1)) @ values((1, 1, 1), inner))
    alike = {n: inner[tuple(sorted(n[:2])) + n[2:]] for n in inner}  # the first two groups are exchangeable
    shares = exact((1, 1, 1)) @ values((1, 1, 1), alike)
    assert shares[0] == pytest.approx(shares[1])


@settings(max_examples=25, deadline=None)
@given(games)
def test_a_group_split_into_shells_gains_nothing(seed: int) -> None:
    """Two parcels of one group, or one parcel each of two groups of the same images: what the coalitions are worth
    depends on how many of the parcels are there, whoever they are registered to."""
    whole = table((2, 1, 2), seed)
    split = {(a, b, *rest): v for (n, *rest), v in whole.items() for a in (0, 1) for b in (0, 1) if a + b == n}
    one, shells = exact((2, 1, 2)) @ values((2, 1, 2), whole), exact((1, 1, 1, 2)) @ values((1, 1, 1, 2), split)
    assert shells[0] + shells[1] == pytest.approx(one[0])
    assert shells[2:] == pytest.approx(one[1:])


def test_whole_groups_can_gain_by_shells() -> None:
    """Why parcels: a veto group of one parcel that splits in two, both of which are needed, gets 2/3 instead of 1/2."""
    whole = {(a, b): float(a and b) for a in (0, 1) for b in (0, 1)}
    split = {(a, b, c): float(a and b and c) for a in (0, 1) for b in (0, 1) for c in (0, 1)}
    assert (exact((1, 1)) @ values((1, 1), whole))[0] == pytest.approx(1 / 2)
    assert (exact((1, 1, 1)) @ values((1, 1, 1), split))[:2].sum() == pytest.approx(2 / 3)


def test_orders_agree_with_exact_within_their_error_and_stop_picture_by_picture() -> None:
    parcels, pictures = (2, 1, 1, 1), 40
    every = coalitions(parcels)
    v = np.random.default_rng(3).normal(size=(len(every), 1, pictures, 1))
    v[-1] += 5
    place = {tuple(n): i for i, n in enumerate(every)}

    def value(asked: np.ndarray) -> np.ndarray:
        return v[[place[tuple(n)] for n in asked]]

    def size(x: np.ndarray) -> np.ndarray:
        return x.mean(axis=-3).sum(axis=-1)

    truth = np.einsum("gn,nq->gq", exact(parcels), v[:, 0, :, 0])
    found = by_orders(parcels, value, size, tolerance=0.03, most=400)
    shares = size(found.shares)
    assert shares.sum(axis=0) == pytest.approx(v[-1, 0, :, 0] - v[0, 0, :, 0])
    by_seed = [by_orders(parcels, lambda n: value(n)[:, :, :2], size, 0.0, 32, seed=seed) for seed in range(60)]
    off = np.stack([(size(f.shares) - truth[:, :2]) / np.sqrt(f.variance) for f in by_seed])
    assert 0.85 < off.std() < 1.2
    assert len(set(found.orders.tolist())) > 1
    few = by_orders(parcels, lambda n: value(n)[:, :, :7], size, tolerance=0.03, most=400)
    assert np.array_equal(few.shares, found.shares[:, :, :7])  # whatever pictures it comes with
    one = order(parcels, 6)
    assert np.array_equal(order(parcels, 7), one[::-1])
    assert np.array_equal(np.bincount(one), parcels)


def test_trained_coalitions_give_the_shapley_value_of_any_game_if_all_are_there() -> None:
    groups = 5
    v = table((1,) * groups, 9)
    every = coalitions((1,) * groups).astype(bool)
    first = every[1 : 2 ** (groups - 1)]  # each pair once, without nothing and all
    of = np.array([[v[tuple(r)] - v[tuple(1 - r)]] for r in first.astype(int)])
    total = np.array([v[(1,) * groups] - v[(0,) * groups]])
    found = kernel_regression(first, of, total)
    assert found.shares[0] == pytest.approx(brute((1,) * groups, v))


def test_trained_coalitions_add_up_and_their_errors_cover() -> None:
    groups, pairs, repeats = 6, 48, 1500
    rng = np.random.default_rng(1)
    inside = np.stack([draw_pair(np.eye(groups, dtype=bool), 0, p) for p in range(pairs)])
    b = rng.normal(size=groups)
    noise = rng.normal(size=(pairs, repeats))
    z = np.where(inside, 1.0, -1.0)
    found = kernel_regression(inside, (z @ b)[:, None] + noise, np.full(repeats, b.sum()))
    assert found.shares.sum(axis=1) == pytest.approx(np.full(repeats, b.sum()))
    error = np.sqrt(np.diagonal(found.covariance, axis1=1, axis2=2))
    covered = (np.abs(found.shares - b) < 2 * error).mean()
    assert 0.93 < covered < 0.985
    assert np.allclose(found.covariance.sum(axis=(1, 2)), 0, atol=1e-9)  # the sum is fixed


@pytest.mark.parametrize(("groups", "pairs"), [(4, 12), (6, 24), (10, 64)])
@pytest.mark.parametrize("nothing", [0.0, 1e3])
def test_what_halves_are_worth_by_their_size_does_not_decide_the_shares(
    groups: int, pairs: int, nothing: float
) -> None:  # fmt: skip
    """Values of halves are nearly those of all, and nothing is far below: then unequal halves differ by less than
    their share of the total. The shares around the even division are those of the groups all the same."""
    rng, repeats = np.random.default_rng(groups), 600
    inside = np.stack([draw_pair(np.eye(groups, dtype=bool), 0, p) for p in range(pairs)])
    b = rng.normal(size=groups)
    b -= b.mean()
    z = np.where(inside, 1.0, -1.0)
    noise = rng.normal(size=(pairs, repeats))
    found = kernel_regression(inside, (z @ b)[:, None] + noise, np.full(repeats, nothing))
    off = found.shares - nothing / groups - b
    error = np.sqrt(np.diagonal(found.covariance, axis1=1, axis2=2))
    covered = (np.abs(off) < t_quantile(0.975, found.df)[:, None] * error).mean()
    assert 0.92 < covered < 0.995
    assert off.std() < 2.5 / np.sqrt(pairs)  # without terms of size it grows with the total


@pytest.mark.parametrize("rows", [[[1, 0, 1], [0, 0, 1], [1, 1, 0], [0, 1, 0]], [[1, 0, 0], [0, 1, 0], [1, 0, 0]] * 8])
def test_a_share_that_no_pair_decides_has_an_interval_all_the_same(rows: list[list[int]]) -> None:
    inside, rng, repeats = np.array(rows, bool), np.random.default_rng(3), 2000
    b = rng.normal(size=(3, repeats))
    b -= b.mean(axis=0)
    apart = np.where(inside, 1.0, -1.0) @ b + 0.3 * rng.normal(size=(len(rows), repeats))
    found = kernel_regression(inside, apart, np.zeros(repeats))
    error = np.sqrt(np.diagonal(found.covariance, axis1=1, axis2=2))
    assert (error > 0).all()
    covered = np.abs(found.shares - b.T) < t_quantile(0.975, found.df)[:, None] * error
    assert covered.mean(axis=0).min() > 0.7  # one direction of two is guessed by the size of the other


def test_terms_of_size_are_those_that_the_pairs_can_tell_apart() -> None:
    equal = np.array([[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1], [0, 1, 1, 0]], bool)
    assert size_terms(equal).shape == (4, 0)
    unequal = np.vstack([equal, [[1, 0, 0, 0]]]).astype(bool)
    assert size_terms(unequal).tolist() == [[0.0], [0.0], [0.0], [0.0], [-2.0]]
