"""From terms to a score: the paired difference of two models' ELBOs, with its error.

    score = ELBO(full) - ELBO(counterfactual) = sum_strata mean_rounds d,     d = KL_counterfactual - KL_full (nats)

Both models saw the same (t, eps), so the noise they share cancels in d. Var = sum over strata of the within-stratum
variance of d over rounds / n; Student-t interval with sum (n - 1) degrees of freedom, because normal quantiles
under-cover at few strata. On the `paper` grid (one draw per t) the standard error comes from
successive differences along t; it counts the trend as noise and is therefore conservative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from guda.diffusion.noise import generator

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """All [Q] in nats; stderr, lo, hi are None where one draw per stratum leaves no error model."""

    score: np.ndarray
    stderr: np.ndarray | None
    lo: np.ndarray | None
    hi: np.ndarray | None


def difference(d: np.ndarray, *, grid: bool = False) -> Estimate:
    """Estimate from paired contributions d = KL_counterfactual - KL_full [R, Q, S]; `grid`: one draw per fixed t."""
    rounds, _, strata = d.shape
    score = d.mean(axis=0).sum(axis=-1)
    if rounds >= 2:
        variance = (d.var(axis=0, ddof=1) / rounds).sum(axis=-1)
        df = strata * (rounds - 1)
    elif grid and strata >= 2:
        steps = np.diff(d[0], axis=-1) ** 2
        # The first and last term are in one difference only, and the first (low t) has the largest variance of all:
        # those two differences count twice, so that every term enters with at least its full variance.
        variance = (steps.sum(axis=-1) + steps[..., 0] + steps[..., -1]) / 2
        df = strata - 1
    else:
        return Estimate(score, None, None, None)
    stderr = np.sqrt(variance)
    reach = float(stats.t.ppf(0.5 + LEVEL / 2, df)) * stderr
    return Estimate(score, stderr, score - reach, score + reach)


def stack_estimates(estimates: Sequence[Estimate]) -> dict[str, Any]:
    """One estimate per group -> score, stderr, lo, hi as [Q, groups] (None where there is no error model)."""
    fields = ("score", "stderr", "lo", "hi")
    columns = {f: [getattr(e, f) for e in estimates] for f in fields}
    return {f: None if any(c is None for c in values) else np.stack(values, axis=1) for f, values in columns.items()}


# ---- ranks: differences between groups, rank intervals, probability of being first
DRAWS = 4096  # for the probability of being first; its own error is below 0.008

CONTENDERS = 32  # groups that can be first: with more, those far behind get probability 0


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
