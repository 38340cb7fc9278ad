"""How well one ranking of the groups agrees with another, query by query (paper: "Evaluation Metrics").

`scores` and `gold` are [Q, N]: Q queries, N groups, higher = the group mattered more. pi_s, pi_g are the
orders they induce, rank_s, rank_g 1-based ranks, g* the gold top-1, k = min(3, N). Every metric gives [Q]:

    top1          1[pi_s(1) = pi_g(1)]
    mrr           1 / rank_s(g*)
    ndcg3         DCG / ideal DCG,  DCG = sum_{r<=k} (2^rel(pi_s(r)) - 1) / log2(r+1),
                  rel_i = N - rank_g(i) + 1
    ndcg3_linear  the same with gain rel; the paper's published UnlearnCanvas NDCG is this form
    top3          |top-k of s  and  top-k of g| / k
    rbo           (1-p) sum_{d<=N} p^(d-1) |A_d and B_d| / d,  p = 0.9; at most 1 - p^N
    rbo_normalised  rbo / (1 - p^N)
    spearman      Pearson correlation of average ranks

Ties are broken by group order (stable sort) in all but spearman, which averages tied ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from guda.errors import GudaError

Array = NDArray[np.float64]

Metric = Callable[[ArrayLike, ArrayLike], Array]

RBO_P = 0.9


def checked(scores: ArrayLike, gold: ArrayLike) -> tuple[Array, Array]:
    """Both as float64 [Q, N]; anything that has no ranking is refused."""
    s, g = np.asarray(scores, dtype=np.float64), np.asarray(gold, dtype=np.float64)
    if s.ndim != 2 or s.shape != g.shape:
        raise GudaError(
            "scores-shape-mismatch",
            f"scores {s.shape} and gold {g.shape} must both be [queries, groups]; "
            "give them the same queries and groups, in the same order",
        )
    if s.shape[0] < 1 or s.shape[1] < 2:
        raise GudaError(
            "ranking-too-small", f"a ranking needs at least 1 query and 2 groups, got {s.shape[0]} and {s.shape[1]}"
        )
    for name, values in (("scores", s), ("gold", g)):
        bad = np.asarray(~np.isfinite(values).all(axis=1))
        if bad.any():
            raise GudaError(
                "scores-not-finite",
                f"{name} have NaN or infinity in {bad.sum()} of {bad.size} queries, first in row "
                f"{bad.argmax()}; score those queries again",
            )
    return s, g


def _order(values: Array) -> NDArray[np.intp]:
    """Group indices from the most to the least important, ties in group order."""
    return np.argsort(-values, axis=1, kind="stable")


def _rank(values: Array) -> NDArray[np.intp]:
    """0-based position of every group in `_order`."""
    return np.argsort(_order(values), axis=1, kind="stable")


def top1(scores: ArrayLike, gold: ArrayLike) -> Array:
    s, g = checked(scores, gold)
    return (_order(s)[:, 0] == _order(g)[:, 0]).astype(np.float64)


def mrr(scores: ArrayLike, gold: ArrayLike) -> Array:
    s, g = checked(scores, gold)
    best = _order(g)[:, :1]
    place = 1.0 + np.take_along_axis(_rank(s), best, axis=1)[:, 0]
    return np.reciprocal(place, dtype=np.float64)


def _discounts(n_groups: int) -> Array:
    return 1.0 / np.log2(np.arange(2, 2 + min(3, n_groups)))


def _gains(n_groups: int) -> Array:
    """2^rel - 1 for gold ranks 1..N, over 2^N: NDCG is a ratio, and 2^N overflows beyond 1,023 groups."""
    return np.exp2(-np.arange(n_groups, dtype=np.float64)) - np.exp2(-float(n_groups))


def _gains_linear(n_groups: int) -> Array:
    return np.arange(n_groups, 0, -1, dtype=np.float64)


def _ndcg(scores: ArrayLike, gold: ArrayLike, gains_of: Callable[[int], Array]) -> Array:
    s, g = checked(scores, gold)
    gains, discounts = gains_of(s.shape[1]), _discounts(s.shape[1])
    k = len(discounts)
    found = gains[np.take_along_axis(_rank(g), _order(s)[:, :k], axis=1)]
    return (found * discounts).sum(axis=1) / (gains[:k] * discounts).sum()


def ndcg3(scores: ArrayLike, gold: ArrayLike) -> Array:
    return _ndcg(scores, gold, _gains)


def ndcg3_linear(scores: ArrayLike, gold: ArrayLike) -> Array:
    return _ndcg(scores, gold, _gains_linear)


def top3(scores: ArrayLike, gold: ArrayLike) -> Array:
    s, g = checked(scores, gold)
    k = min(3, s.shape[1])
    return ((_rank(s) < k) & (_rank(g) < k)).sum(axis=1) / k


def _rbo_weights(n_groups: int) -> Array:
    """(1-p) p^(d-1) / d for depths d = 1..N: what one group shared at depth d is worth."""
    d = np.arange(1, n_groups + 1)
    return (1 - RBO_P) * RBO_P ** (d - 1.0) / d


def rbo(scores: ArrayLike, gold: ArrayLike) -> Array:
    s, g = checked(scores, gold)
    q, n = s.shape
    # A group is in both top-d sets from d = max(rank_s, rank_g) on, so the overlap is a cumulative histogram.
    enters = np.maximum(_rank(s), _rank(g)) + n * np.arange(q)[:, None]
    overlap = np.bincount(enters.ravel(), minlength=q * n).reshape(q, n).cumsum(axis=1)
    return overlap @ _rbo_weights(n)


def rbo_normalised(scores: ArrayLike, gold: ArrayLike) -> Array:
    value = rbo(scores, gold)
    return value / (1 - RBO_P ** np.shape(gold)[1])


def spearman(scores: ArrayLike, gold: ArrayLike) -> Array:
    from scipy.stats import rankdata

    s, g = checked(scores, gold)
    middle = (s.shape[1] + 1) / 2  # average ranks always have this mean
    a, b = rankdata(s, axis=1) - middle, rankdata(g, axis=1) - middle
    spread = np.sqrt((a * a).sum(axis=1) * (b * b).sum(axis=1))
    # A row of equal scores says nothing about the order: its correlation, 0/0, counts as none.
    flat = spread == 0
    return np.where(flat, 0.0, (a * b).sum(axis=1) / np.where(flat, 1.0, spread))


METRICS: dict[str, Metric] = {
    "top1": top1,
    "mrr": mrr,
    "ndcg3": ndcg3,
    "ndcg3_linear": ndcg3_linear,
    "top3": top3,
    "rbo": rbo,
    "rbo_normalised": rbo_normalised,
    "spearman": spearman,
}

SIX = ("top1", "mrr", "ndcg3", "top3", "rbo", "spearman")

LABELS: dict[str, str] = {
    "top1": "Top-1",
    "mrr": "MRR",
    "ndcg3": "NDCG@3",
    "ndcg3_linear": "NDCG@3 (linear gain)",
    "top3": "Top-3",
    "rbo": "RBO",
    "rbo_normalised": "RBO / (1 - p^N)",
    "spearman": "Spearman",
}

LOWEST: dict[str, float] = {name: -1.0 if name == "spearman" else 0.0 for name in METRICS}  # the highest is 1


def per_query(scores: ArrayLike, gold: ArrayLike) -> dict[str, Array]:
    """Every metric, [Q] each, in the order of METRICS."""
    return {name: metric(scores, gold) for name, metric in METRICS.items()}


@cache
def _random(n_groups: int) -> tuple[float, ...]:
    n = n_groups
    depth = np.arange(1, n + 1)
    gains, linear, discounts = _gains(n), _gains_linear(n), _discounts(n)
    k = len(discounts)
    ndcg, ndcg_linear = (
        g.mean() * discounts.sum() / (g[:k] * discounts).sum() for g in (gains, linear)
    )  # every place holds the mean gain
    overlap = float(_rbo_weights(n) @ (depth**2 / n))  # E|A_d and B_d| = d^2 / N
    by_name = {
        "top1": 1 / n,
        "mrr": float((1 / depth).mean()),
        "ndcg3": float(ndcg),
        "ndcg3_linear": float(ndcg_linear),
        "top3": k / n,
        "rbo": overlap,
        "rbo_normalised": overlap / (1 - RBO_P**n),
        "spearman": 0.0,
    }
    return tuple(by_name[name] for name in METRICS)


def random_baseline(n_groups: int) -> dict[str, float]:
    """Expected value of every metric when the groups are ranked uniformly at random, in closed form."""
    if n_groups < 2:
        raise GudaError("ranking-too-small", f"a ranking needs at least 2 groups, got {n_groups}")
    return dict(zip(METRICS, _random(n_groups), strict=True))
