"""What a denoiser sees in an image: an inner activation, averaged over a few noise levels.

Which one, by what the network is:

    mid_block            of a UNet: the output of its middle block
    transformer_blocks   of a transformer: the output of the block in the middle
    otherwise            the input of the last layer that has weights, i.e. the penultimate activation

Positions (pixels, tokens) are averaged, noise levels too; the vector is made unit length, so that squared distances are
twice one minus the cosine. The noise of a level is keyed by (seed, t) and the same for every image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from guda.blocks import blocks
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.families.base import Cond
from guda.diffusion.noise import generator
from guda.errors import GudaError

LEVELS = (0.1, 0.3, 0.5)  # fractions of T

Tick = Callable[[int, int], None]


def inner_layer(module: nn.Module) -> tuple[str, nn.Module | None]:
    """(what is looked at, in words; the module whose output it is, or None: the penultimate activation)."""
    if isinstance(middle := getattr(module, "mid_block", None), nn.Module):
        return "output of the middle block", middle
    tower = getattr(module, "transformer_blocks", None)
    if isinstance(tower, nn.ModuleList) and len(tower):
        return f"output of transformer block {len(tower) // 2 + 1} of {len(tower)}", tower[len(tower) // 2]
    return "input of the last layer", None


@contextmanager
def _watched(module: nn.Module) -> Iterator[list[torch.Tensor]]:
    """A list that holds the activation after each call of the network."""
    seen: list[torch.Tensor] = []

    def keep(value: Any) -> None:
        tensors = [v for v in (value if isinstance(value, tuple) else (value,)) if isinstance(v, torch.Tensor)]
        if tensors:
            seen[:] = [tensors[-1]]  # blocks of SD3 return (text, image)

    _, chosen = inner_layer(module)
    if chosen is not None:
        hooks = [chosen.register_forward_hook(lambda _m, _i, out: keep(out))]
    else:  # the last call of all counts
        leaves = [m for m in module.modules() if not list(m.children()) and getattr(m, "weight", None) is not None]
        hooks = [m.register_forward_pre_hook(lambda _m, args: keep(args)) for m in leaves]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _pooled(x: torch.Tensor, n: int) -> torch.Tensor:
    """[n, D]: [n, D, H, W] and [n, tokens, D] are averaged over positions."""
    if len(x) != n or x.ndim < 2:
        raise GudaError("activation-unknown", "the network has no inner activation with a row per image; skip it")
    return x if x.ndim == 2 else x.mean(1) if x.ndim == 3 else x.flatten(2).mean(2)


@torch.no_grad()
def activations(
    denoiser: Denoiser, x0: torch.Tensor, cond: Cond | None = None, *, block: int = 64, seed: int = 0,
    fractions: tuple[float, ...] = LEVELS, tick: Tick = lambda done, total: None,
) -> np.ndarray:  # fmt: skip
    """float32 [n, D], rows of unit length; an image's row does not depend on the others."""
    schedule, device = denoiser.schedule, denoiser.device
    out: list[torch.Tensor] = []
    times = [min(round(f * schedule.T), schedule.t_max) for f in fractions]
    noise = [generator(seed, "activation", t).standard_normal(denoiser.shape, dtype=np.float32) for t in times]
    with _watched(denoiser.module) as seen:
        for rows in blocks(len(x0), block):
            tick(rows.start, len(x0))
            x, told = rows.take(x0), None if cond is None else rows.take(cond).to(device)
            seen_at = []
            for t, eps in zip(times, noise, strict=True):
                at = torch.full((rows.size,), t)
                x_t = schedule.add_noise(x, torch.from_numpy(eps).expand_as(x), at)
                denoiser.raw(x_t.to(device), at.to(device), told)
                seen_at.append(_pooled(seen[0], rows.size).double())
            out.append(nn.functional.normalize(torch.stack(seen_at).mean(0), dim=1)[: rows.n].float().cpu())
    return np.asarray(torch.cat(out).numpy())
