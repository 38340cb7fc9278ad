"""Does a claim hold? Of the pictures for which a method was so sure, the share where retraining agrees.

Agreement is a coin thrown n times, so a share k / n has Clopper and Pearson's exact interval: with Beta(a, b) quantiles

    lo = Beta(alpha/2; k, n - k + 1),   hi = Beta(1 - alpha/2; k + 1, n - k),   lo = 0 at k = 0, hi = 1 at k = n,

which covers at least 1 - alpha whatever the true share. Claims are the probability that the method's first group is
first (it knows of the noise of scoring only), or the kind of verdict on the picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

LEVEL = 0.95

EDGES = (0.0, 0.5, 0.8, 0.95, 0.99, 1.0)  # a bin is [a, b); the last has its end


@dataclass(frozen=True)
class Share:
    """Of `n` pictures with the same claim, `k` where retraining has the same first group."""

    claim: str  # "80-95 %", or a kind of verdict
    k: int
    n: int
    lo: float
    hi: float
    said: float | None = None  # mean of the claimed probabilities; None where the claim is no number

    @property
    def mean(self) -> float:
        return self.k / self.n


def clopper_pearson(k: int, n: int, level: float = LEVEL) -> tuple[float, float]:
    from scipy.stats import beta

    if not 0 <= k <= n or n == 0:
        raise ValueError(f"{k} of {n} is no share")
    tail = (1 - level) / 2
    lo = 0.0 if k == 0 else float(beta.ppf(tail, k, n - k + 1))
    hi = 1.0 if k == n else float(beta.ppf(1 - tail, k + 1, n - k))
    return lo, hi


def _share(claim: str, agree: np.ndarray, said: float | None = None) -> Share:
    k, n = int(agree.sum()), len(agree)
    return Share(claim, k, n, *clopper_pearson(k, n), said)


def by_probability(p: np.ndarray, agree: np.ndarray, edges: Sequence[float] = EDGES) -> list[Share]:
    """`p`, `agree` [Q]: the claimed probability of the first group and whether it is right; empty bins are left out.
    Pictures without a claim (NaN) are not counted."""
    found = []
    for a, b in pairwise(edges):
        inside = (p >= a) & ((p <= b) if b == edges[-1] else (p < b))
        if inside.any():
            found.append(_share(f"{100 * a:g}-{100 * b:g} %", agree[inside], float(p[inside].mean())))
    return found


def by_kind(kinds: Sequence[str], agree: np.ndarray) -> list[Share]:
    """The same by the kind of verdict, in order of first appearance."""
    named = np.array(kinds)
    return [_share(kind, agree[named == kind]) for kind in dict.fromkeys(kinds)]
