"""A pipeline's frozen VAE: pictures -> latents and back.

    x_0 = (posterior mean - shift) x scaling factor                (SPEC section 2; the shift is 0 but for newer VAEs)

The mean and not a draw, so that every method scores the same latent. Runs on BLOCK pictures at a time, short blocks
padded: a latent is a function of its picture alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from guda.blocks import blocks
from guda.data.pixels import to_float, to_uint8
from guda.errors import GudaError

BLOCK = 4

CHUNK = 64 * BLOCK  # pictures that are floats at the same time


class Vae:
    def __init__(self, model: Any) -> None:
        config = model.config
        if getattr(config, "latents_mean", None) is not None or getattr(config, "latents_std", None) is not None:
            raise GudaError(
                "vae-unsupported", "the VAE normalises each latent channel (latents_mean, latents_std); not supported"
            )
        self.model = model.eval().requires_grad_(False)
        self.scale, self.shift = float(config.scaling_factor), float(getattr(config, "shift_factor", None) or 0)
        self.factor = 2 ** (len(config.block_out_channels) - 1)  # pixels per latent, each way
        self.channels, self.latent_channels = int(config.in_channels), int(config.latent_channels)

    def _blocks(self, x: torch.Tensor) -> Any:
        like = next(self.model.parameters())
        for block in blocks(len(x), BLOCK):
            yield block.n, block.take(x).to(like)

    @torch.no_grad()
    def encode(self, images: np.ndarray) -> torch.Tensor:
        means = []
        for start in range(0, len(images), CHUNK):  # floats of 24,000 pictures of 512 x 512 would be 75 GB
            x = torch.from_numpy(to_float(np.ascontiguousarray(images[start : start + CHUNK])))
            means += [self.model.encode(b).latent_dist.mode()[:n].float().cpu() for n, b in self._blocks(x)]
        return (torch.cat(means) - self.shift) * self.scale

    @torch.no_grad()
    def decode(self, x0: torch.Tensor) -> np.ndarray:
        z = x0.detach().float().cpu() / self.scale + self.shift
        return np.concatenate(
            [to_uint8(self.model.decode(b).sample[:n].float().cpu().numpy()) for n, b in self._blocks(z)]
        )
