"""Pixel-space U-Nets of diffusers (`UNet2DModel`): unconditional, or class-conditional by `num_class_embeds`."""

from __future__ import annotations

from torch import nn

from guda.config import ModelConfig
from guda.diffusion.families.base import FAMILIES, Family, pixel_options


class UNet2D(Family):
    networks = ("diffusers:UNet2DModel",)

    def build(self, config: ModelConfig, shape: tuple[int, int, int]) -> tuple[nn.Module, None]:
        from diffusers import UNet2DModel

        return UNet2DModel(**pixel_options(config, shape)), None


FAMILIES.register("unet2d")(UNet2D())
