"""The training images as the network sees them, with their mirror images where flips are drawn.

The latent of a mirrored picture is not the mirrored latent of a VAE, so both are kept; for pixel models mirroring is
exact and costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from guda.diffusion.denoiser import Denoiser


@dataclass(frozen=True)
class Latents:
    x0: torch.Tensor  # float32 [n, C, H, W], on the CPU
    mirrored: torch.Tensor | None = None  # of the mirrored pictures; None: x0.flip(-1) is the same

    def take(self, index: np.ndarray, flip: np.ndarray | None = None) -> torch.Tensor:
        """Those of some images, mirrored where `flip` says."""
        x = self.x0[index]
        if flip is None or not flip.any():
            return x
        other = x.flip(-1) if self.mirrored is None else self.mirrored[index]
        return torch.where(torch.from_numpy(flip)[:, None, None, None], other, x)


def encode_all(denoiser: Denoiser, images: np.ndarray, flips: bool = False) -> Latents:
    x0 = denoiser.encode(images)
    if denoiser.frozen is None or denoiser.frozen.shape == denoiser.frozen.image_shape or not flips:
        return Latents(x0)
    return Latents(x0, denoiser.encode(images[..., ::-1]))
