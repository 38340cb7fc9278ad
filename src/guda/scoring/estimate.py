"""From terms to a score: the paired difference of two models' ELBOs, with its error.

    score = ELBO(full) - ELBO(counterfactual) = sum_strata mean_rounds d,     d = KL_counterfactual - KL_full (nats)

Both models saw the same (t, eps), so the noise they share cancels in d. Var = sum over strata of the within-stratum
variance of d over rounds / n; Student-t intervals with Welch and Satterthwaite's degrees of freedom, because one
stratum may dominate. Scores, ranks and races share `effective_df`. On the `paper` grid (one draw per t) the standard
error comes from successive differences along t; it counts the trend as noise and is therefore conservative.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from guda.diffusion.noise import generator

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """In nats, [Q] or [Q, G]; stderr, lo, hi are None where one draw per stratum leaves no error model."""

    score: np.ndarray
    stderr: np.ndarray | None
    lo: np.ndarray | None
    hi: np.ndarray | None


def effective_df(variances: np.ndarray, rounds: int) -> np.ndarray:
    """Welch and Satterthwaite's degrees of freedom of a sum over strata, from the variances [..., S] of their means.

    S (R - 1) would be right for strata of equal variance; where one dominates, its own few degrees count, and a claim
    of confidence must not rest on the rest."""
    return _welch(variances.sum(axis=-1), (variances**2).sum(axis=-1), variances.shape[-1], rounds)


def _welch(total: np.ndarray, squares: np.ndarray, strata: int, rounds: int) -> np.ndarray:
    """From the sum over strata of variances, and that of their squares."""
    most = strata * (rounds - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        df = (rounds - 1) * total**2 / squares
    return np.where(squares > 0, np.clip(df, 1, most), most)


def t_quantile(p: float, df: np.ndarray | float) -> np.ndarray:
    """Student-t quantiles; degrees of freedom are rounded down to tenths, as there may be a million of them."""
    values, place = np.unique(np.floor(np.asarray(df, np.float64) * 10) / 10, return_inverse=True)
    return np.asarray(stats.t.ppf(p, np.maximum(values, 1.0))[place].reshape(np.shape(df)))


def difference(d: np.ndarray, *, grid: bool = False) -> Estimate:
    """From paired contributions d = KL_counterfactual - KL_full, [R, Q, S] of one group or [R, Q, G, S] of several;
    `grid`: one draw per fixed t."""
    rounds, strata = len(d), d.shape[-1]
    score = d.mean(axis=0).sum(axis=-1)
    df: np.ndarray | float
    if rounds >= 2:
        variances = d.var(axis=0, ddof=1) / rounds
        variance, df = variances.sum(axis=-1), effective_df(variances, rounds)
    elif grid and strata >= 2:
        steps = np.diff(d[0], axis=-1) ** 2
        # The first and last term are in one difference only, and the first (low t) has the largest variance of all:
        # those two differences count twice, so that every term enters with at least its full variance.
        variance = (steps.sum(axis=-1) + steps[..., 0] + steps[..., -1]) / 2
        df = strata - 1
    else:
        return Estimate(score, None, None, None)
    stderr = np.sqrt(variance)
    reach = t_quantile(0.5 + LEVEL / 2, df) * stderr
    return Estimate(score, stderr, score - reach, score + reach)


# ---- ranks: differences between groups, rank intervals, probability of being first
DRAWS = 4096  # for the probability of being first; its own error is below 0.008

CONTENDERS = 32  # groups that can be first: with more, those far behind get probability 0


@dataclass(frozen=True)
class Moments:
    """Scores of all groups for one query, with their joint error."""

    mean: np.ndarray  # [G] nats
    cov: np.ndarray  # [G, G] nats^2
    df: np.ndarray  # [G, G] degrees of freedom of each difference

    def pairwise(self) -> tuple[np.ndarray, np.ndarray]:
        """(j - k, its standard error), both [G, G]."""
        return self.mean[:, None] - self.mean[None, :], np.sqrt(_of_differences(self.cov))

    def rank_interval(self, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
        """(best, worst) rank [G] that the comparisons allow."""
        groups = len(self.mean)
        gap, error = self.pairwise()
        clear = gap > t_quantile(1 - (1 - level) / 2 / max(1, groups - 1), self.df) * error
        np.fill_diagonal(clear, False)
        return 1 + clear.sum(axis=0), groups - clear.sum(axis=1)  # clear[j, k]: j above k

    def p_first(self) -> np.ndarray:
        """Probability [G] that each group is the first, given the sampling error; its degrees of freedom are those of
        the first two's difference. The random numbers are fixed, so that the answer depends on the moments alone."""
        top = np.argsort(-self.mean, kind="stable")[:CONTENDERS]
        df = self.df[top[0], top[min(1, len(top) - 1)]]
        rng = generator("p_first", len(top))
        normals = rng.standard_normal((DRAWS, len(top)))
        scale = np.sqrt(df / rng.chisquare(df, DRAWS))[:, None]
        values, vectors = np.linalg.eigh(self.cov[np.ix_(top, top)])
        roots = vectors * np.sqrt(np.maximum(values, 0.0))  # C = roots roots^T
        drawn = self.mean[top] + scale * (normals @ roots.T)
        # identical counterfactuals share their place; rounding in the roots must not decide between them
        first = drawn >= drawn.max(axis=1, keepdims=True) - 1e-6 * np.sqrt(max(values[-1], 0.0))
        out = np.zeros(len(self.mean))
        out[top] = (first / first.sum(axis=1, keepdims=True)).mean(axis=0)
        return out


