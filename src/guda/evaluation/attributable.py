"""Per group: can it be attributed at all? How far its scores repeat between trainings, and exceed those of placebos.

A score is s_mqk = constant of (training, group) + factor of (training, picture) + mu_qk + noise_mqk. Constants rank no
picture above another, and factors (a picture on which every change of the model tells) rank no group above another; so
both are taken off: x = s - mean over pictures - a mean over groups. That mean weighs a group by the inverse of its
variance: strong groups would otherwise leave their signal, negative, with the weak. What is left should repeat:

    r_k = mean over m < m' of cov_q(x_m, x_m') / mean over m of var_q(x_m)        of one training
    R_k(S) = S r / (1 + (S - 1) r)                                   of the mean of S (Spearman-Brown)
    S_k = R (1 - r) / ((1 - R) r), R = 0.8                           trainings that would reach R

with a percentile interval over pictures, given these trainings. Whether there is anything to repeat: signs of x are
flipped, independently for every training and picture, which keeps how noisy a picture is; p is the share of flips
whose sum of products is as large, Holm-corrected over the groups, so that of many random groups hardly one passes. With
so few pictures that no p could be small enough, the answer is "unknown".

Placebos, random groups [Q, P] of one training each, ask the same where there is one training: is the group's variance
over pictures V_k, after the placebos' mean is taken off each picture, above theirs? log V of a further placebo is
predicted from theirs by Student's t with P - 1 degrees of freedom, and 1 - mean V_p / V_k is the share of V_k that
noise does not explain, which stands for r. Where there are both, both must speak for the group, and r is that of the
trainings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, FiniteFloat
from scipy import stats

from guda.config import Config
from guda.diffusion.noise import generator
from guda.errors import GudaError
from guda.evaluation.intervals import Figure, holm, percentile_interval, query_counts

Array = NDArray[np.float64]

Answer = Literal["attributable", "pool with others", "below noise", "unknown"]

TARGET = 0.8  # of what is measured is signal: from here on one group's scores are used by themselves

MOST = 30  # retrainings; a group that needs more is below noise for every purpose, however many pictures show it

ALPHA = 0.05  # chance that any group passes for different from noise if none is

FEWEST_PLACEBOS = 5  # with fewer, how much placebos differ from each other is not known

STEADY = 20  # rounds after which the weights of groups no longer change

LIGHTEST = 4  # no group counts more than this many times the median group

FLIPS = 9_999

ENOUGH = 40  # flips per group, so that the smallest p is at most 1/40 after Holm's correction

HELD = 4_000_000  # signs held at once


class GroupSignal(Config):
    """What one group's scores are worth."""

    group: str
    answer: Answer
    one: Figure | None = Field(default=None, description="reliability of one training, interval over pictures")
    mean_of_seeds: FiniteFloat | None = Field(default=None, description="Spearman-Brown, of the trainings at hand")
    retrainings: int | None = Field(default=None, ge=1, description="that would reach 0.8; null: no number would")
    p: float | None = Field(default=None, ge=0, le=1, description="of noise alone, Holm-corrected over groups")


class Attributability(Config):
    """Of all groups, by one method's trainings or placebos."""

    trainings: int = Field(ge=1)
    placebos: int = Field(default=0, ge=0)
    groups: list[GroupSignal]

    def count(self, answer: Answer) -> int:
        return sum(g.answer == answer for g in self.groups)


