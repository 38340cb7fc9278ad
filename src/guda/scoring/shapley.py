"""Shapley values: what each group's images add to a value, on average over all orders in which they could arrive.

Players are parcels: group k consists of N_k parcels of about equally many images, P = sum N_k. A coalition is how many
parcels of each group are there, n = (n_1..n_G), and v(n) its value. The share of a group is the sum over its parcels:

    share_k = sum over n with n_k < N_k of  w_k(n) (v(n + e_k) - v(n)),
    w_k(n)  = (N_k - n_k) prod_j C(N_j, n_j)  |n|! (P - |n| - 1)! / P!

With one parcel per group this is the Shapley value of the groups. With parcels of equal size it is the faithful group
Shapley value (Lee et al., 2025): a group that is registered as two shells has the same parcels under two names, and
the two together get what the one got. Shares add up to v(all) - v(nothing); they may be negative.

`exact` is that sum, a linear map of all values; `Orders` estimates it from random orders of the parcels, each with its
reverse, whose mean is one draw: every order adds up to v(all) - v(nothing) by itself.

Where models of some coalitions were trained, and not of all (halves of the groups, in complementary pairs), the Shapley
value is the weighted least-squares fit (`kernel_regression`)

    min over s, sum_k s_k = T, of sum over pairs  q(S) ( v(S) - v(complement) - sum_k z_k s_k - g(m) )^2
    q(S) = (G - 1) / ( C(G, |S|) |S| (G - |S|) )  over the probability of drawing S,      T = v(all) - v(nothing),
    z_k = +1 in S or -1,   m = sum_k z_k,   g(m) = c_1 m + c_3 m^3

with every coalition, and an estimate of it with some. g is what a half is worth by its size alone. With every coalition
it changes nothing, because it is orthogonal to how s divides T. With some it is needed: nothing is far below a half, so
halves of unequal size differ by much less than m T / G, and without g that gap, and not the groups, would decide the
shares. Errors by leaving out one pair at a time, which contains the randomness of training and of the choice of
coalitions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import comb, prod

import numpy as np
from scipy.special import gammaln

from guda.diffusion.noise import generator
from guda.errors import GudaError
from guda.scoring.datamodel import ENOUGH, left_out_ridge, signs

EXACT = 4096  # coalitions up to which all are valued: 12 groups of one parcel


def count_coalitions(parcels: Sequence[int]) -> int:
    return prod(n + 1 for n in parcels)


def coalitions(parcels: Sequence[int]) -> np.ndarray:
    """int [N, G]: every coalition, nothing first, all last."""
    return np.array(list(product(*(range(n + 1) for n in parcels))), np.int64).reshape(-1, len(parcels))


def exact(parcels: Sequence[int]) -> np.ndarray:
    """[G, N]: shares are this times the values of `coalitions(parcels)`."""
    sizes = np.array(parcels, np.int64)
    every = coalitions(parcels)
    total, size = int(sizes.sum()), every.sum(axis=1)
    ways = sum(gammaln(n + 1) - gammaln(every[:, k] + 1) - gammaln(n - every[:, k] + 1) for k, n in enumerate(sizes))
    steps = np.array([prod(int(n) + 1 for n in sizes[k + 1 :]) for k in range(len(sizes))])  # from n to n + e_k
    shares = np.zeros((len(sizes), len(every)))
    for k, n in enumerate(sizes):
        before = np.flatnonzero(every[:, k] < n)
        weight = (n - every[before, k]) * np.exp(
            ways[before] + gammaln(size[before] + 1) + gammaln(total - size[before]) - gammaln(total + 1)
        )
        shares[k, before] -= weight
        shares[k, before + steps[k]] += weight
    return shares


def order(parcels: Sequence[int], number: int, seed: int = 0) -> np.ndarray:
    """int [P]: the group of each parcel in the order number `number`; of 2m + 1 the reverse of 2m."""
    every = np.repeat(np.arange(len(parcels)), parcels)
    drawn = generator(seed, "order of parcels", number // 2).permutation(every)
    return drawn if number % 2 == 0 else drawn[::-1]


def walk(groups: np.ndarray, n_groups: int) -> np.ndarray:
    """int [P + 1, G]: the coalitions that an order passes, from nothing to all."""
    arrived = np.zeros((len(groups) + 1, n_groups), np.int64)
    arrived[np.arange(1, len(groups) + 1), groups] = 1
    return arrived.cumsum(axis=0)


@dataclass(frozen=True, eq=False)
class Estimated:
    shares: np.ndarray  # [G, ...]: of whatever the values are arrays of
    variance: np.ndarray  # [G, Q]: of the mean over orders, of what `size` makes of the values
    orders: np.ndarray  # int [Q]: pairs of orders behind each


def by_orders(
    parcels: Sequence[int], value: Callable[[np.ndarray], np.ndarray], size: Callable[[np.ndarray], np.ndarray],
    tolerance: float, most: int, batch: int = 16, seed: int = 0,
) -> Estimated:  # fmt: skip
    """Shares from pairs of random orders, picture by picture until the standard error of every share is at most
    `tolerance` of |v(all) - v(nothing)|, or `most` pairs were drawn.

    `value`: coalitions int [N, G] -> values [N, R, Q, S]; `size`: sums up [..., R, Q, S] -> [..., Q]. What a picture
    gets is a function of that picture: it is settled at its own number of orders, whatever pictures it comes with."""
    groups, n = len(parcels), 0
    total = first = squares = np.zeros(0)
    estimated: Estimated | None = None
    while n < most:
        drawn = _pairs_of_orders(parcels, range(n, min(n + batch, most)), value, seed)
        sizes = size(drawn)  # [pairs, G, Q]
        if estimated is None:
            q = sizes.shape[-1]
            total, first, squares = np.zeros(drawn.shape[1:]), np.zeros((groups, q)), np.zeros((groups, q))
            estimated = Estimated(np.zeros(drawn.shape[1:]), np.zeros((groups, q)), np.zeros(q, np.int64))
        total, first, squares = total + drawn.sum(axis=0), first + sizes.sum(axis=0), squares + (sizes**2).sum(axis=0)
        n += len(drawn)
        mean = first / n
        spread = np.maximum(squares / n - mean**2, 0.0) / max(n - 1, 1)
        enough = np.sqrt(spread).max(axis=0) <= tolerance * np.abs(mean.sum(axis=0))
        new = (estimated.orders == 0) & (enough | (n >= most))
        estimated.shares[:, :, new] = total[:, :, new] / n
        estimated.variance[:, new], estimated.orders[new] = spread[:, new], n
        if estimated.orders.all():
            break
    assert estimated is not None
    return estimated


def _pairs_of_orders(
    parcels: Sequence[int], pairs: range, value: Callable[[np.ndarray], np.ndarray], seed: int
) -> np.ndarray:  # fmt: skip
    """[pairs, G, ...]: what each group's parcels add along an order and its reverse, their mean."""
    orders = [[order(parcels, 2 * p + h, seed) for h in (0, 1)] for p in pairs]
    walks = np.concatenate([walk(one, len(parcels)) for pair in orders for one in pair])
    unique, place = np.unique(walks, axis=0, return_inverse=True)
    values = value(unique)
    steps = np.diff(values[place.reshape(-1)].reshape(len(pairs), 2, -1, *values.shape[1:]), axis=2)
    drawn = np.zeros((len(pairs), len(parcels), *values.shape[1:]))
    for i, pair in enumerate(orders):
        for half, one in enumerate(pair):
            np.add.at(drawn[i], one, steps[i, half] / 2)
    return drawn


