"""Bootstrap intervals of means over queries, paired permutation tests, and binomial intervals of shares.

Figures are over queries, and over seeds where there are enough of them:

    m_b = sum_sq v_sq c_bs w_bq / (S Q),   w_b ~ Multinomial(Q, 1/Q),   c_b ~ Multinomial(S, 1/S)

The interval is the percentile interval of m_1..m_n. The resamples w and c depend on (seed, Q) and (seed, S)
alone: two methods measured on the same queries meet the same resamples, so their differences and ratios are
paired. With one or two seeds c = 1: the rows are averaged, and the interval is conditional on those models.

A permutation test asks whether two methods a, b are exchangeable, d_q = a_q - b_q:

    T = sum_q d_q,   T* = sum_q s_q d_q,  s_q = +1 or -1,   p = P(|T*| >= |T|)

Queries on which they agree (d = 0) drop out. With few others all sign vectors are counted, and p is exact. With more,
n keyed ones are drawn, the same for every pair, and p = (1 + #{|T*| >= |T|}) / (1 + n), which is never too small.

Calibration: of the pictures for which a method was so sure, the share where retraining agrees. A share k / n has
Clopper and Pearson's interval: with Beta(a, b) quantiles

    lo = Beta(alpha/2; k, n - k + 1),   hi = Beta(1 - alpha/2; k + 1, n - k),   lo = 0 at k = 0, hi = 1 at k = n.

It covers at least 1 - alpha for n independent throws of a coin. Pictures are that only given the models: all of them
meet the same method and the same retrainings, so the interval is over pictures, GIVEN THESE MODELS. Where there are two
retrainings or more, it is widened until it also holds the interval of agreement with each of them alone, which shows
how far the models matter. Claims are the probability that the method's first group is
first (it knows of the noise of scoring only), or the kind of verdict on the picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, FiniteFloat, model_validator

from guda.config import Config
from guda.diffusion.noise import generator
from guda.errors import GudaError

Array = NDArray[np.float64]

RESAMPLE_SEEDS_FROM = 3  # two seeds have only three distinct resamples: too few for percentiles

BLOCK = 2_000_000  # weights held at once (16 MB), whatever the number of queries


class Figure(Config):
    """A mean over queries with its interval, in the unit of the values."""

    mean: FiniteFloat
    lo: FiniteFloat = Field(description="lower end of the 95 % interval")
    hi: FiniteFloat = Field(description="upper end of the 95 % interval")

    @property
    def separated(self) -> bool:
        """For a difference: the interval leaves out 0."""
        return self.lo > 0 or self.hi < 0

    @model_validator(mode="after")
    def _ordered(self) -> Figure:
        if self.lo > self.hi:
            raise ValueError(f"lo {self.lo} is above hi {self.hi}")
        return self


def _counts(rng: np.random.Generator, size: int, n: int) -> Iterator[Array]:
    """How often each of `size` items is drawn, [n, size] in blocks of rows."""
    rows = max(1, BLOCK // size)
    for start in range(0, n, rows):
        b = min(rows, n - start)
        drawn = rng.integers(0, size, (b, size)) + size * np.arange(b)[:, None]
        yield np.bincount(drawn.ravel(), minlength=b * size).reshape(b, size).astype(np.float64)


def query_counts(queries: int, n: int, seed: int) -> Iterator[Array]:
    """How often each query is drawn, [n, queries] in blocks of rows: the resamples that every figure meets."""
    return _counts(np.random.default_rng([seed, 0]), queries, n)


def resampled_means(values: ArrayLike, n: int = 2000, seed: int = 0) -> Array:
    """[..., S, Q] -> [n, ...]: means over seeds and queries in n resamples that all leading axes share."""
    v = np.asarray(values, dtype=np.float64)
    if v.ndim < 2 or v.shape[-2] < 1 or v.shape[-1] < 2:
        raise GudaError(
            "queries-too-few", f"an interval needs at least 2 queries, got values of shape {v.shape}; add queries"
        )
    if not np.isfinite(v).all():
        raise GudaError("values-not-finite", "values to bootstrap have NaN or infinity; score those queries again")
    if n < 1:
        raise GudaError("resamples-invalid", f"the number of resamples must be at least 1, got {n}")
    *lead, s, q = v.shape
    if s < RESAMPLE_SEEDS_FROM:
        v, s = v.mean(axis=-2, keepdims=True), 1
    columns = np.ascontiguousarray(v.reshape(-1, q).T)
    over_queries = np.concatenate([w @ columns / q for w in query_counts(q, n, seed)])
    over_queries = over_queries.reshape(n, *lead, s)
    # Its own generator: the query resamples must not depend on whether seeds are resampled too.
    c = np.concatenate(list(_counts(np.random.default_rng([seed, 1]), s, n))) / s
    result: Array = np.einsum("n...s,ns->n...", over_queries, c)
    return result


def percentile_interval(mean: float, samples: Array, level: float = 0.95) -> Figure:
    """`samples` are the bootstrap replicates [n] of `mean`."""
    if not 0 < level < 1:
        raise GudaError("interval-level-invalid", f"level must lie between 0 and 1, got {level}")
    lo, hi = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2])
    return Figure(mean=float(mean), lo=float(lo), hi=float(hi))


def bootstrap_mean(values: ArrayLike, n: int = 2000, seed: int = 0, level: float = 0.95) -> Figure:
    """Mean and interval of per-query values [Q], or of per-seed, per-query values [S, Q]."""
    v = np.atleast_2d(np.asarray(values, dtype=np.float64))
    if v.ndim != 2:
        raise GudaError("values-shape-invalid", f"values must be [queries] or [seeds, queries], got shape {v.shape}")
    samples = resampled_means(v, n, seed)
    return percentile_interval(v.mean(), samples, level)


# ---- permutation tests -------------------------------------------------------------------------------------------
EXACT = 14  # up to so many queries that differ, all 2^14 sign vectors are counted

FLIPS = 19_999

SIGNS_HELD = 4_000_000  # signs held at once (32 MB)

TIED = 1e-10  # of sum |d|: sums that differ by rounding alone are equal


@lru_cache(maxsize=EXACT + 1)
def _all_signs(k: int) -> Array:
    """Every sign vector of length k, [2^k, k]."""
    bits = np.arange(2**k)[:, None] >> np.arange(k)
    return np.asarray(1.0 - 2.0 * (bits & 1), np.float64)


def sign_flip_test(differences: ArrayLike, n: int = FLIPS, seed: int = 0) -> Array:
    """Two-sided p of paired differences over queries, [..., Q] -> [...]."""
    d = np.asarray(differences, dtype=np.float64)
    if d.ndim < 1 or d.shape[-1] < 1:
        raise GudaError(
            "queries-too-few", f"a permutation test needs at least 1 query, got differences of shape {d.shape}"
        )
    if not np.isfinite(d).all():
        raise GudaError("values-not-finite", "differences to test have NaN or infinity; score those queries again")
    rows = d.reshape(-1, d.shape[-1])
    p = np.ones(len(rows))
    sizes = np.abs(rows).sum(axis=1)
    least = np.abs(rows.sum(axis=1)) - TIED * sizes
    differing = (rows != 0).sum(axis=1)
    few = np.flatnonzero((differing > 0) & (differing <= EXACT))
    for i in few:
        sums = _all_signs(int(differing[i])) @ rows[i][rows[i] != 0]
        p[i] = (np.abs(sums) >= least[i]).mean()
    many = np.flatnonzero(differing > EXACT)
    if many.size:
        p[many] = (1 + _exceeding(rows[many], least[many], n, seed)) / (1 + n)
    return p.reshape(d.shape[:-1])


def _exceeding(rows: Array, least: Array, n: int, seed: int) -> Array:
    """How many of n drawn sign vectors give a sum as large, of each row."""
    q = rows.shape[1]
    rng, found = generator(seed, "sign flips", q), np.zeros(len(rows))
    step = max(1, SIGNS_HELD // q)
    for start in range(0, n, step):
        b = min(step, n - start)
        signs = 1.0 - 2.0 * rng.integers(0, 2, (b, q), dtype=np.int8)
        found += (np.abs(signs @ rows.T) >= least).sum(axis=0)
    return found


def holm(p: ArrayLike) -> Array:
    """p values adjusted for being a table: the i-th smallest of m counts m - i + 1 times, and none less than before it.

    Below 0.05 after this, the chance of even one false separation in the table is below 0.05."""
    p = np.asarray(p, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return adjusted


LEVEL = 0.95

EDGES = (0.0, 0.5, 0.8, 0.95, 0.99, 1.0)  # a bin is [a, b); the last has its end


@dataclass(frozen=True)
class Share:
    """Of `n` pictures with the same claim, `k` where retraining has the same first group.

    lo, hi: given these models; widened over `seeds` retrainings, if there are several."""

    claim: str  # "80-95 %", or a kind of verdict
    k: int
    n: int
    lo: float
    hi: float
    said: float | None = None  # mean of the claimed probabilities; None where the claim is not a number
    seeds: int = 0  # retrainings whose own agreement the interval holds too

    @property
    def mean(self) -> float:
        return self.k / self.n


def clopper_pearson(k: int, n: int, level: float = LEVEL) -> tuple[float, float]:
    from scipy.stats import beta

    if not 0 <= k <= n or n == 0:
        raise ValueError(f"{k} of {n} is not a share")
    tail = (1 - level) / 2
    lo = 0.0 if k == 0 else float(beta.ppf(tail, k, n - k + 1))
    hi = 1.0 if k == n else float(beta.ppf(1 - tail, k + 1, n - k))
    return lo, hi


def _share(
    claim: str, inside: np.ndarray, agree: np.ndarray, alone: np.ndarray | None, said: float | None = None
) -> Share:
    """Of the pictures `inside`; `alone` [S, Q]: agreement with each retraining by itself."""
    k, n = int(agree[inside].sum()), int(inside.sum())
    seeds = [] if alone is None or len(alone) < 2 else [int(row[inside].sum()) for row in alone]
    ends = [clopper_pearson(x, n) for x in (k, *seeds)]
    return Share(claim, k, n, min(lo for lo, _ in ends), max(hi for _, hi in ends), said, len(seeds))


def by_probability(
    p: np.ndarray, agree: np.ndarray, edges: Sequence[float] = EDGES, alone: np.ndarray | None = None
) -> list[Share]:
    """`p`, `agree` [Q]: the claimed probability of the first group and whether it is right; empty bins are left out.
    Pictures without a claim (NaN) are not counted. `alone` [S, Q]: whether each retraining by itself agrees."""
    found = []
    for a, b in pairwise(edges):
        inside = (p >= a) & ((p <= b) if b == edges[-1] else (p < b))
        if inside.any():
            found.append(_share(f"{100 * a:g}-{100 * b:g} %", inside, agree, alone, float(p[inside].mean())))
    return found


def by_kind(kinds: Sequence[str], agree: np.ndarray, alone: np.ndarray | None = None) -> list[Share]:
    """The same by the kind of verdict, in order of first appearance."""
    named = np.array(kinds)
    return [_share(kind, named == kind, agree, alone) for kind in dict.fromkeys(kinds)]


def bin_of(p: float, edges: Sequence[float] = EDGES) -> str | None:
    """The claim, as `by_probability` names it, that a probability belongs to."""
    for a, b in pairwise(edges):
        if a <= p < b or p == b == edges[-1]:
            return f"{100 * a:g}-{100 * b:g} %"
    return None