def attributable(
    groups: Sequence[str], seeds: ArrayLike, placebos: ArrayLike | None = None, n: int = 2000, seed: int = 0
) -> Attributability:
    """From scores of every training, [S, Q, G], and of random groups, [Q, P]."""
    scores, null = _checked(groups, seeds, placebos)
    s, _, g = scores.shape
    known: list[tuple[Array, Array, Array]] = []  # (r, its resamples, p)
    if s > 1:
        x = double_centred(scores)
        known.append((reliability(x), _resampled(x, n, seed), repeat_test(x, seed=seed)))
    if null is not None:
        known.append(_against_placebos(scores, null, n, seed))
    count = 0 if null is None else null.shape[1]
    if not known or too_few_pictures(s, scores.shape[1], g):
        return Attributability(trainings=s, groups=[GroupSignal(group=name, answer="unknown") for name in groups])
    r, samples, _ = known[0]
    p = holm(np.max([found[2] for found in known], axis=0))
    return Attributability(
        trainings=s, placebos=count,
        groups=[_signal(groups[k], float(r[k]), samples[:, k], float(p[k]), s) for k in range(g)],
    )  # fmt: skip


def too_few_pictures(trainings: int, pictures: int, groups: int) -> bool:
    """Whether not even scores that repeat perfectly could be told from noise: products of the trainings' signs have
    (trainings - 1) pictures free signs, so no p of a repeat test is smaller than one of all their patterns."""
    return trainings > 1 and groups * 0.5 ** ((trainings - 1) * pictures) > ALPHA


def _signal(group: str, r: float, samples: Array, p: float, s: int) -> GroupSignal:
    needed, total = retrainings(r), spearman_brown(r, s)
    answer: Answer = "pool with others"
    if p > ALPHA or needed is None or needed > MOST:
        answer = "below noise"
    elif needed <= s:
        answer = "attributable"
    one = percentile_interval(r, samples)
    one = Figure(mean=r, lo=min(one.lo, r), hi=max(one.hi, r))
    return GroupSignal(group=group, answer=answer, one=one, mean_of_seeds=total, retrainings=needed, p=p)


def spearman_brown(r: float, s: int) -> float:
    """Of the mean of s trainings; below 0 there is no common signal to extrapolate."""
    return s * r / (1 + (s - 1) * r) if r > 0 else 0.0


def retrainings(r: float, target: float = TARGET) -> int | None:
    """The fewest whose mean has this reliability; None where no number has."""
    if r <= 0:
        return None
    if r >= 1:
        return 1
    needed = target * (1 - r) / ((1 - target) * r)
    return max(1, math.ceil(needed - 1e-9)) if needed < 1e9 else None


def _checked(groups: Sequence[str], seeds: ArrayLike, placebos: ArrayLike | None) -> tuple[Array, Array | None]:
    scores: Array = np.asarray(seeds, np.float64)
    if scores.ndim != 3 or scores.shape[2] != len(groups) or scores.shape[2] < 2 or scores.shape[1] < 2:
        raise GudaError(
            "seed-scores-shape-invalid",
            f"scores must be [trainings, pictures, {len(groups)} groups], at least 2 of the latter two, got shape "
            f"{scores.shape}",
        )
    null: Array | None = None if placebos is None else np.asarray(placebos, np.float64)
    if null is not None and (null.ndim != 2 or len(null) != scores.shape[1]):
        raise GudaError(
            "placebo-scores-shape-invalid",
            f"placebo scores must be [{scores.shape[1]} pictures, placebos], got shape {null.shape}",
        )
    if not np.isfinite(scores).all() or (null is not None and not np.isfinite(null).all()):
        raise GudaError("values-not-finite", "scores have NaN or infinity; score those pictures again")
    return scores, None if null is None or null.shape[1] < FEWEST_PLACEBOS else null


def double_centred(scores: Array) -> Array:
    """[S, Q, G] without constants of groups and factors of pictures."""
    x: Array = scores - scores.mean(axis=-2, keepdims=True)
    weights = np.ones(x.shape[-1])
    for _ in range(STEADY):
        # each group's variance about the mean of the others: about a mean with itself in it, it could win all weight
        total = (x * weights).sum(axis=-1, keepdims=True)
        others = (total - x * weights) / (weights.sum() - weights)
        variance = (x - others).var(axis=-2).mean(axis=0)
        if (least := float(np.median(variance)) / LIGHTEST) <= 0:
            break
        weights = 1 / np.maximum(variance / least, 1.0)
    return np.asarray(x - (x * weights).sum(axis=-1, keepdims=True) / weights.sum())


