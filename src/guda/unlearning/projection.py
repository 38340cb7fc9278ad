"""Densities that tell groups apart along a few directions only, for images that are many numbers and groups of few.

A full covariance of D numbers cannot be told from a group of fewer than D images, and needs D^2 numbers for each group.
Along the first r principal directions V of all images (the columns, orthonormal) it can:

    p_c(x_0) = q_c(V^T (x_0 - mu)) N(rest),        the rest of x_0 has one Gaussian, which all groups share

The coordinates of x_t are noisy coordinates of x_0, V^T (x_t - a mu) = a V^T (x_0 - mu) + s V^T eps, and what groups
share cancels: change_k(x_t) = V (change_k of q at these coordinates), exactly.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from guda.errors import GudaError
from guda.unlearning.density import LARGEST, Removal


def fit_projection(x0: np.ndarray, directions: int, seed: int) -> dict[str, torch.Tensor]:
    """The mean of all images and their principal directions, [D] and [D, directions]."""
    from sklearn.decomposition import PCA

    flat = np.asarray(x0, np.float32).reshape(len(x0), -1)
    most = min(len(flat) - 1, flat.shape[1])
    if directions > most:
        raise GudaError(
            "directions-too-many",
            f"{len(flat)} images of {flat.shape[1]} numbers have {most} principal directions; set at most so many, "
            f"not {directions}",
        )
    solver = "covariance_eigh" if flat.shape[1] <= LARGEST else "randomized"
    found = PCA(directions, svd_solver=solver, random_state=seed).fit(flat.astype(np.float64))
    return {
        "centre": torch.from_numpy(found.mean_.astype(np.float32)),
        "basis": torch.from_numpy(np.ascontiguousarray(found.components_.T.astype(np.float32))),
    }


def project(x0: np.ndarray, tensors: Mapping[str, torch.Tensor]) -> np.ndarray:
    """Coordinates [N, directions] of images."""
    flat = np.asarray(x0, np.float32).reshape(len(x0), -1)
    return np.asarray((flat - tensors["centre"].numpy()) @ tensors["basis"].numpy())


class Projected(Removal):
    def __init__(self, inner: Removal, tensors: Mapping[str, torch.Tensor], device: torch.device | str) -> None:
        """`inner`: of the coordinates."""
        self.inner, self.schedule = inner, inner.schedule
        self.centre, self.basis = tensors["centre"].to(device), tensors["basis"].to(device)

    def changes(self, x_t: torch.Tensor, t: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        flat = x_t.flatten(1)
        a, _ = self.schedule.coefficients(t, flat)
        found = self.inner.changes((flat - a * self.centre) @ self.basis, t, labels) @ self.basis.T
        return found.reshape(len(found), *x_t.shape)
