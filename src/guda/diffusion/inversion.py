"""A picture as the noise it comes from: DDIM inversion, and denoising from that noise.

The deterministic sampler (eta = 0) steps between noise levels (a, s) -> (a', s') by

    x' = (a'/a) x + (s' - s a'/a) eps(x, t)

downwards in noise, for variance-preserving schedules and flow matching alike (of the latter it is an Euler step). Its
exact inverse asks for eps at the noisier end, which is not known yet: a few fixed-point iterations find it. Levels are
evenly spaced in log SNR, where the iteration contracts alike at every step, from t = 0, at which the picture itself
stands for x_t, to t_max. Nothing is drawn at random, and everything is in float32: the same picture gives the same
noise. No guidance: that is another model.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch

from guda.diffusion.denoiser import Denoiser
from guda.diffusion.families.base import Cond
from guda.diffusion.schedule import Schedule

STEPS, REFINE = 100, 4  # levels at most; iterations of a step, one network evaluation each

Tick = Callable[[int, int], None]


def levels(schedule: Schedule, steps: int = STEPS) -> np.ndarray:
    """Timesteps in rising order, evenly spaced in log SNR and as different as whole numbers allow."""
    ends = schedule.log_snr[0], schedule.log_snr[schedule.t_max]
    times = schedule.time_of(np.linspace(*ends, steps + 1))
    return np.unique(np.clip(np.round(times), 0, schedule.t_max).astype(np.int64))


def _step(schedule: Schedule, here: int, there: int) -> tuple[float, float]:
    """What x and eps count for in a step between two levels."""
    (a, a_there), (s, s_there) = schedule.at(np.array([here, there]))
    return float(a_there / a), float(s_there - s * a_there / a)


def _eps(denoiser: Denoiser, x: torch.Tensor, t: int, cond: Cond | None) -> torch.Tensor:
    return denoiser.eps(x, torch.full((len(x),), t, device=x.device), cond)


@torch.no_grad()
def invert(
    denoiser: Denoiser, x0: torch.Tensor, *, steps: int = STEPS, refine: int = REFINE, cond: Cond | None = None,
    tick: Tick = lambda done, total: None,
) -> torch.Tensor:  # fmt: skip
    """The noise float32 [n, C, H, W] at t_max from which `denoise` gives x_0 again."""
    times = levels(denoiser.schedule, steps)
    device = denoiser.device
    cond = None if cond is None else cond.to(device)
    x = float(denoiser.schedule.at(times[:1])[0][0]) * x0.to(device, torch.float32)
    eps = _eps(denoiser, x, int(times[0]), cond)
    for k, (here, there) in enumerate(pairwise(times)):
        keep, move = _step(denoiser.schedule, int(here), int(there))
        for _ in range(refine):
            eps = _eps(denoiser, keep * x + move * eps, int(there), cond)
        x = keep * x + move * eps
        tick(k + 1, len(times) - 1)
    return x.cpu()


@torch.no_grad()
def denoise(
    denoiser: Denoiser, noise: torch.Tensor, *, steps: int = STEPS, cond: Cond | None = None,
    tick: Tick = lambda done, total: None,
) -> torch.Tensor:  # fmt: skip
    """x_0 float32 [n, C, H, W] from noise at t_max; another model gives what it would have made of it."""
    times = levels(denoiser.schedule, steps)[::-1]
    device = denoiser.device
    cond, x = None if cond is None else cond.to(device), noise.to(device)
    for k, (here, there) in enumerate(pairwise(times)):
        keep, move = _step(denoiser.schedule, int(here), int(there))
        x = keep * x + move * _eps(denoiser, x, int(here), cond)
        tick(k + 1, len(times) - 1)
    return (x / float(denoiser.schedule.at(times[-1:])[0][0])).cpu()


def psnr(one: np.ndarray, two: np.ndarray) -> float:
    """Peak signal-to-noise ratio of two uint8 pictures, dB; infinite where they are equal."""
    error = float(np.mean((one.astype(np.float64) - two) ** 2))
    return float("inf") if error == 0 else float(20 * np.log10(255) - 10 * np.log10(error))
