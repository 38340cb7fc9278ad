"""Excess scores: more than for the average picture of this model?

    elbo:  score_qk - mean over pictures r of score_rk               nats
    path:  log path_qk - mean over pictures r of log path_rk         a log ratio; log 6 is six times the average

The pictures are the run's own samples, kept with the run, so that a picture gets the same answer by itself and among
others; a picture that is one of them is left out of its own average. Much of a score may be a constant of the group
(every counterfactual differs a little from the full model everywhere, each by its own amount), and it cancels here.
Centring path by subtraction would be wrong: groups that have nothing to do with a picture would then rank by minus
their constant, the same in every picture.

Errors: log p is linear in p up to its relative error, so contributions d become d/p, plus what makes their sum log p
less the average; the average's own error is that of a mean over pictures, correlated between groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from guda.config import ScoringConfig
from guda.data.queries import Queries
from guda.errors import GudaError
from guda.scoring.drift import Drift
from guda.scoring.estimate import Covariance
from guda.scoring.reading import EXCESS_SIGN, LOG_UNIT

TINY = 1e-12  # of a picture's largest divergence: what a group that changes nothing counts for, as log 0 is no number


@dataclass(frozen=True, eq=False)
class Excess(Drift):
    """`mean` is that of all pictures of the average; `own` [Q, G] what each scored picture is compared with."""

    own: np.ndarray | None = None
    log: bool = False

    def spread(self, d: np.ndarray) -> np.ndarray:
        assert self.own is not None
        return self.linear(d, d.mean(axis=0).sum(axis=-1), self.own)

    def ranked(self, d: np.ndarray) -> tuple[np.ndarray, Covariance]:
        """Groups are compared by their ratios, not by the logarithms: the order is the same, a ratio is linear in the
        contributions, and the large relative errors of groups that hardly change do not hide who is first."""
        if not self.log or self.own is None:
            return super().ranked(d)
        ratios = self.ratios(d, self.own)
        size = ratios.mean(axis=0).sum(axis=-1)
        return ratios, lambda q: self.cov * size[q][:, None] * size[q]

    def sizes(self, d: np.ndarray) -> np.ndarray | None:
        """A ratio moves by itself times what its logarithm moves by."""
        return self.ratios(d, self.own).mean(axis=0).sum(axis=-1) if self.log and self.own is not None else None

    def ratios(self, d: np.ndarray, own: np.ndarray) -> np.ndarray:
        """Contributions [..., S] to the ratio of a divergence to the average picture's, `own` [...] its logarithm."""
        return np.asarray(d / np.exp(own)[..., None])

    def of(self, score: np.ndarray) -> np.ndarray:
        """Plain scores [..., Q, G] against the average picture's."""
        assert self.own is not None
        return np.asarray((np.log(floored(score)) if self.log else score) - self.own)

    def constants(self) -> dict[str, np.ndarray]:
        """mean, stderr, lo, hi [G] in nats: what the average picture scores. Of log ratios it is the exponential of the
        mean logarithm, which is what they are ratios to."""
        if not self.log:
            return {
                "mean": self.mean,
                "stderr": self.stderr,
                "lo": self.mean - self.reach,
                "hi": self.mean + self.reach,
            }
        mean = np.exp(self.mean)
        lo, hi = mean * np.exp(-self.reach), mean * np.exp(self.reach)
        return {"mean": mean, "stderr": mean * self.stderr, "lo": lo, "hi": hi}

    def linear(self, d: np.ndarray, score: np.ndarray, own: np.ndarray) -> np.ndarray:
        """Contributions [..., S] whose sum over strata of the mean over rounds is `score` less `own`, as a log ratio
        where this is one; `score` and `own` [...] without rounds."""
        strata = d.shape[-1]
        if not self.log:
            return d - (own / strata)[..., None]
        size = floored(score)
        return d / size[..., None] + ((np.log(size) - score / size - own) / strata)[..., None]


def check_drift(config: ScoringConfig, drift: str | None = None) -> None:
    """Refuse scores that would be less their drift and compared with the average, or less the drift of other scores;
    `drift` other than the setting's."""
    if (drift or config.drift) != "subtract":
        return
    if config.excess:
        raise GudaError(
            "excess-with-drift",
            "scoring.excess takes off what the average picture scores, drift and all; set scoring.drift: keep",
        )
    if config.estimand == "path":
        raise GudaError(
            "path-with-drift", "drift is measured for ELBO differences; with estimand: path use excess: true instead"
        )


def floored(score: np.ndarray) -> np.ndarray:
    """Divergences [..., G], none of them zero; what counts as zero is of each picture alone, not of those beside it."""
    largest = np.where(np.isfinite(score), score, 0.0).max(axis=-1, keepdims=True)
    return np.maximum(score, TINY * np.maximum(largest, 1e-290))


def average(reference: np.ndarray, log: bool, skipped: np.ndarray) -> Excess:
    """From plain scores [N, G] of the model's own pictures; `skipped` [Q]: which of them a scored picture is, or -1."""
    n = len(reference)
    if n < 3:
        raise GudaError("average-too-small", f"an average picture needs three samples or more, not {n}")
    values = np.log(floored(reference)) if log else reference
    mean = values.mean(axis=0)
    centred = values - mean
    without = (n * mean - values) / (n - 1)  # [N, G]
    own = np.where((skipped >= 0)[:, None], without[np.maximum(skipped, 0)], mean)
    suffix = ", log ratio to the average picture" if log else ", less the average picture's"
    groups = reference.shape[1]
    return Excess(
        mean,
        centred.T @ centred / (n * (n - 1)),
        np.full(groups, n),
        suffix,
        LOG_UNIT if log else None,
        None if log else EXCESS_SIGN,
        own,
        log,
    )


def positions(queries: Queries, pictures: Queries) -> np.ndarray:
    """int64 [Q]: where each picture is among `pictures`, by its pixels and prompt; -1: nowhere."""

    def keys(of: Queries) -> list[tuple[bytes, str | None]]:
        return [(i.tobytes(), None if of.prompts is None else of.prompts[n]) for n, i in enumerate(of.images)]

    place = {key: n for n, key in enumerate(keys(pictures))}
    return np.array([place.get(key, -1) for key in keys(queries)], np.int64)
