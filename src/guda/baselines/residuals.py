"""Residuals: how far the network is off at each training image, which DAS weighs the image by (BASELINES 3).

e_it = mean over pixels of (output - target)^2     on a grid of timesteps, noise shared by all images

normalized   a = sqrt(e_i) / |sqrt(e_i)|_2 over t, r_i = mean_t a      the public code: only the profile over t counts
rms          r_i = sqrt(mean_t e_it)
none         r_i = 1
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch

from guda.baselines.features import grid
from guda.blocks import blocks
from guda.diffusion.cond import Cond
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.noise import generator
from guda.errors import NotFinite

Residual = Literal["none", "normalized", "rms"]


@torch.inference_mode()
def profile(
    denoiser: Denoiser,
    x0: torch.Tensor,
    levels: int,
    seed: int,
    block: int,
    cond: Cond | None = None,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> np.ndarray:
    """float64 [n, levels]: e_it."""
    times, device = grid(denoiser.schedule.T, levels), denoiser.device
    found = np.empty((len(x0), levels))
    for s, time in enumerate(times):
        tick(s, levels)
        eps = torch.from_numpy(generator("residuals", seed, int(time)).standard_normal(denoiser.shape, np.float32))
        for rows in blocks(len(x0), block):
            t = torch.full((block,), int(time))
            x, noise = rows.take(x0), eps.expand(block, *eps.shape)
            x_t, target = denoiser.schedule.add_noise(x, noise, t), denoiser.schedule.target(x, noise, t)
            told = None if cond is None else rows.take(cond).to(device)
            error = denoiser.raw(x_t.to(device), t.to(device), told) - target.to(device)
            e = error.double().square().flatten(1).mean(dim=1).cpu().numpy()
            found[rows.start : rows.stop, s] = e[: rows.n]
    if not np.isfinite(found).all():
        raise NotFinite(
            "network-not-finite", "the network returned NaN or infinity for a training image; are its weights sound?"
        )
    return found


def residuals(errors: np.ndarray, kind: Residual) -> np.ndarray:
    """r [n] from e [n, levels]."""
    if kind == "rms":
        return np.sqrt(errors.mean(axis=1))
    if kind == "none":
        return np.ones(len(errors))
    a = np.sqrt(errors)
    return (a / (np.linalg.norm(a, axis=1, keepdims=True) + 1e-8)).mean(axis=1)
