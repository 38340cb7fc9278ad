"""From terms to a score: the paired difference of two models' ELBOs, with its error.

    score = ELBO(full) - ELBO(counterfactual) = sum_strata mean_rounds d,     d = KL_counterfactual - KL_full (nats)

Both models saw the same (t, eps), so the noise they share cancels in d. Var = sum over strata of the within-stratum
variance of d over rounds / n; Student-t interval with sum (n - 1) degrees of freedom, because normal quantiles
under-cover at few strata (SPEC section 2). On the `paper` grid (one draw per t) the standard error comes from
successive differences along t; it counts the trend as noise and is therefore conservative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

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