def reliability(x: Array) -> Array:
    """[S, Q, G] -> [G]: the intraclass correlation of one training."""
    weights = np.full((1, x.shape[1]), 1.0)
    return _weighted(x, weights)[0]


def _resampled(x: Array, n: int, seed: int) -> Array:
    """[n, G]: the same in resamples of the pictures."""
    return np.concatenate([_weighted(x, w) for w in query_counts(x.shape[1], n, seed)])


def _weighted(x: Array, weights: Array) -> Array:
    """Pictures counted by rows of `weights` [b, Q], -> [b, G]."""
    w = weights / weights.sum(axis=1, keepdims=True)
    means = [w @ one for one in x]
    shared = [w @ (x[i] * x[j]) - means[i] * means[j] for i, j in combinations(range(len(x)), 2)]
    own = np.mean([w @ one**2 - mean**2 for one, mean in zip(x, means, strict=True)], axis=0)
    alive = own > 1e-12 * np.mean([w @ one**2 for one in x], axis=0)
    return np.where(alive, np.mean(shared, axis=0) / np.where(alive, own, 1.0), 0.0)


def repeat_test(x: Array, flips: int = FLIPS, seed: int = 0) -> Array:
    """One-sided p [G] of sum_q sum_{i<j} x_iq x_jq against signs that trainings and pictures draw independently."""
    s, q, g = x.shape
    pairs = list(combinations(range(s), 2))
    products = [x[i] * x[j] for i, j in pairs]
    least = np.sum(products, axis=(0, 1))
    least = least - 1e-10 * np.abs(products).sum(axis=(0, 1))  # equal up to rounding is as large
    flips = max(flips, ENOUGH * g - 1)
    rng, found = generator(seed, "repeat test", s, q), np.zeros(g)
    step = max(1, HELD // (s * q))
    for start in range(0, flips, step):
        signs = 1.0 - 2.0 * rng.integers(0, 2, (min(step, flips - start), s, q), dtype=np.int8)
        sums = sum((signs[:, i] * signs[:, j]) @ products[m] for m, (i, j) in enumerate(pairs))
        found += (sums >= least).sum(axis=0)
    return np.asarray((1 + found) / (1 + flips))


def _against_placebos(scores: Array, null: Array, n: int, seed: int) -> tuple[Array, Array, Array]:
    """(share of the variance above placebos', its resamples, one-sided p)."""
    _, q, p = *scores.shape[:2], null.shape[1]
    own = scores - null.mean(axis=1)[None, :, None]
    others = (null - null.mean(axis=1, keepdims=True)) * p / (p - 1)  # each without the mean of the others
    scale = (p + 1) * (p - 1) / p**2  # the mean of the others has one placebo fewer than that of all

    def variances(weights: Array) -> tuple[Array, Array]:
        w = weights / weights.sum(axis=1, keepdims=True)
        mine = np.mean([w @ one**2 - (w @ one) ** 2 for one in own], axis=0)
        return mine, scale * (w @ others**2 - (w @ others) ** 2)

    def share(mine: Array, theirs: Array) -> Array:
        noise = theirs.mean(axis=1, keepdims=True)
        return np.where(mine > 0, 1 - noise / np.where(mine > 0, mine, 1.0), 0.0).clip(min=0.0)

    mine, theirs = variances(np.ones((1, q)))
    tiny = np.finfo(np.float64).tiny
    logs = np.log(np.maximum(theirs[0], tiny))
    # placebos that happen to be alike are still known from so many pictures only
    spread = max(float(logs.std(ddof=1)), math.sqrt(2 / (q - 1))) * math.sqrt(1 + 1 / p)
    above = (np.log(np.maximum(mine[0], tiny)) - logs.mean()) / spread
    samples = np.concatenate([share(*variances(w)) for w in query_counts(q, n, seed)])
    return share(mine, theirs)[0], samples, np.asarray(stats.t.sf(above, p - 1))
