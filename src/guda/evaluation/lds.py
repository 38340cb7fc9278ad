"""The linear datamodeling score: do a method's scores, added up over a set of groups, order models of such sets?

    LDS_q = Spearman over subsets S of ( sum_{k in S} score_qk ,  v_q(S) )         v: what a model trained on S gives

Subsets are those of trained models (methods/subsets.py), which a method has not seen. A regression on these models is
fitted without those that it predicts (`cross_fitted`). The measured v carries the noise of training, so no method
reaches 1; what a regression on one half of the pairs reaches on the other half is printed beside it as a ceiling, which
a method without that noise may exceed.

Every picture meets the same subsets, whose luck all pictures share. The error adds up two things: the spread over
pictures, and that over subsets by leaving out one of at most BLOCKS blocks of pairs at a time,

    s^2 = sd_q(LDS_q)^2 / Q + (B - 1) / B sum_b (mean LDS without block b - their mean)^2,      mean +- t s
"""

from __future__ import annotations

import numpy as np

from guda.evaluation.intervals import Figure
from guda.evaluation.metrics import spearman
from guda.scoring.datamodel import fit
from guda.scoring.estimate import LEVEL, t_quantile

BLOCKS = 16  # of pairs; fewer where there are fewer pairs

FOLDS = 8  # of pairs, of a cross-fitted regression


def sums(scores: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """[Q, M]: a picture's scores [Q, G] added up over the groups of every subset, bool [M, G]."""
    return np.asarray(scores @ inside.T.astype(np.float64))


def cross_fitted(inside: np.ndarray, values: np.ndarray, ridge: float | None = None, folds: int = FOLDS) -> np.ndarray:
    """[Q, M]: v of every subset predicted by the regression on pairs of other folds; `values` [M, Q]. Rows 2p and
    2p + 1 are a pair, pair p is in fold p mod `folds`."""
    pairs = len(inside) // 2
    fold, found = np.arange(pairs) % min(folds, pairs), np.empty(values.T.shape)
    for f in range(int(fold.max()) + 1):
        rest, own = np.flatnonzero(fold != f), np.flatnonzero(fold == f)
        model = fit(inside[2 * rest], values[2 * rest], values[2 * rest + 1], ridge)
        rows = np.sort(np.concatenate([2 * own, 2 * own + 1]))
        found[:, rows] = model.predict(inside[rows])[0]
    return found


def lds(predicted: np.ndarray, values: np.ndarray) -> Figure:
    """Mean and interval of `predicted` [Q, M] against `values` [M, Q]; rows 2p and 2p + 1 are a pair."""
    measured, subsets = values.T, values.shape[0]
    each = spearman(predicted, measured)
    blocks = min(BLOCKS, subsets // 2)
    block = (np.arange(subsets) // 2) % blocks
    without = np.array([spearman(predicted[:, block != b], measured[:, block != b]).mean() for b in range(blocks)])
    over_subsets = (blocks - 1) / blocks * ((without - without.mean()) ** 2).sum()
    over_pictures = each.var(ddof=1) / len(each) if len(each) > 1 else 0.0
    reach = float(t_quantile(0.5 + LEVEL / 2, float(blocks - 1))) * float(np.sqrt(over_subsets + over_pictures))
    mean = float(each.mean())
    return Figure(mean=mean, lo=max(-1.0, mean - reach), hi=min(1.0, mean + reach))
