"""A U-Net that sees patches of pixels as channels: four times cheaper at patches of 2x2, on pictures of the same size.

`model.net: patched-unet2d` makes natural images affordable on two cores (recipes cifar10-start and cifar10). Patches
become channels and pixels again inside the network, so everything else sees ordinary pictures.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers import ConfigMixin, ModelMixin, UNet2DModel
from diffusers.configuration_utils import register_to_config
from torch import nn
from torch.nn.functional import pixel_shuffle, pixel_unshuffle

from guda.config import ModelConfig
from guda.diffusion.families.base import FAMILIES, Family, pixel_options


class PatchedUNet2D(ModelMixin, ConfigMixin):
    """(x_t [B, C, H, W], t [B]) -> prediction [B, C, H, W]; `unet`: constructor arguments of the UNet2DModel inside.
    With `num_class_embeds` also a class per image."""

    @register_to_config
    def __init__(
        self,
        sample_size: int = 16,
        in_channels: int = 3,
        out_channels: int = 3,
        patch: int = 2,
        unet: dict[str, Any] | None = None,
        num_class_embeds: int | None = None,
    ) -> None:
        super().__init__()
        if sample_size % patch:
            raise ValueError(f"patches of {patch} pixels do not divide pictures of {sample_size}")
        self.inner = UNet2DModel(
            sample_size=sample_size // patch,
            in_channels=in_channels * patch**2,
            out_channels=out_channels * patch**2,
            num_class_embeds=num_class_embeds,
            **(unet or {}),
        )

    def forward(self, x: torch.Tensor, t: torch.Tensor, class_labels: torch.Tensor | None = None) -> torch.Tensor:
        patch: int = self.config.patch
        return pixel_shuffle(self.inner(pixel_unshuffle(x, patch), t, class_labels).sample, patch)


class PatchedFamily(Family):
    networks = (f"{__name__}:PatchedUNet2D",)

    def build(self, config: ModelConfig, shape: tuple[int, int, int]) -> tuple[nn.Module, None]:
        return PatchedUNet2D(**pixel_options(config, shape)), None


FAMILIES.register("patched-unet2d")(PatchedFamily())
