"""Influence of training images on a query through their features, and of whole groups: A_i = w_i phi_q . z_i.

    z_i = K^-1 phi_i (ridge.py), or phi_i without a kernel
    w_i = r_i / (1 - h_i)^leverage / d_i       residual, leverage, and a length d_i where `divide` names one

Sums, means and a group's exact removal are linear in phi_q, so one vector per group says all; max, median, top<m> and
squares need the images' own vectors, which are made, kept and read group by group.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from guda.baselines.aggregate import aggregate
from guda.baselines.presets import LINEAR, REMOVAL, GradientConfig
from guda.baselines.ridge import Ridge, Rows, checked_leverage

TINY = 1e-30  # a length to divide by, at least: an image without gradient has no influence


def linear(config: GradientConfig) -> bool:
    """Whether one vector per group is enough."""
    return config.aggregate in LINEAR and not config.square


def group_vectors(
    config: GradientConfig, rows: Rows, ridge: Ridge | None, residual: np.ndarray, groups: Sequence[np.ndarray]
) -> torch.Tensor:
    """[G, k] for groups of images (positions)."""
    r = torch.from_numpy(residual)
    if config.aggregate == REMOVAL:
        assert ridge is not None
        return torch.stack([ridge.removal(m, r[m]) for m in map(torch.from_numpy, groups)]).float()
    share = [1 / len(m) if config.aggregate == "mean" else 1.0 for m in groups]
    if ridge is not None and not config.leverage and config.divide == "none":
        weights = torch.zeros(rows.n, len(groups), dtype=torch.float64)
        for g, m in enumerate(groups):
            weights[m, g] = r[m].double() * share[g]
        return ridge.combine(weights).float()  # K^-1 of the groups' sums alone
    found = [w * item_vectors(config, rows, ridge, residual, m).sum(dim=0) for w, m in zip(share, groups, strict=True)]
    return torch.stack(found).float()


def item_vectors(
    config: GradientConfig, rows: Rows, ridge: Ridge | None, residual: np.ndarray, members: np.ndarray
) -> torch.Tensor:
    """[n_g, k]: w_i z_i of one group's images, in the order of `members`."""
    index = torch.from_numpy(members)
    phi = rows.take(index)
    z = phi if ridge is None else ridge.vectors_of(index, phi)
    w = torch.from_numpy(residual)[index].to(z.dtype)
    if config.leverage:
        w = w / (1 - checked_leverage((phi * z).sum(dim=1))) ** config.leverage
    if config.divide != "none":
        w = w / (z if config.divide == "influence" else phi).norm(dim=1).clamp(min=TINY)
    return z * w[:, None]


def query_vectors(config: GradientConfig, phi: torch.Tensor) -> torch.Tensor:
    """float64 [q, k]: the queries' side; of unit length where the score is a cosine."""
    phi = phi.double()
    if config.divide == "gradient" and config.kernel == "none":
        phi = phi / phi.norm(dim=1, keepdim=True).clamp(min=TINY)
    return phi


def item_scores(config: GradientConfig, phi: torch.Tensor, items: torch.Tensor) -> np.ndarray:
    """float64 [q] of one group from its images' vectors."""

    def influence(positions: np.ndarray) -> np.ndarray:
        a = (phi @ items[torch.from_numpy(positions)].double().T).numpy()
        return a**2 if config.square else a

    return aggregate(influence, np.arange(len(items)), config.aggregate)