Training = tuple[np.ndarray, np.ndarray]  # covariance [G, G] from the randomness of training, its degrees of freedom


def moments(
    contributions: np.ndarray, extra: np.ndarray | float = 0.0, training: Training | None = None
) -> Moments:  # fmt: skip
    """From the paired contributions [R, G, S] of one query, R >= 2; `extra`: covariance [G, G] of what else errs, known
    as if from many draws; `training`: the same of the randomness of training, which few trainings show."""
    rounds, _, strata = contributions.shape
    mean = contributions.mean(axis=0)
    centred = contributions - mean
    cov, squares = np.zeros((len(mean), len(mean))), np.zeros((len(mean), len(mean)))
    for s in range(strata):
        own = centred[:, :, s].T @ centred[:, :, s] / (rounds * (rounds - 1))
        cov += own
        squares += _of_differences(own) ** 2
    df = _welch(_of_differences(cov), squares, strata, rounds)
    if training is None:
        return Moments(mean.sum(axis=-1), cov + extra, df)
    spread, few = training
    scoring, between = _of_differences(cov + extra), _of_differences(spread)
    with np.errstate(divide="ignore", invalid="ignore"):
        both = (scoring + between) ** 2 / (scoring**2 / df + between**2 / few)
    return Moments(mean.sum(axis=-1), cov + extra + spread, np.where(scoring + between > 0, np.maximum(both, 1.0), df))


def _of_differences(cov: np.ndarray) -> np.ndarray:
    """Variances [G, G] of all differences."""
    variance = np.diagonal(cov)
    return np.asarray(np.maximum(variance[:, None] + variance[None, :] - 2 * cov, 0.0))


Covariance = np.ndarray | float | Callable[[int], np.ndarray]  # [G, G], the same for all pictures or of each


def rank_columns(
    contributions: np.ndarray, extra: Covariance = 0.0, training: Callable[[int], Training] | None = None
) -> dict[str, Any]:
    """rank_lo, rank_hi, p_first as [Q, G] from [R, Q, G, S]; None with a single round, which has no error.

    `training`: of each picture, what the randomness of training adds."""
    if len(contributions) < 2:
        return {"rank_lo": None, "rank_hi": None, "p_first": None}
    pictures = range(contributions.shape[1])
    joint = [
        moments(contributions[:, q], extra(q) if callable(extra) else extra, training(q) if training else None)
        for q in pictures
    ]
    intervals = [m.rank_interval() for m in joint]
    return {
        "rank_lo": np.stack([i[0] for i in intervals]),
        "rank_hi": np.stack([i[1] for i in intervals]),
        "p_first": np.stack([m.p_first() for m in joint]),
    }
