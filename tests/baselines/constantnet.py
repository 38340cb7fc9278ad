"""Networks whose gradients and losses are known on paper."""

from __future__ import annotations

import torch
from torch import nn

from guda.diffusion.denoiser import Denoiser
from guda.diffusion.loading import make_scheduler


class Constant(nn.Module):
    """Predicts the same noise c everywhere: loss = mean over pixels of (c - eps)^2, gradient 2 (c - eps) / pixels."""

    def __init__(self, c: torch.Tensor) -> None:
        super().__init__()
        self.c = nn.Parameter(c)
        self.unused = nn.Parameter(torch.ones(2))  # a dead weight: its Fisher information is zero

    def forward(self, x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.c.expand_as(x_t)


def constant(c: torch.Tensor, steps: int = 20) -> Denoiser:
    """`c`: [C, H, W]."""
    return Denoiser.from_module(Constant(c.clone()), make_scheduler(f"linear:{steps}"), c.shape)
