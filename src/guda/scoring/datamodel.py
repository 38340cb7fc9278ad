"""The datamodel: values of models trained on halves of the groups, regressed on which groups they have seen.

    v(S) = b_0 + sum_k b_k 1[k in S] + error                     v: ELBO of a picture, nats; or minus a path divergence

Halves come in complementary pairs, z_pk = +1 where group k is in S_p, -1 where it is in the complement:

    D_p = v(S_p) - v(complement) = sum_k z_pk b_k + e_p,      b = (Z'Z + lambda)^-1 Z'D
    cov b = s^2 (Z'Z + lambda)^-1,      s^2 = sum e_p^2 / (P - tr H),   H = Z (Z'Z + lambda)^-1 Z'

What both models of a pair share (b_0, the luck of their common seed, every interaction of an even number of groups)
cancels in D. With lambda = 0 and trainings of variance sigma^2 each, Var b_k is about 2 sigma^2 / P = 4 sigma^2 / M of
M = 2P trainings; LOGO of M trainings has sigma^2 G / M and more. s^2 is the spread about the fit over pairs, each of
them another training, so the error contains the randomness of training and what is not additive in v.

**What b_k estimates** is the average of v(S + k) - v(S) over random halves S: the Banzhaf value at one half. It is not
LOGO's v(all) - v(all - k): groups that can replace one another count here, and not there.

With fewer pairs than twice the groups the least-squares fit is too loose, and lambda is chosen for each picture by
leaving out one pair at a time (sum of squared errors of the prediction); b is then drawn towards zero, and its error is
that of a random effect whose variance is s^2 / lambda.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from guda.errors import GudaError

GRID = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)  # lambda over the number of pairs

ENOUGH = 2  # pairs per group from which on nothing is drawn towards zero


@dataclass(frozen=True, eq=False)
class Datamodel:
    """Of Q pictures and G groups, from P pairs."""

    weights: np.ndarray  # [Q, G, P]: b = weights D
    coefficients: np.ndarray  # [Q, G]: b_k
    covariance: np.ndarray  # [Q, G, G]
    df: np.ndarray  # [Q] degrees of freedom of s^2
    spread: np.ndarray  # [Q] s^2
    middle: np.ndarray  # [Q]: mean of v over all halves, b_0 + sum b / 2
    middle_variance: np.ndarray  # [Q]
    ridge: np.ndarray  # [Q] lambda

    @property
    def stderr(self) -> np.ndarray:
        """[Q, G]."""
        return np.sqrt(np.diagonal(self.covariance, axis1=1, axis2=2))

    def predict(self, inside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(v(S), its standard error without that of a new training), [Q, N] of the sets `inside`, bool [N, G]."""
        z = signs(inside) / 2
        variance = np.einsum("nj,qjk,nk->qn", z, self.covariance, z) + self.middle_variance[:, None]
        return self.middle[:, None] + self.coefficients @ z.T, np.sqrt(variance)

    def effect(self, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(sum of b over `groups` (bool [G]), its standard error), [Q]: what leaving them costs at half."""
        chosen = groups.astype(np.float64)
        return self.coefficients @ chosen, np.sqrt(np.einsum("j,qjk,k->q", chosen, self.covariance, chosen))


def signs(inside: np.ndarray) -> np.ndarray:
    """bool -> +1.0 or -1.0."""
    return np.where(inside, 1.0, -1.0)


def fit(inside: np.ndarray, first: np.ndarray, second: np.ndarray, ridge: float | None = None) -> Datamodel:
    """`inside`: bool [P, G], the groups of each pair's first half; `first`, `second`: values [P, Q] of its models.

    `ridge`: lambda over the number of pairs, for all pictures; None: see above."""
    z = signs(inside)
    pairs, groups = z.shape
    if first.shape != second.shape or first.ndim != 2 or len(first) != pairs:
        raise ValueError(f"values {first.shape}, {second.shape} of {pairs} pairs")
    least = groups + 1 if ridge == 0 else 2
    if pairs < least:
        raise GudaError(
            "datamodel-pairs-too-few",
            f"{pairs} pairs of subset models cannot say anything about {groups} groups; train at least {2 * least} "
            "models: guda fit RUN --method subsets --set models=N",
        )
    differences = first - second
    u, s, v = np.linalg.svd(z, full_matrices=True)
    s = np.concatenate([s, np.zeros(groups - len(s))]) if len(s) < groups else s
    u = np.pad(u, ((0, 0), (0, max(0, groups - pairs))))[:, :groups]
    if (ridge == 0 or (ridge is None and pairs >= ENOUGH * groups)) and s.min() > 1e-9 * s.max():
        chosen = np.zeros(differences.shape[1])
    elif ridge == 0:
        raise GudaError(
            "datamodel-pairs-too-few", "these halves always hold some groups together; train more models, or set ridge"
        )
    elif ridge is not None:
        chosen = np.full(differences.shape[1], ridge * pairs)
    else:
        chosen = left_out_ridge(u, s, differences)
    kept = s**2 / (s**2 + chosen[:, None])  # [Q, G]
    kept = np.where(s > 0, kept, 0.0)
    df = pairs - kept.sum(axis=1)
    projected = u.T @ differences  # [G, Q]
    residual = differences - u @ (kept.T * projected)
    spread = (residual**2).sum(axis=0) / df
    shrunk = np.divide(s, s**2 + chosen[:, None], out=np.zeros_like(kept), where=(s > 0))
    weights = np.einsum("kg,qk,pk->qgp", v, shrunk, u)
    inverse = 1 / (s**2 + chosen[:, None])
    covariance = spread[:, None, None] * np.einsum("kg,qk,kh->qgh", v, inverse, v)
    means = (first + second) / 2
    return Datamodel(
        weights, np.einsum("qgp,pq->qg", weights, differences), covariance, df, spread, means.mean(axis=0),
        means.var(axis=0, ddof=1) / pairs, chosen,
    )  # fmt: skip


def left_out_ridge(u: np.ndarray, s: np.ndarray, differences: np.ndarray) -> np.ndarray:
    """[Q]: the lambda of the grid whose fits predict the pair that they leave out best."""
    pairs = len(u)
    projected, errors = u.T @ differences, []
    for step in GRID:
        kept = np.where(s > 0, s**2 / (s**2 + step * pairs), 0.0)
        left = 1 - (u**2 @ kept)
        residual = differences - u @ (kept[:, None] * projected)
        errors.append(((residual / left[:, None]) ** 2).sum(axis=0))
    return np.asarray(GRID)[np.argmin(errors, axis=0)] * pairs
