"""A compact denoiser for small images, saved and loaded exactly like a diffusers model.

Residual blocks of two linear layers on the flattened image, each given the timestep; trains in seconds on one core,
which is what makes a retraining oracle affordable in a demo.
"""

from __future__ import annotations

import torch
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from diffusers.models.embeddings import get_timestep_embedding
from torch import nn

from guda.config import ModelConfig
from guda.diffusion.families.base import FAMILIES, Family, pixel_options


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, width)
        self.down = nn.Linear(width, width)

    def forward(self, h: torch.Tensor, emb: torch.Tensor) -> torch.Tensor:
        return h + self.down(nn.functional.silu(self.up(self.norm(h)) + emb))


class ResidualMLP(ModelMixin, ConfigMixin):
    """(x_t [B,C,H,W], t [B]) -> prediction [B,C,H,W]; t may be fractional. With `num_class_embeds` also a class per
    image, whose embedding is added to that of t."""

    @register_to_config
    def __init__(
        self,
        sample_size: int = 8,
        in_channels: int = 1,
        out_channels: int = 1,
        width: int = 256,
        depth: int = 3,
        num_class_embeds: int | None = None,
    ) -> None:
        super().__init__()
        self.inp = nn.Linear(in_channels * sample_size**2, width)
        self.embed = nn.Sequential(nn.Linear(64, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(_Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, out_channels * sample_size**2)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        # last, so that the other weights start as they would without it
        self.classes = None if num_class_embeds is None else nn.Embedding(num_class_embeds, width)

    def forward(self, x: torch.Tensor, t: torch.Tensor, class_labels: torch.Tensor | None = None) -> torch.Tensor:
        emb = self.embed(get_timestep_embedding(t.expand(len(x)), 64).to(x.dtype))
        if self.classes is not None:
            emb = emb + self.classes(class_labels)
        h = self.inp(x.flatten(1))
        for block in self.blocks:
            h = block(h, emb)
        return self.out(self.norm(h)).reshape(len(x), self.config.out_channels, *x.shape[2:])


class MLP(Family):
    networks = (f"{__name__}:ResidualMLP",)

    def build(self, config: ModelConfig, shape: tuple[int, int, int]) -> tuple[nn.Module, None]:
        return ResidualMLP(**pixel_options(config, shape)), None


FAMILIES.register("mlp")(MLP())
