"""The kernel of TRAK and its kin: K = Phi^T Phi + lambda I over the features of all training images.

Image i acts on a query through one vector, z_i = K^-1 phi_i: its influence is A_i = phi_q . z_i, its leverage
h_i = phi_i . z_i, and any sum over a group is linear in phi_q as well,

    sum_i w_i A_i             = phi_q . K^-1 Phi^T w                       no query-by-image matrix
    removal of the group, r   = phi_q . Z_g^T (I - H_gg)^-1 r_g            exact, where the sum is the first order of it

Solved in whichever of the k-by-k (primal) or n-by-n (dual) forms is smaller; they are equal: K^-1 Phi^T =
Phi^T (Phi Phi^T + lambda I)^-1. By Cholesky, or by one eigendecomposition that serves every lambda; never by an
inverse. A matrix that is not positive definite is an error, not a reason for jitter.

lambda is added to the Gram matrix of summed features, unbiased in scale ("jl"). Others write it for features of another
scale: raw_gaussian for N(0, 1) projections (lambda / k here), trace in units of the mean eigenvalue, norm in units of
the mean |phi|^2 of an image, per_n for features averaged over images (lambda n here).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from guda.errors import GudaError

LamScale = Literal["jl", "raw_gaussian", "trace", "norm", "per_n"]

EXACT = 8192  # up to this side float64; beyond, float32 halves what is a matter of gigabytes

LEAST = 1e-6  # of 1 - h: below, an image's own residual is all rounding


@dataclass(frozen=True)
class Rows:
    """Features of the training images, read block by block, always in the same blocks."""

    n: int
    dim: int
    read: Callable[[], Iterator[tuple[int, torch.Tensor]]]  # (position of the first, [b, dim])

    @staticmethod
    def of(features: torch.Tensor, block: int = 1024) -> Rows:
        def read() -> Iterator[tuple[int, torch.Tensor]]:
            for first in range(0, len(features), block):
                yield first, features[first : first + block]

        return Rows(len(features), features.shape[1], read)

    def take(self, members: torch.Tensor) -> torch.Tensor:
        """Those of some images, in the given order."""
        found = torch.empty(len(members), self.dim, dtype=self.dtype)
        for first, block in self.read():
            here = (members >= first) & (members < first + len(block))
            found[here] = block[members[here] - first].to(found)
        return found

    @property
    def dual(self) -> bool:
        return self.n < self.dim

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if min(self.n, self.dim) <= EXACT else torch.float32


def gram(rows: Rows) -> torch.Tensor:
    """Phi^T Phi [k, k], or Phi Phi^T [n, n] where there are fewer images than numbers."""
    if rows.dual:
        every = torch.cat([block for _, block in rows.read()]).to(rows.dtype)
        return every @ every.T
    total = torch.zeros(rows.dim, rows.dim, dtype=rows.dtype)
    for _, block in rows.read():
        block = block.to(rows.dtype)
        total += block.T @ block
    return (total + total.T) / 2


def effective(lam: float, scale: LamScale, rows: Rows, found: torch.Tensor) -> float:
    """lambda as it is added to the Gram matrix `found`."""
    factor = {
        "jl": 1.0,
        "raw_gaussian": 1.0 / rows.dim,
        "trace": float(found.diagonal().sum()) / rows.dim,
        "norm": float(found.diagonal().sum()) / rows.n,
        "per_n": float(rows.n),
    }[scale]
    return lam * factor


class Factor(Protocol):
    lam: float

    def solve(self, right: torch.Tensor) -> torch.Tensor:
        """(gram + lambda I)^-1 right."""


class Cholesky:
    def __init__(self, found: torch.Tensor, lam: float) -> None:
        self.lam = lam
        matrix = found.clone()
        matrix.diagonal().add_(lam)
        self._lower, info = torch.linalg.cholesky_ex(matrix)
        if int(info) or not lam > 0:
            raise GudaError(
                "kernel-singular",
                f"the kernel with lambda = {lam:g} cannot be solved: not positive definite; raise lam",
            )

    def solve(self, right: torch.Tensor) -> torch.Tensor:
        return torch.cholesky_solve(right, self._lower)


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues w and vectors V of a Gram matrix, for any number of lambdas."""

    values: torch.Tensor
    vectors: torch.Tensor

    @staticmethod
    def of(found: torch.Tensor) -> Spectrum:
        values, vectors = torch.linalg.eigh(found)
        return Spectrum(values.clamp(min=0), vectors)


