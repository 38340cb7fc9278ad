"""Drift: what a counterfactual does to pictures of other groups, and scores with the drift subtracted.

    c_k = mean over reference images x outside group k of s_k(x),     s_k(x) = ELBO(x; full) - ELBO(x; without k)

A perfect counterfactual hardly changes them; a short fine-tune makes the model a little worse everywhere, by another
amount for each group, and that amount goes into every score of the group. `score_k - c_k` takes it out. The images are
the sample: their errors are s - c over sqrt(N (N - 1)), and because the c of all groups are of the same images they
are correlated,
    C_jk = sum over x outside both j and k of (s_j - c_j)(s_k - c_k) / sqrt(N_j (N_j - 1) N_k (N_k - 1)),
whose diagonal is the squared standard error of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from guda.data.images import ImageData
from guda.data.queries import Queries
from guda.diffusion.noise import generator
from guda.errors import GudaError
from guda.files import digest
from guda.scoring.estimate import LEVEL, Covariance

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


def measure(score: np.ndarray, outside: np.ndarray) -> Drift:
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
    told = None if prompts is None else tuple(prompts[i] for i in positions)
    return Queries(tuple(ids), data.images[positions], told, reference_name(n, seed, groups))


def reference_groups(images: Queries) -> np.ndarray:
    """int64 [Q]: the group number that each reference image was drawn for."""
    return np.array([int(i.partition("-")[0]) for i in images.ids], np.int64)


def reference_index(images: Queries) -> np.ndarray:
    """int64 [Q]: position of each reference image among the training images."""
    return np.array([int(i.partition("-")[2]) for i in images.ids], np.int64)
