"""A density of patches, for models of natural images: whole images are never alike there, small parts of them are.

A convolutional denoiser sees x_t through a window that is small where there is little noise and grows with it. Its
optimal form (Kamb and Ganguli 2024) replaces the posterior over images by one for every place u, over what the training
images show in the window P_u around it:

    w_r(u) = softmax_r( -|P_u(x_t) - a P_u(y_r)|^2 / (2 v) ),   m(u) = sum_r w_r(u) y_r(u),      v = s^2 + a^2 h^2

Removing group k drops its images at every place, so change_k(u) = (W_k m - S_k) / (1 - W_k) as in density.py, place by
place. Windows keep their position (an eye is compared with what is at the same place elsewhere) and end at the border.
With a window as large as the image this is ImageDensity.

How large the window is at which noise is not known beforehand, and no oracle is needed to find out: `fit_windows` takes
those whose m comes nearest to what the full model itself predicts, on training images that are left out of their own
posterior.

Cost of one row, for n training images: about 5 n C H W multiplications, n H W exponentials, and 4 n H W additions for
every pixel of half a side.
"""

from __future__ import annotations

import numpy as np
import torch

from guda.diffusion.denoiser import Denoiser
from guda.diffusion.noise import generator
from guda.diffusion.schedule import Schedule
from guda.errors import GudaError
from guda.unlearning.density import Removal, singles

LEVELS = 10  # noise levels at which the window is chosen, evenly in the logarithm of SNR

IMAGES = 24  # training images on which windows are compared

CHUNK = 1024  # images subtracted at a time


def refuse_classes(density: str) -> None:
    """For class-conditional models, whose posterior is over the images of one class at a time."""
    if density == "patches":
        raise GudaError(
            "patches-class-model", "density: patches is for models without classes; use gaussians or images"
        )


