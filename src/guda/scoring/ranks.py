"""What the error bars say about the ranking: differences between groups, rank intervals, probability of being first.

All groups were scored with the same draws, so their errors are correlated; the covariance of the score vector,
    C = sum_strata (within-stratum covariance of the draw contributions over rounds) / R,
gives the error of every pairwise difference: Var(j - k) = C_jj + C_kk - 2 C_jk. A group's rank interval counts the
groups clearly above and clearly below it, Bonferroni over its N - 1 comparisons. The probability of being first
is taken over the multivariate Student-t with that covariance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from guda.diffusion.noise import generator

DRAWS = 4096  # for the probability of being first; its own error is below 0.008
CONTENDERS = 32  # groups that can be first: with more, those far behind get probability 0
LEVEL = 0.95


@dataclass(frozen=True)
class Moments:
    """Scores of all groups for one query, with their joint error."""

    mean: np.ndarray  # [G] nats
    cov: np.ndarray  # [G, G] nats^2
    df: int

    def pairwise(self) -> tuple[np.ndarray, np.ndarray]:
        """(j - k, its standard error), both [G, G]."""
        variance = np.diagonal(self.cov)
        spread = variance[:, None] + variance[None, :] - 2 * self.cov
        return self.mean[:, None] - self.mean[None, :], np.sqrt(np.maximum(spread, 0.0))

    def rank_interval(self, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
        """(best, worst) rank [G] that the comparisons allow."""
        groups = len(self.mean)
        gap, error = self.pairwise()
        clear = gap > float(stats.t.ppf(1 - (1 - level) / 2 / max(1, groups - 1), self.df)) * error
        np.fill_diagonal(clear, False)
        return 1 + clear.sum(axis=0), groups - clear.sum(axis=1)  # clear[j, k]: j above k

    def p_first(self) -> np.ndarray:
        """Probability [G] that each group is the first, given the sampling error. The random numbers are fixed, so
        that the answer depends on nothing but the moments."""
        top = np.argsort(-self.mean, kind="stable")[:CONTENDERS]
        rng = generator("p_first", len(top))
        normals = rng.standard_normal((DRAWS, len(top)))
        scale = np.sqrt(self.df / rng.chisquare(self.df, DRAWS))[:, None]
        values, vectors = np.linalg.eigh(self.cov[np.ix_(top, top)])
        roots = vectors * np.sqrt(np.maximum(values, 0.0))  # C = roots roots^T
        drawn = self.mean[top] + scale * (normals @ roots.T)
        # identical counterfactuals share their place; rounding in the roots must not decide between them
        first = drawn >= drawn.max(axis=1, keepdims=True) - 1e-6 * np.sqrt(max(values[-1], 0.0))
        out = np.zeros(len(self.mean))
        out[top] = (first / first.sum(axis=1, keepdims=True)).mean(axis=0)
        return out


def moments(contributions: np.ndarray, extra: np.ndarray | float = 0.0) -> Moments:
    """From the paired contributions [R, G, S] of one query, R >= 2; `extra`: covariance [G, G] of what else errs."""
    rounds, _, strata = contributions.shape
    mean = contributions.mean(axis=0)
    centred = (contributions - mean).transpose(1, 0, 2).reshape(len(mean), -1)
    cov = centred @ centred.T / (rounds * (rounds - 1))
    return Moments(mean.sum(axis=-1), cov + extra, strata * (rounds - 1))


def rank_columns(contributions: np.ndarray, extra: np.ndarray | float = 0.0) -> dict[str, Any]:
    """rank_lo, rank_hi, p_first as [Q, G] from [R, Q, G, S]; None with a single round, which has no error."""
    if len(contributions) < 2:
        return {"rank_lo": None, "rank_hi": None, "p_first": None}
    found = [moments(contributions[:, q], extra) for q in range(contributions.shape[1])]
    intervals = [m.rank_interval() for m in found]
    return {
        "rank_lo": np.stack([i[0] for i in intervals]),
        "rank_hi": np.stack([i[1] for i in intervals]),
        "p_first": np.stack([m.p_first() for m in found]),
    }
