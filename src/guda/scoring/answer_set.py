"""Answer sets: "one of these groups, 95 %", calibrated on other pictures that retraining scored (split conformal).

On a calibration picture the set would have to reach down to retraining's first group: by how much the method's score of
that group is below its largest score, over the picture's `spread`. The threshold is reached by at least 95 % of n
pictures and one more that is not there; the set of a new picture has all groups that are no further below the first.

    gap_qs = (max_g score_qg - score_q,first_s) / spread_q         s: a retraining that scored the picture
    threshold = the least h with   sum_q (1/S) sum_s [gap_qs <= h]  >=  level (n + 1)

For exchangeable pictures a new picture's set then holds the first group of ONE of these S retrainings, whichever it is,
with probability `level` or more; with S = 1 it is the usual ceil(level (n + 1))-th smallest gap. It says nothing about
the mean of the retrainings, which is easier to hit, and it takes the models as they are: that a retraining of another
seed is like these is an assumption, as good as the seeds are many. With too few pictures the threshold is infinite and
the set has all groups. The method's own first group is always in the set.

Predictive intervals by the same rule: score +- reach * spread, where a picture's gaps are |score by one retraining -
score| / spread over retrainings and groups. They hold for a group of a picture drawn at random, not for every group.
"""

from __future__ import annotations

import math

import numpy as np

from guda.errors import GudaError
from guda.scoring.estimate import LEVEL


def set_gaps(scores: np.ndarray, oracle: np.ndarray, spread: np.ndarray | None = None) -> np.ndarray:
    """[Q, S] from a method's scores [Q, G] and retrainings' [S, Q, G]; `spread` [Q]: see `spreads`."""
    _check(scores, oracle)
    first = oracle.argmax(axis=2)  # [S, Q]
    reached = np.take_along_axis(scores, first.T, axis=1)  # [Q, S]
    return _over(scores.max(axis=1, keepdims=True) - reached, spread)


def interval_gaps(scores: np.ndarray, oracle: np.ndarray, spread: np.ndarray | None = None) -> np.ndarray:
    """[Q, S G] of the same arrays, for predictive intervals."""
    _check(scores, oracle)
    apart = np.abs(oracle - scores).transpose(1, 0, 2)
    return _over(apart.reshape(len(scores), -1), spread)


def threshold(gaps: np.ndarray, level: float = LEVEL) -> float:
    """From gaps [n, m], m of each calibration picture; infinite where n is too small for the level."""
    n, each = gaps.shape
    # exact in whole numbers: of n m gaps, ceil(level (n + 1) m) must be reached
    place = math.ceil(round(level * (n + 1) * each, 9))
    return math.inf if place > n * each else float(np.sort(gaps, axis=None)[max(place, 1) - 1])


def answer_sets(scores: np.ndarray, reach: float, spread: np.ndarray | None = None) -> np.ndarray:
    """bool [Q, G]: the groups no further than `reach` (a threshold of `set_gaps`) below the first."""
    gap = _over(scores.max(axis=1, keepdims=True) - scores, spread)
    return np.asarray(gap <= reach)


def spreads(scores: np.ndarray) -> np.ndarray:
    """[Q]: how far a picture's groups are apart (standard deviation). Scores in nats are ten times as large for one
    picture as for another, and errors with them."""
    spread = scores.std(axis=1)
    return np.where(spread > 0, spread, 1.0)


def covered(sets: np.ndarray, oracle: np.ndarray) -> np.ndarray:
    """[Q]: share of the retrainings [S, Q, G] whose first group is in the set."""
    first = oracle.argmax(axis=2)
    return np.asarray(np.take_along_axis(sets, first.T, axis=1).mean(axis=1))


def _over(gap: np.ndarray, spread: np.ndarray | None) -> np.ndarray:
    return np.asarray(gap if spread is None else gap / spread[:, None])


def _check(scores: np.ndarray, oracle: np.ndarray) -> None:
    if scores.ndim != 2 or oracle.ndim != 3 or oracle.shape[1:] != scores.shape:
        raise GudaError(
            "calibration-shape-invalid",
            f"scores {scores.shape} and retrainings {oracle.shape} are not of the same pictures and groups",
        )
