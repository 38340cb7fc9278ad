"""Influence of training images on a query through their features, and of whole groups: A_i = w_i phi_q . z_i.

    z_i = K^-1 phi_i (ridge.py), or phi_i without a kernel
    w_i = r_i / (1 - h_i)^leverage / d_i       residual, leverage, and a length d_i where `divide` names one

Sums, means and a group's exact removal are linear in phi_q, so one vector per group says all; max, median, top<m> and
squares need the images' own vectors, which are then streamed (aggregate.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from guda.baselines.aggregate import by_group
from guda.baselines.presets import LINEAR, REMOVAL, GradientConfig
from guda.baselines.ridge import Ridge, Rows, checked_leverage

TINY = 1e-30  # a length to divide by, at least: an image without gradient has no influence


def vectors(
    config: GradientConfig, rows: Rows, ridge: Ridge | None, residual: np.ndarray, members: Sequence[np.ndarray]
) -> dict[str, torch.Tensor]:
    """{"groups": [G, k]}, or {"items": [n, k]} where the groups' vectors are not enough; `members`: positions."""
    r = torch.from_numpy(residual)
    if config.aggregate == REMOVAL:
        assert ridge is not None
        return {"groups": torch.stack([ridge.removal(m, r[m]) for m in map(torch.from_numpy, members)]).float()}
    linear = config.aggregate in LINEAR and not config.square
    if linear and ridge is not None and not config.leverage and config.divide != "influence":
        weights = r if config.divide == "none" else r / _lengths(rows)  # K^-1 of the groups' sums alone
        return {"groups": ridge.combine(_weighting(config, weights, members)).float()}
    every = _weighting(config, torch.ones(rows.n, dtype=torch.float64), members)
    groups, items = torch.zeros(len(members), rows.dim, dtype=torch.float64), []
    for first, z in _weighted(config, rows, ridge, r):
        if linear:
            groups += every[first : first + len(z)].T @ z.double()
        else:
            items.append(z.float())
    return {"groups": groups.float()} if linear else {"items": torch.cat(items)}


def scores(
    config: GradientConfig, phi: torch.Tensor, found: dict[str, torch.Tensor], members: Sequence[np.ndarray]
) -> np.ndarray:
    """float64 [q, G] of queries with features phi [q, k]."""
    phi = phi.double()
    if config.divide == "gradient" and config.kernel == "none":  # a cosine
        phi = phi / phi.norm(dim=1, keepdim=True).clamp(min=TINY)
    if "groups" in found:
        return (phi @ found["groups"].double().T).numpy()

    def influence(positions: np.ndarray) -> np.ndarray:
        a = (phi @ found["items"][torch.from_numpy(positions)].double().T).numpy()
        return a**2 if config.square else a

    return by_group(influence, members, config.aggregate)


def _weighted(
    config: GradientConfig, rows: Rows, ridge: Ridge | None, r: torch.Tensor
) -> Iterator[tuple[int, torch.Tensor]]:
    """w_i z_i, block by block."""
    both = ((f, b, b) for f, b in rows.read()) if ridge is None else ridge.vectors()
    for first, phi, z in both:
        w = r[first : first + len(z)].to(z.dtype)
        if config.leverage:
            w = w / (1 - checked_leverage((phi * z).sum(dim=1))) ** config.leverage
        if config.divide != "none":
            w = w / (z if config.divide == "influence" else phi).norm(dim=1).clamp(min=TINY)
        yield first, z * w[:, None]


def _weighting(config: GradientConfig, weights: torch.Tensor, members: Sequence[np.ndarray]) -> torch.Tensor:
    """[n, G] float64: each group's images with their weights, divided by their number for a mean."""
    found = torch.zeros(len(weights), len(members), dtype=torch.float64)
    for g, m in enumerate(members):
        found[m, g] = weights[m].double() / (len(m) if config.aggregate == "mean" else 1)
    return found


def _lengths(rows: Rows) -> torch.Tensor:
    return torch.cat([block.double().norm(dim=1) for _, block in rows.read()]).clamp(min=TINY)