class Eigen:
    def __init__(self, spectrum: Spectrum, lam: float) -> None:
        if not lam > 0:
            raise GudaError(
                "kernel-singular",
                f"the kernel with lambda = {lam:g} cannot be solved; lambda must be positive: raise lam",
            )
        self.lam, self._spectrum = lam, spectrum

    def solve(self, right: torch.Tensor) -> torch.Tensor:
        v = self._spectrum.vectors
        return v @ ((v.T @ right) / (self._spectrum.values + self.lam)[:, None])


class Ridge:
    """What training images say about queries through K^-1."""

    def __init__(self, rows: Rows, factor: Factor) -> None:
        self.rows, self.factor = rows, factor

    def combine(self, weights: torch.Tensor) -> torch.Tensor:
        """[m, k]: the vectors K^-1 Phi^T w of m weightings [n, m] of the images."""
        weights = weights.to(self.rows.dtype)
        if self.rows.dual:
            weights = self.factor.solve(weights)
        total = torch.zeros(self.rows.dim, weights.shape[1], dtype=self.rows.dtype)
        for first, block in self.rows.read():
            total += block.to(total).T @ weights[first : first + len(block)]
        return (total if self.rows.dual else self.factor.solve(total)).T

    def vectors(self) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """(first, phi [b, k], z [b, k]) block by block, in float64 where the side allows."""
        if self.rows.dual:
            every = torch.cat([block for _, block in self.rows.read()]).to(self.rows.dtype)
            solved = self.factor.solve(every)  # M^-1 Phi; M is symmetric, so row i is K^-1 phi_i
            for first, block in self.rows.read():
                yield first, every[first : first + len(block)], solved[first : first + len(block)]
            return
        for first, block in self.rows.read():
            phi = block.to(self.rows.dtype)
            yield first, phi, self.factor.solve(phi.T).T

    def vectors_of(self, members: torch.Tensor, phi: torch.Tensor) -> torch.Tensor:
        """z [m, k] of some images (positions), whose features are phi."""
        if not self.rows.dual:
            return self.factor.solve(phi.T).T
        one = torch.zeros(self.rows.n, len(members), dtype=self.rows.dtype)
        one[members, torch.arange(len(members))] = 1
        return self.combine(one)

    def leverage(self) -> torch.Tensor:
        """h [n], in [0, 1)."""
        return torch.cat([checked_leverage((phi * z).sum(dim=1)) for _, phi, z in self.vectors()])

    def removal(self, members: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """[k]: what removing a group changes, exactly, as a vector to be multiplied by phi_q."""
        phi = self.rows.take(members)
        z = self.vectors_of(members, phi)
        left = torch.eye(len(members), dtype=self.rows.dtype) - phi @ z.T
        lower, info = torch.linalg.cholesky_ex((left + left.T) / 2)
        if int(info):
            raise GudaError(
                "group-removal-unsolvable",
                f"removing a group of {len(members)} images leaves nothing to solve for; raise lam",
            )
        return z.T @ torch.cholesky_solve(residual.to(self.rows.dtype)[:, None], lower)[:, 0]


def checked_leverage(h: torch.Tensor) -> torch.Tensor:
    if float((1 - h).min()) < LEAST:
        raise GudaError(
            "leverage-too-high", f"an image's leverage is {float(h.max()):.8f}: its residual cannot be told; raise lam"
        )
    return h.clamp(min=0)
