"""Validation while a model trains: its loss on images of the test split, which it never sees.

    mean over draws (x_0, t, eps) of || target - network(x_t, t) ||^2

The draws are keyed, so they are the same at every look, for every seed and after every interruption; dropout is off and
nothing of the training is touched: its weights are the same bytes with and without validation. 256 draws, 20 times in
a training, cost less than a percent of a training of a few thousand steps.
"""

from __future__ import annotations

import numpy as np
import torch

from guda.diffusion.denoiser import Denoiser
from guda.diffusion.noise import generator

DRAWS = 256  # (image, t, eps)

LOOKS = 20  # in a training


class Validation:
    """`images`: uint8 [n, C, H, W] of the test split."""

    def __init__(self, model: Denoiser, images: np.ndarray, block: int = 64) -> None:
        g = generator("validation")
        index = np.sort(g.permutation(len(images))[:DRAWS])
        self.x0, self.block = model.encode(images[index]), block
        self.t = torch.from_numpy(g.integers(0, model.schedule.T, len(index)))
        self.eps = torch.from_numpy(g.standard_normal((len(index), *model.shape), dtype=np.float32))

    def due(self, step: int, steps: int) -> bool:
        return step % max(1, steps // LOOKS) == 0

    @torch.no_grad()
    def loss(self, model: Denoiser) -> float:
        """Of the network as it is now; it is left in the mode that it was in."""
        training, device = model.module.training, model.device
        model.module.eval()
        total = 0.0
        try:
            for start in range(0, len(self.t), self.block):
                part = slice(start, start + self.block)
                x, t, eps = self.x0[part].to(device), self.t[part].to(device), self.eps[part].to(device)
                output = model.raw(model.schedule.add_noise(x, eps, self.t[part]), t, None)
                error = (output.float() - model.target(x, eps, t).float()).square().flatten(1).mean(1)
                total += float(error.double().sum())
        finally:
            model.module.train(training)
        return total / len(self.t)
