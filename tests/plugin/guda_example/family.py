"""A model family: a network that sees one pixel and its neighbours, trained by `model.net: pixelwise`."""

import torch
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import nn

from guda.config import ModelConfig
from guda.diffusion.families.base import FAMILIES, Family, pixel_options


class Pixelwise(ModelMixin, ConfigMixin):
    """(x_t [B, C, H, W], t [B]) -> prediction [B, C, H, W]; saved and loaded like any diffusers model."""

    @register_to_config
    def __init__(self, sample_size: int = 8, in_channels: int = 1, out_channels: int = 1, width: int = 16) -> None:
        super().__init__()
        self.time = nn.Linear(1, width)
        self.before = nn.Conv2d(in_channels, width, 3, padding=1)
        self.after = nn.Conv2d(width, out_channels, 3, padding=1)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        when = self.time(t.expand(len(x))[:, None].to(x.dtype) / 1000)
        return self.after(torch.nn.functional.silu(self.before(x) + when[:, :, None, None]))


class PixelwiseFamily(Family):
    networks = (f"{__name__}:Pixelwise",)  # what may be read from a saved model

    def build(self, config: ModelConfig, shape: tuple[int, int, int]) -> tuple[nn.Module, None]:
        return Pixelwise(**pixel_options(config, shape)), None


FAMILIES.register("pixelwise")(PixelwiseFamily())