class PatchDensity(Removal):
    def __init__(
        self, x0: torch.Tensor, labels: torch.Tensor, schedule: Schedule, halves: np.ndarray,
        bandwidth: float = 0.0, made_of: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        """`x0`: [n, C, H, W]; `labels`: the atom of each image; `halves`: int [T], pixels of the window on each side of
        its centre at every timestep; `made_of`: bool [atoms, groups], default: every atom is a group."""
        self.x0, self.schedule, self.halves, self.h = x0, schedule, halves, bandwidth
        self.inside = (singles(labels) if made_of is None else made_of)[labels].T  # bool [groups, n]

    def changes(self, x_t: torch.Tensor, t: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """m_-k(x_t) - m(x_t) of every group k, [G, *x_t.shape]; row by row, so that a row's bits are its own."""
        return torch.stack([self._row(x, int(at)) for x, at in zip(x_t, t, strict=True)], dim=1).to(x_t.dtype)

    def _row(self, x: torch.Tensor, t: int) -> torch.Tensor:
        logs = self.exponents(x, t, int(self.halves[t]))
        mean, w = posterior_mean(logs, self.x0)
        inside = self.inside.to(w)
        weight = (inside @ w.flatten(1)).reshape(-1, 1, *x.shape[1:])  # [G, 1, H, W]
        part = torch.stack([(inside @ (w * y).flatten(1)).reshape(-1, *x.shape[1:]) for y in self.x0.unbind(1)], dim=1)
        out = (weight * mean - part) / (1 - weight).clamp_min(0.5)
        # where a group holds most of a place, the quotient would cancel: what the others say is computed without it
        for k in torch.nonzero(weight.flatten(1).amax(dim=1) > 0.5).flatten().tolist():
            others = posterior_mean(logs[~self.inside[k]], self.x0[~self.inside[k]])[0]
            out[k] = torch.where(weight[k] > 0.5, others - mean, out[k])
        a, s = float(self.schedule.a[t]), float(self.schedule.s[t])
        return out * (s**2 / (s**2 + a**2 * self.h**2))  # all that is left of the bandwidth, as of ImageDensity

    def exponents(self, x: torch.Tensor, t: int, half: int) -> torch.Tensor:
        """[n, H, W]: the logarithm of every image's weight at every place, up to a constant of the place."""
        a, s = float(self.schedule.a[t]), float(self.schedule.s[t])
        apart = torch.cat([(x - a * y).square().sum(dim=1) for y in self.x0.split(CHUNK)])
        return window_sums(apart, half) * (-0.5 / (s**2 + a**2 * self.h**2))


def posterior_mean(logs: torch.Tensor, x0: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """([C, H, W], the weights [n, H, W]) from exponents [n, H, W] and images [n, C, H, W]."""
    w = logs.softmax(dim=0)
    return torch.stack([(w * y).sum(dim=0) for y in x0.unbind(1)]), w


def window_sums(x: torch.Tensor, half: int) -> torch.Tensor:
    """Sums over windows of 2 half + 1 pixels a side around each pixel of [n, H, W], cut at the border."""
    for dim in (1, 2):
        size = x.shape[dim]
        reach = min(half, size - 1)
        if reach == size - 1:
            x = x.sum(dim=dim, keepdim=True).expand_as(x)
            continue
        total = x.clone()
        for step in range(1, reach + 1):
            total.narrow(dim, step, size - step).add_(x.narrow(dim, 0, size - step))
            total.narrow(dim, 0, size - step).add_(x.narrow(dim, step, size - step))
        x = total
    return x


def halves_at(schedule: Schedule, log_snr: np.ndarray, halves: np.ndarray) -> np.ndarray:
    """int [T]: of every timestep the window of the nearest noise level at which one was chosen."""
    known = np.nan_to_num(schedule.log_snr, neginf=-1e3)  # without signal: the noisiest
    return np.asarray(halves[np.abs(known[:, None] - log_snr).argmin(axis=1)])


def candidates(side: int) -> list[int]:
    """Windows that are tried, by their half side: more of the small ones, and the whole image."""
    found = sorted({round(1.5**i) for i in range(32)} | {0})
    return [half for half in found if half < side - 1] + [side - 1]


@torch.no_grad()
def fit_windows(
    base: Denoiser, x0: torch.Tensor, seed: int, bandwidth: float = 0.0, images: int = IMAGES
) -> dict[str, torch.Tensor]:
    """The windows whose posterior mean comes nearest to the full model's prediction of x_0, level by level.

    "log_snr", "half", [LEVELS]; "r2": 1 - |m - x0_hat|^2 / |x_t / a - x0_hat|^2, the share of what the model changes in
    x_t that m explains.
    """
    schedule, (height, width) = base.schedule, x0.shape[2:]
    chosen = generator(seed, "windows").permutation(len(x0))[:images]
    one = torch.zeros(len(x0), dtype=torch.int64, device=x0.device)
    density = PatchDensity(x0, one, schedule, np.zeros(schedule.T, np.int64), bandwidth)
    levels = np.linspace(schedule.log_snr[1], schedule.log_snr[schedule.t_max], LEVELS)
    times = np.unique(np.abs(schedule.log_snr[1 : schedule.t_max + 1, None] - levels).argmin(axis=0) + 1)
    halves, shares = [], []
    for t in times.tolist():
        noise = generator(seed, "windows", t).standard_normal((len(chosen), *x0.shape[1:]), dtype=np.float32)
        at = torch.full((len(chosen),), t)
        x_t = schedule.add_noise(x0[chosen], torch.from_numpy(noise).to(x0), at)
        predicted = base.x0(x_t, at)
        a, s = float(schedule.a[t]), float(schedule.s[t])
        gain = a * bandwidth**2 / (s**2 + a**2 * bandwidth**2)  # how far a wide image follows x_t
        errors = []
        for half in candidates(max(height, width)):
            means = []
            for image, x in zip(chosen.tolist(), x_t, strict=True):
                logs = density.exponents(x, t, half)
                logs[image] = -torch.inf  # it was trained on, and would explain itself
                means.append((1 - a * gain) * posterior_mean(logs, x0)[0] + gain * x)
            errors.append(float((torch.stack(means) - predicted).square().mean()))
        best = int(np.argmin(errors))
        halves.append(candidates(max(height, width))[best])
        shares.append(1 - errors[best] / float((x_t / a - predicted).square().mean()))
    return {
        "log_snr": torch.from_numpy(schedule.log_snr[times]),
        "half": torch.tensor(halves),
        "r2": torch.tensor(shares, dtype=torch.float64),
    }
