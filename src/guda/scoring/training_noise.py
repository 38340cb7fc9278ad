"""What another training would say: the randomness of training, from scores by several trainings.

    s_qkm = mu_qk + b_km + e_qkm + sampling error          picture q, group k, training m = 1..M

b is a constant of a group and a training, e belongs to the picture as well. All trainings are scored with the same
draws (t, eps), so the sampling error that they share moves them together and cancels in their differences; only what is
each training's own adds to their spread. Components by moments, over deviations from the mean of the trainings:

    sigma_b^2   mean over pictures of a group's deviations, less what e adds to such a mean; never negative
    sigma_e^2   of every cell, from M - 1 degrees of freedom, drawn towards what is usual in its group: a weighted mean
                of the two, weighted by degrees of freedom. How far the cells of a group differ beyond what M - 1
                degrees explain (the variance of the logarithms of their variances) says what the usual value weighs.
                What is usual goes with the size of the score.

    one more training, scored with the same draws:   mean_m s_qkm +- t sqrt((sigma_b^2 + sigma_e^2) (1 + 1/M))
    error of the mean over trainings:                sqrt((sigma_b^2 + sigma_e^2 - own sampling) / M)

where sigma_e^2 contains each training's own sampling error, and t has the degrees of freedom of the sum. Excess scores
have (nearly) no b: the average picture takes it off. Trainings of one seed share a full model, so the groups'
deviations are correlated; their correlation is taken over all pictures.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import digamma, polygamma

from guda.errors import GudaError
from guda.scoring.estimate import LEVEL, t_quantile

FEW = 10  # pictures: with fewer, what is usual is taken over all groups together

ALIKE = 30  # variances: with fewer, their scatter says nothing, and their mean stands for all

MOST = 1e6  # degrees of freedom: as good as known


@dataclass(frozen=True, eq=False)
class TrainingNoise:
    trainings: int
    mean: np.ndarray  # [Q, G] over trainings
    constant: np.ndarray  # [G] sigma_b^2
    own: np.ndarray  # [Q, G] sigma_e^2, with each training's own sampling error
    sampling: np.ndarray  # [Q, G] that sampling error
    df: np.ndarray  # [Q, G] of constant + own
    correlation: np.ndarray  # [G, G] of the groups' deviations

    @property
    def variance(self) -> np.ndarray:
        """[Q, G]: of one training about the mean of all possible ones, without sampling error."""
        return np.asarray(self.constant + np.maximum(self.own - self.sampling, 0.0))

    @property
    def stderr(self) -> np.ndarray:
        """[Q, G]: of the mean over these trainings."""
        return np.sqrt(self.variance / self.trainings)

    def predicted(self, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
        """(lo, hi) [Q, G]: what one more training would score."""
        spread = np.sqrt((self.constant + self.own) * (1 + 1 / self.trainings))
        reach = t_quantile(0.5 + level / 2, self.df) * spread
        return self.mean - reach, self.mean + reach

    def covariance(self, q: int) -> tuple[np.ndarray, np.ndarray]:
        """Of the mean over these trainings for one picture, and its degrees of freedom; both [G, G]."""
        error = self.stderr[q]
        return error[:, None] * self.correlation * error, np.minimum(self.df[q][:, None], self.df[q])


def training_noise(scores: np.ndarray, sampling: np.ndarray | float = 0.0) -> TrainingNoise:
    """From scores by trainings [M, Q, G], M >= 2; `sampling`: variance of one training's own sampling error, what it
    does not share with the others because all have the same draws (`own_sampling`)."""
    if scores.ndim != 3 or len(scores) < 2:
        raise GudaError(
            "trainings-too-few", f"the randomness of training shows from two trainings on; scores are {scores.shape}"
        )
    trainings, pictures, groups = scores.shape
    mean = scores.mean(axis=0)
    deviations = scores - mean
    df = trainings - 1.0
    constants = deviations.mean(axis=1) if pictures > 1 else np.zeros((trainings, groups))  # b and e of one: not told
    rest = deviations - constants[:, None]
    cells = (rest**2).sum(axis=0) / df * (pictures / max(pictures - 1, 1))
    own, own_df = np.empty_like(cells), np.empty_like(cells)
    if pictures < FEW:
        own[:], own_df[:] = (a.reshape(cells.shape) for a in shrink(cells.reshape(-1), df))
    else:
        for g in range(groups):
            size = _sizes(cells[:, g], mean[:, g])
            own[:, g], own_df[:, g] = shrink(cells[:, g] / size, df)
            own[:, g] *= size
    of_means, means_df = shrink((constants**2).sum(axis=0) / df, df)
    constant = np.maximum(of_means - own.mean(axis=0) / pictures, 0.0) if pictures > 1 else np.zeros(groups)
    total = constant + own
    with np.errstate(divide="ignore", invalid="ignore"):
        both = total**2 / (constant**2 / means_df + own**2 / own_df)
        standardised = np.where(total > 0, deviations / np.sqrt(total), 0.0)
    return TrainingNoise(
        trainings, mean, constant, own, np.broadcast_to(sampling, mean.shape), np.where(total > 0, both, own_df),
        _correlation(standardised),
    )  # fmt: skip


def left_out_coverage(scores: np.ndarray, level: float = LEVEL) -> np.ndarray:
    """[Q]: how often a training's scores [M, Q, G] lie in what the others predict, over trainings and groups; M >= 3.

    Predicting needs no sampling error: a training's own is in the spread of the others."""
    inside = []
    for m in range(len(scores)):
        lo, hi = training_noise(np.delete(scores, m, axis=0)).predicted(level)
        inside.append((lo <= scores[m]) & (scores[m] <= hi))
    return np.asarray(np.mean(inside, axis=(0, 2)))


