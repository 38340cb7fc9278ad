"""What the error bars say about the ranking: differences between groups, rank intervals, probability of being first.

All groups were scored with the same draws, so their errors are correlated; the covariance of the score vector,
    Cov = sum_strata (within-stratum covariance of the draw contributions over rounds) / R,
gives the error of every pairwise difference: Var(j - k) = C_jj + C_kk - 2 C_jk. A group's rank interval counts the
groups clearly above and clearly below it, Bonferroni over its N - 1 comparisons. The probability of being first
is taken over the multivariate Student-t with that covariance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from guda.diffusion.noise import generator

DRAWS = 4096  # for the probability of being first; its own error is below 0.008
LEVEL = 0.95


@dataclass(frozen=True)
class Moments:
    """Score estimates of all groups with their joint error."""

    mean: np.ndarray  # [Q, G] nats
    cov: np.ndarray  # [Q, G, G] nats^2
    df: int

    def pairwise(self) -> tuple[np.ndarray, np.ndarray]:
        """(j - k, its standard error), both [Q, G, G]."""
        variance = np.diagonal(self.cov, axis1=1, axis2=2)
        spread = variance[:, :, None] + variance[:, None, :] - 2 * self.cov
        return self.mean[:, :, None] - self.mean[:, None, :], np.sqrt(np.maximum(spread, 0.0))

    def rank_interval(self, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
        """(best, worst) rank [Q, G] that the comparisons allow."""
        groups = self.mean.shape[1]
        gap, error = self.pairwise()
        clear = gap > float(stats.t.ppf(1 - (1 - level) / 2 / (groups - 1), self.df)) * error
        np.einsum("qgg->qg", clear)[:] = False
        return 1 + clear.sum(axis=1), groups - clear.sum(axis=2)  # clear[j, k]: j above k

    def p_first(self) -> np.ndarray:
        """Probability [Q, G] that each group is the first, given the sampling error; the same random numbers serve
        every query, so that the answer depends on nothing but the moments."""
        groups = self.mean.shape[1]
        rng = generator("p_first", groups)
        normals = rng.standard_normal((DRAWS, groups))
        scale = np.sqrt(self.df / rng.chisquare(self.df, DRAWS))[:, None]
        values, vectors = np.linalg.eigh(self.cov)
        roots = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]  # C = roots roots^T
        out = np.empty_like(self.mean)
        for q in range(len(self.mean)):
            first = (self.mean[q] + scale * (normals @ roots[q].T)).argmax(axis=1)
            out[q] = np.bincount(first, minlength=groups) / DRAWS
        return out


def moments(contributions: np.ndarray) -> Moments | None:
    """From paired contributions [R, Q, G, S]; None with a single round, which has no error."""
    rounds, _, _, strata = contributions.shape
    if rounds < 2:
        return None
    mean = contributions.mean(axis=0)
    centred = contributions - mean
    cov = np.einsum("rqgs,rqhs->qgh", centred, centred) / (rounds * (rounds - 1))
    return Moments(mean.sum(axis=-1), cov, strata * (rounds - 1))
