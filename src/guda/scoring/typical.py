"""Would this model make such a picture? A conformal p-value from the full model's own errors, against its own samples.

A picture is described by the logarithms of the full model's KL terms, stratum by stratum of noise, less the smooth
curve that such terms follow along t inside a stratum (a draw's timestep is random and says nothing of the picture),
averaged over rounds. Its distance from the samples is Mahalanobis': too large or too small errors count alike, so
noise (which the model cannot predict) and flat or blurred pictures (which it predicts too well) are both far out.

    p = (1 + how many samples are at least as far out) / (1 + how many samples)

Curve, mean and covariance are computed from the samples and the picture together, so that the picture and a sample
are treated alike. A fresh sample then has p <= alpha with a probability of at most alpha, exactly, whatever the
distribution is (full conformal prediction). A picture that is one of the samples is compared with the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from guda.diffusion.schedule import Schedule
from guda.scoring.plan import Plan, stratified
from guda.scoring.terms import Terms

LEAST = 39  # samples; with fewer even the farthest picture has p > 1 / 40, and the covariance is not worth much

STRATA, ROUNDS = 6, 2  # draws that describe a picture, whatever plan its scores have: one answer for every estimand

DEGREE = 3  # of the curve along t inside a stratum

SHRINK = 0.1  # towards independent strata


def typical_plan(schedule: Schedule, seed: int) -> Plan:
    """The draws that describe a picture."""
    return stratified(schedule, min(STRATA, schedule.t_max), seed, antithetic=True)


@dataclass(frozen=True, eq=False)
class Described:
    """Full-model KL terms (positive) and their timesteps, both [pictures, R, S]."""

    kl: np.ndarray
    t: np.ndarray

    @classmethod
    def of_terms(cls, terms: Terms) -> Described:
        return cls(terms.kl.transpose(1, 0, 2), terms.t.transpose(1, 0, 2))

    def __len__(self) -> int:
        return len(self.kl)

    def of(self, chosen: np.ndarray) -> Described:
        return Described(self.kl[chosen], self.t[chosen])


def typical_p(samples: Described, pictures: Described, place: np.ndarray) -> np.ndarray | None:
    """float64 [Q]; `place` [Q]: which of the samples a picture is, or -1. None: too few samples to tell."""
    if len(samples) < LEAST:
        return None
    values, curves = _logs(samples.kl), _curves(samples.t, samples.t)
    own_values, own_curves = _logs(pictures.kl), _curves(pictures.t, samples.t)
    found = np.empty(len(pictures))
    inside: np.ndarray | None = None  # all samples against each other: what every picture that is a sample needs
    for q, at in enumerate(place):
        if at >= 0:
            inside = _distances(values, curves) if inside is None else inside
            found[q] = _share(inside, int(at))
        else:
            both = np.concatenate([values, own_values[q : q + 1]]), np.concatenate([curves, own_curves[q : q + 1]])
            found[q] = _share(_distances(*both), len(values))
    return found


def _logs(kl: np.ndarray) -> np.ndarray:
    return np.asarray(np.log(np.maximum(kl, 1e-300)))


def _curves(t: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Powers of t, centred and scaled by stratum as `of` is: [n, R, S, DEGREE + 1]."""
    lo, hi = of.min(axis=(0, 1)), of.max(axis=(0, 1))
    u = (2 * t - lo - hi) / np.maximum(hi - lo, 1)
    return np.stack([u**k for k in range(DEGREE + 1)], axis=-1)


def _distances(values: np.ndarray, curves: np.ndarray) -> np.ndarray:
    """Squared, [n], of each picture from the mean of all."""
    x, y = curves.transpose(2, 0, 1, 3), values.transpose(2, 0, 1)  # stratum first
    s, n, r = y.shape
    rows, flat = x.reshape(s, n * r, -1), y.reshape(s, n * r)
    products = rows.transpose(0, 2, 1) @ rows
    fit = np.linalg.pinv(products, rcond=1e-10, hermitian=True) @ (rows.transpose(0, 2, 1) @ flat[..., None])
    left = (flat - (rows @ fit)[..., 0]).reshape(s, n, r).mean(axis=2).T  # [n, S]
    left = left - left.mean(axis=0)
    left = left / np.maximum(left.std(axis=0), 1e-12)
    shape = (1 - SHRINK) * left.T @ left / n + SHRINK * np.eye(s)
    return np.asarray(np.einsum("ni,ni->n", left @ np.linalg.inv(shape), left))


def _share(distances: np.ndarray, at: int) -> float:
    """Of pictures as far out as this one, itself included; equal but for rounding counts."""
    return float((distances >= distances[at] * (1 - 1e-9)).mean())
