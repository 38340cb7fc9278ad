"""Paired permutation tests: could the difference of two methods on the same queries be chance?

    d_q = a_q - b_q,   T = sum_q d_q,   T* = sum_q s_q d_q,  s_q = +1 or -1,   p = P(|T*| >= |T|)

If the two methods are exchangeable, each query might as well have had them the other way round, which flips the sign of
d_q. Queries on which they agree (d = 0) say nothing and drop out. With few others all sign vectors are counted: p is
exact. With more, n keyed ones are drawn and p = (1 + #{|T*| >= |T|}) / (1 + n), which is never 0 and never too small.
The same sign vectors serve every pair. Conditional on the trained models, as an interval over queries is.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from guda.diffusion.noise import generator
from guda.errors import GudaError

Array = NDArray[np.float64]

EXACT = 14  # up to so many queries that differ, all 2^14 sign vectors are counted
FLIPS = 19_999
BLOCK = 4_000_000  # signs held at once (32 MB)
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
    step = max(1, BLOCK // q)
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
