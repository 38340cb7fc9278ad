"""The query-noise floor: how far the oracle agrees with itself when only the scoring noise is fresh (SPEC 2, 3).

Every round of draws (t, eps) is an unbiased estimate of the same scores by itself. So the rounds are split in two
halves, which share the models and nothing else, and one half is ranked against the other:

    floor = mean over splits of A(mean of h rounds, mean of the other R - h),   h = floor(R / 2)

What is missing to 1 is disagreement that the noise of the estimate makes, retrainings apart; a ceiling cannot be told
from 1 by more than this. Halves hold fewer rounds than the published scores, so the floor errs to the low side; the
reliability of all R rounds is extrapolated beside it (Spearman-Brown). Arithmetic on stored terms: no network runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from guda.diffusion.noise import generator
from guda.errors import GudaError
from guda.evaluation.bootstrap import Interval, bootstrap_mean
from guda.evaluation.ceiling import Reliability, reliability
from guda.evaluation.metrics import per_query

MOST = 64  # splits that are averaged; up to 8 rounds that is all of them


@dataclass(frozen=True)
class Floor:
    rounds: int
    half: int  # rounds in the half that is scored; the gold has the others
    intervals: dict[str, Interval]  # by metric name, over queries
    reliability: Reliability  # of one round (`one_seed`), of the mean of all rounds (`mean_of_seeds`)


def splits(rounds: int, seed: int = 0) -> list[tuple[int, ...]]:
    """Rounds of the scored half: every choice of floor(R / 2), or so many keyed ones."""
    half = rounds // 2
    found = list(combinations(range(rounds), half)) if rounds <= 8 else []
    while len(found) < MOST and rounds > 8:
        drawn = generator(seed, "query-noise floor", rounds, len(found)).permutation(rounds)[:half]
        found.append(tuple(sorted(int(r) for r in drawn)))
    return found


def query_noise_floor(rounds: ArrayLike, n: int = 2000, seed: int = 0) -> Floor:
    """From the oracle's scores by every round alone, [R, Q, N]; needs at least two rounds."""
    scores: NDArray[np.float64] = np.asarray(rounds, dtype=np.float64)
    if scores.ndim != 3 or len(scores) < 2:
        raise GudaError(
            "rounds-too-few", f"a query-noise floor needs scores of at least 2 rounds, got shape {scores.shape}"
        )
    totals: dict[str, NDArray[np.float64]] = {}
    chosen = splits(len(scores), seed)
    for half in chosen:
        inside = np.isin(np.arange(len(scores)), half)
        for metric, values in per_query(scores[inside].mean(axis=0), scores[~inside].mean(axis=0)).items():
            totals[metric] = totals.get(metric, 0.0) + values / len(chosen)
    return Floor(
        rounds=len(scores),
        half=len(scores) // 2,
        intervals={metric: bootstrap_mean(values, n, seed) for metric, values in totals.items()},
        reliability=reliability(scores),
    )