def own_sampling(contributions: np.ndarray) -> np.ndarray:
    """Variance [Q, G] of one training's own sampling error, from the contributions [M, R, Q, G, S] of all of them at
    the same draws; zero with a single round, which cannot tell it from the randomness of training."""
    trainings, rounds = contributions.shape[:2]
    if rounds < 2:
        return np.zeros((contributions.shape[2], contributions.shape[3]))
    deviations = contributions - contributions.mean(axis=0)
    variances = deviations.var(axis=1, ddof=1).sum(axis=-1) / rounds
    return np.asarray(variances.sum(axis=0) / (trainings - 1))


def shrink(variances: np.ndarray, df: float) -> tuple[np.ndarray, np.ndarray]:
    """Sample variances [N] of `df` degrees of freedom each, drawn towards their usual value; and the degrees of freedom
    [N] that they then have.

    If true variances scatter like 1 / chi^2 of d0 degrees, the mean and the variance of log s^2 are known functions of
    the usual value and of d0, which are solved for; the mean of a variance and the usual value, weighted df : d0, then
    has df + d0 degrees of freedom."""
    positive = variances > 0
    if positive.sum() < ALIKE:
        return _pooled(variances, df)
    logs = np.log(variances[positive])
    # few values show their scatter badly; taken too small, it would promise too much
    scatter = logs.var(ddof=1) * (1 + 1 / np.sqrt(2 * (len(logs) - 1))) - float(polygamma(1, df / 2))
    weight = min(2 * _inverse_trigamma(scatter), MOST) if scatter > 0 else MOST
    if weight >= MOST:  # no more scatter than df degrees explain: one variance for all
        return np.full(len(variances), variances.mean()), np.full(len(variances), df * len(variances))
    centre = logs.mean() - float(digamma(df / 2)) + np.log(df / 2)
    usual = float(np.exp(centre + digamma(weight / 2) - np.log(weight / 2)))
    return (weight * usual + df * variances) / (weight + df), np.full(len(variances), weight + df)


def _sizes(variances: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """[N]: how the variances of a group's cells go with their scores, a least-squares fit of the logarithms. Scores of
    pictures that the group matters for are larger, and so is what another training changes about them."""
    usual, positive = float(np.median(np.abs(mean))), variances > 0
    if positive.sum() < ALIKE or usual <= 0:
        return np.ones(len(variances))
    u = np.arcsinh(mean / usual)
    features = np.stack([np.ones(len(u)), u, np.abs(u)], axis=1)
    fitted, *_ = np.linalg.lstsq(features[positive], np.log(variances[positive]), rcond=None)
    return np.asarray(np.exp(features @ fitted - fitted[0]))


def _pooled(variances: np.ndarray, df: float) -> tuple[np.ndarray, np.ndarray]:
    """Their mean for all, with Satterthwaite's degrees of freedom of a mean of variances that need not be equal (with
    the usual correction for estimating these from the variances themselves)."""
    squares = float((variances**2).sum())
    pooled_df = (df + 2) * float(variances.sum()) ** 2 / squares - 2 if squares > 0 else df
    return np.full(len(variances), variances.mean()), np.full(
        len(variances), np.clip(pooled_df, df, df * len(variances))
    )


def _inverse_trigamma(value: float) -> float:
    """Trigamma falls from infinity to zero: bisection on a logarithmic scale."""
    lo, hi = -20.0, 20.0
    for _ in range(100):
        middle = (lo + hi) / 2
        lo, hi = (middle, hi) if float(polygamma(1, np.exp(middle))) > value else (lo, middle)
    return float(np.exp(lo))


def _correlation(standardised: np.ndarray) -> np.ndarray:
    """[G, G] from [M, Q, G]; drawn towards equal correlations, which few pictures can tell at best."""
    trainings, pictures, groups = standardised.shape
    flat = standardised.reshape(-1, groups)
    size = np.sqrt((flat**2).sum(axis=0))
    unit = flat / np.where(size > 0, size, 1.0)
    correlation = unit.T @ unit
    np.fill_diagonal(correlation, 1.0)
    if groups == 1:
        return correlation
    usual = np.clip((correlation.sum() - groups) / (groups * (groups - 1)), 0.0, 1.0)
    equal = np.full((groups, groups), usual)
    np.fill_diagonal(equal, 1.0)
    n = pictures * (trainings - 1)
    return np.asarray((n * correlation + groups * equal) / (n + groups))