# ---- trained coalitions ---------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class KernelShares:
    shares: np.ndarray  # [Q, G]
    covariance: np.ndarray  # [Q, G, G]: over pairs left out
    weights: np.ndarray  # [Q, G, P]: of the pairs' differences, beyond the even division of the total
    df: np.ndarray  # [Q]: pairs less fitted parameters, as many as a ridge leaves


def kernel(inside: np.ndarray) -> np.ndarray:
    """[P]: Shapley's weight of a pair over the chance that fair coins draw it, mean one."""
    groups, sizes = inside.shape[1], inside.sum(axis=1)
    ratio = np.array([(groups - 1) / (comb(groups, int(s)) * s * (groups - s)) for s in sizes])
    return ratio / ratio.mean()


def size_terms(inside: np.ndarray) -> np.ndarray:
    """[P, at most 2]: m and m^3 of the pairs, as far as their sizes tell these apart."""
    m = signs(inside).sum(axis=1)
    distinct = len(set(np.abs(m[m != 0]).tolist()))
    return np.stack([m, m**3], axis=1)[:, : min(distinct, 2)]


def kernel_regression(inside: np.ndarray, differences: np.ndarray, total: np.ndarray) -> KernelShares:
    """`inside`: bool [P, G], of the first half of every pair; `differences` [P, Q]: its value less its complement's;
    `total` [Q]: v(all) - v(nothing)."""
    pairs, groups = inside.shape
    if pairs < 4:
        raise GudaError("shares-pairs-too-few", f"{pairs} pairs of subset models are too few for shares; train more")
    z, q = signs(inside), kernel(inside)
    basis = np.linalg.svd(np.ones((1, groups)))[2][1:].T  # [G, G - 1]: divisions that add up to nothing
    root = np.sqrt(q)[:, None]
    sizes, _ = np.linalg.qr(root * size_terms(inside))  # orthonormal; what it explains is taken out of both sides
    x, y = (a - sizes @ (sizes.T @ a) for a in (root * (z @ basis), root * differences))
    by_size = (sizes**2).sum(axis=1)
    ridge = np.zeros(y.shape[1])
    if pairs < ENOUGH * groups or np.linalg.matrix_rank(x) < groups - 1:
        u, s, _ = np.linalg.svd(x, full_matrices=False)
        ridge = left_out_ridge(u, s, y)
    moments = x.T @ x
    shares = np.repeat((total / groups)[:, None], groups, axis=1)
    covariance = np.empty((y.shape[1], groups, groups))
    weights = np.empty((y.shape[1], groups, pairs))
    df = np.empty(y.shape[1])
    for penalty in np.unique(ridge):
        own = ridge == penalty
        inverse = np.linalg.inv(moments + penalty * np.eye(groups - 1))
        map_ = basis @ inverse @ x.T  # [G, P]: of y
        leverage = by_size + np.einsum("pj,jk,pk->p", x, inverse, x)
        fitted = inverse @ (x.T @ y[:, own])  # [G - 1, own]
        residual = y[:, own] - x @ fitted
        # what leaving a pair out changes: -map_p e_p / (1 - h_p)
        change = map_[:, :, None] * (residual / np.maximum(1 - leverage, 1e-9)[:, None])[None]  # [G, P, own]
        change -= change.mean(axis=1, keepdims=True)
        covariance[own] = (pairs - 1) / pairs * np.einsum("gpq,hpq->qgh", change, change)
        kept = inverse @ moments
        # what the ridge left out, of shares as large as those seen: without pairs that tell two groups apart, the
        # penalty alone decides between them, and an interval of residuals would have no width there
        left_out = basis @ (np.eye(groups - 1) - kept)
        seen = (fitted**2).sum(axis=0) / max((kept**2).sum(), 1e-9)
        covariance[own] += seen[:, None, None] * (left_out @ left_out.T)
        shares[own] += (basis @ fitted).T
        weights[own] = map_ * np.sqrt(q)
        df[own] = max(pairs - leverage.sum(), 1.0)
    return KernelShares(shares, covariance, weights, df)
