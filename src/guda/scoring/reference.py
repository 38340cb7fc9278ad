"""What scores are held against, beside the full model: drift on training images, the model's average picture, placebos.

Excess scores: more than for the average picture of this model?

    elbo:  score_qk - mean over pictures r of score_rk               nats
    path:  log path_qk - mean over pictures r of log path_rk         a log ratio; log 6 is six times the average

The pictures are the run's own samples, kept with the run, so that a picture gets the same answer by itself and among
others; a picture that is one of them is left out of its own average. Much of a score may be a constant of the group
(every counterfactual differs a little from the full model everywhere, each by its own amount), and it cancels here.
Centring path by subtraction would be wrong: groups that have nothing to do with a picture would then rank by minus
their constant, the same in every picture.

Errors: log p is linear in p up to its relative error, so contributions d become d/p, plus what makes their sum log p
less the average; the average's own error is that of a mean over pictures, correlated between groups.

Drift: what a counterfactual does to pictures of other groups, and scores with the drift subtracted.

    c_k = mean over reference images x outside group k of s_k(x),     s_k(x) = ELBO(x; full) - ELBO(x; without k)

A perfect counterfactual hardly changes them; a short fine-tune makes the model a little worse everywhere, by another
amount for each group, and that amount goes into every score of the group. `score_k - c_k` takes it out. The images are
the sample: their errors are s - c over sqrt(N (N - 1)), and because the c of all groups are of the same images they
are correlated,
    C_jk = sum over x outside both j and k of (s_j - c_j)(s_k - c_k) / sqrt(N_j (N_j - 1) N_k (N_k - 1)),
whose diagonal is the squared standard error of each.

What random groups of images (placebos) score on a set of pictures: the line that a group's score should be above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from guda.config import ScoringConfig
from guda.data.images import ImageData
from guda.data.queries import Queries
from guda.diffusion.noise import generator
from guda.errors import GudaError
from guda.files import digest
from guda.scoring.estimate import LEVEL, Covariance
from guda.scoring.reading import EXCESS_SIGN, LOG_UNIT
from guda.scoring.scores import Scores

SEED = 0  # of the reference images

SUBTRACTED = ", drift subtracted"  # ends the name of the estimand


@dataclass(frozen=True, eq=False)
class Drift:
    mean: np.ndarray  # [G] nats
    cov: np.ndarray  # [G, G] nats^2
    n: np.ndarray  # [G] images behind each
    suffix: str = SUBTRACTED  # of the estimand's name
    unit: str | None = None  # of the scores without it, if another
    sign: str | None = None  # the same

    @property
    def stderr(self) -> np.ndarray:
        return np.sqrt(np.diagonal(self.cov))

    @property
    def reach(self) -> np.ndarray:
        """Half-width of the 95 % interval, Student-t over the images."""
        return np.asarray(stats.t.ppf(0.5 + LEVEL / 2, self.n - 1)) * self.stderr

    def spread(self, d: np.ndarray) -> np.ndarray:
        """Paired contributions [R, Q, G, S] less the drift, in equal parts from every stratum: the sum over strata of
        the mean over rounds falls by c_k, and what varies between rounds, the scoring error, is left as it is."""
        return d - (self.mean / d.shape[-1])[:, None]

    def ranked(self, d: np.ndarray) -> tuple[np.ndarray, Covariance]:
        """Contributions by which groups are compared with each other, and the covariance of what else errs."""
        return self.spread(d), self.cov

    def sizes(self, d: np.ndarray) -> np.ndarray | None:
        """[Q, G]: what a change of a score counts for where groups are compared with each other; None: one for one."""
        return None

    def widen(self, estimates: dict[str, Any]) -> dict[str, Any]:
        """score, stderr, lo, hi [Q, G] of shifted contributions, with the drift's own error: in quadrature, the
        standard errors and the half-widths alike."""
        if estimates["stderr"] is None:
            return estimates
        score = estimates["score"]
        reach = np.hypot(estimates["hi"] - score, self.reach)
        stderr = np.hypot(estimates["stderr"], self.stderr)
        return {"score": score, "stderr": stderr, "lo": score - reach, "hi": score + reach}


def measure_drift(score: np.ndarray, outside: np.ndarray) -> Drift:
    """From scores [Q, G] of reference images; `outside` bool [Q, G]: those that are no part of the group."""
    n = outside.sum(axis=0)
    if n.min() < 2:
        raise GudaError(
            "drift-images-too-few",
            "drift needs two or more training images outside each group; there are too few to measure it",
        )
    mean = np.where(outside, score, 0.0).sum(axis=0) / n
    centred = np.where(outside, score - mean, 0.0) / np.sqrt(n * (n - 1.0))
    return Drift(mean, centred.T @ centred, n)


# ---- The reference images: some training images of every group, drawn by the key (seed, "reference", group number), so
# that more images keep those drawn. An id says which image it is, <group number>-<position in the training set>.
def reference_name(n: int, seed: int = SEED, groups: Sequence[int] | None = None) -> str:
    return f"reference-n{n}-s{seed}" + ("" if groups is None else f"-g{digest(list(groups), 6)}")


def draw_reference(
    data: ImageData,
    n: int,
    seed: int = SEED,
    prompts: Sequence[str] | None = None,
    groups: Sequence[int] | None = None,
) -> Queries:
    """At most `n` images of each group, or of each of `groups`; a smaller group gives all it has.

    `prompts`: of every training image."""
    ids, positions = [], []
    for k in data.groups.leaves if groups is None else groups:
        for i in generator(seed, "reference", k).permutation(data.groups.members(k))[:n]:
            ids.append(f"{k:04d}-{i:07d}")
            positions.append(int(i))
    own_prompts = None if prompts is None else tuple(prompts[i] for i in positions)
    return Queries(tuple(ids), data.images[positions], own_prompts, reference_name(n, seed, groups))


def reference_groups(images: Queries) -> np.ndarray:
    """int64 [Q]: the group number that each reference image was drawn for."""
    return np.array([int(i.partition("-")[0]) for i in images.ids], np.int64)


def reference_index(images: Queries) -> np.ndarray:
    """int64 [Q]: position of each reference image among the training images."""
    return np.array([int(i.partition("-")[2]) for i in images.ids], np.int64)


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


QUANTILE = 0.95


@dataclass(frozen=True, eq=False)
class Null:
    """What placebos score on a set of pictures, all of them together."""

    scores: Scores
    size: int  # images of a placebo

    @property
    def n(self) -> int:
        return len(self.scores.groups)

    def quantile(self, q: float = QUANTILE) -> float:
        """The score that a share `q` of all (picture, placebo) scores is not above."""
        return float(np.quantile(self.scores.score, q))

    def clears(self, scores: Scores) -> np.ndarray:
        """bool [Q]: whether the first group's score is above 95 % of the placebo scores of the set.

        One line for all pictures. It is a line for one group: the first of G placebos would pass it for up to
        1 - 0.95^G of the pictures."""
        return np.asarray(scores.first > self.quantile())

    def to_json(self, scores: Scores) -> dict[str, Any]:
        return {
            "placebos": self.n, "images": self.size, "median": self.quantile(0.5), "q95": self.quantile(),
            "first_above": int(self.clears(scores).sum()), "of": len(scores.queries),
        }  # fmt: skip

    def sentence(self, unit: str) -> str:
        return (
            f"{self.n} placebo groups of {self.size:,} random images: half of their scores are below "
            f"{self.quantile(0.5):.3g} {unit}, 95 % below {self.quantile():.3g}"
        )
