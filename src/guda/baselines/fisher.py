"""The diagonal of the empirical Fisher information: how firmly the training data holds each weight.

    F = mean over images, timesteps and noise of (d loss / d theta)^2

The square is of each single sample's gradient: squaring the mean gradient of a batch of B would give about F / B. One
pass sees every image once, at one timestep and one noise that (seed, image id, pass) decide; several passes are
averaged. Squares of gradients are far below what half precision can hold: sums are kept in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from guda.baselines.gradients import Gradients
from guda.blocks import blocks
from guda.diffusion.cond import Cond
from guda.diffusion.noise import KeyedNoise
from guda.errors import NotFinite

FLOATS = 2**26  # numbers of per-sample gradients held at once

MOST = 64  # samples at once; more would not be faster

Fisher = dict[str, torch.Tensor]  # float64 [size] by weight


def per_sample_block(sizes: Mapping[str, int], levels: int = 1, block: int = MOST) -> int:
    """How many samples' gradients are taken together: a function of the network and of what the run allows, so that
    no last bit depends on anything else. `block`: images that the network may see at once."""
    return max(1, min(MOST, FLOATS // sum(sizes.values()), block // levels))


def fisher_pass(
    gradients: Gradients,
    x0: torch.Tensor,
    ids: Sequence[str],
    cond: Cond | None = None,
    *,
    seed: int = 0,
    number: int = 0,
    block: int | None = None,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> Fisher:
    """Mean of the squared gradients over x0 [n, C, H, W], whose noise `ids` name, in pass `number`."""
    denoiser = gradients.denoiser
    schedule, device = denoiser.schedule, denoiser.device
    block = block or per_sample_block(gradients.sizes)
    total = {name: torch.zeros(size, dtype=torch.float64, device=device) for name, size in gradients.sizes.items()}
    noise = KeyedNoise()
    for rows in blocks(len(x0), block):
        x = rows.take(x0)
        t, eps = torch.empty(block, dtype=torch.int64), torch.empty_like(x)
        for row, i in enumerate(rows.index):
            rng = noise.at("fisher", seed, ids[i], number)
            t[row] = int(rng.integers(schedule.T))
            eps[row] = torch.from_numpy(rng.standard_normal(x.shape[1:], dtype="float32"))
        x_t, target = (v[:, None].to(device) for v in (schedule.add_noise(x, eps, t), schedule.target(x, eps, t)))
        told = None if cond is None else rows.take(cond).to(device)
        for name, g in gradients(x_t, t[:, None].to(device), target, told).items():
            total[name] += g[: rows.n].square().sum(0, dtype=torch.float64)
        tick(rows.stop, len(x0))
    return {name: value / len(x0) for name, value in total.items()}


def mean_of(passes: Sequence[Fisher]) -> Fisher:
    return {name: torch.stack([f[name] for f in passes]).mean(0) for name in passes[0]}


def inverse(fisher: Fisher, damping: float) -> dict[str, torch.Tensor]:
    """1 / (F + damping x mean F). The damping is relative: weights that no sample moves (F = 0) would else be moved
    without bound, and the scale of F is that of the loss."""
    mean = float(sum(f.sum() for f in fisher.values())) / sum(f.numel() for f in fisher.values())
    if not 0 < mean < float("inf"):
        raise NotFinite(
            "fisher-not-finite",
            f"the mean Fisher information of the chosen weights is {mean}; are the model's weights sound?",
        )
    return {name: (f + damping * mean).reciprocal() for name, f in fisher.items()}
