"""A compact denoiser for small images, saved and loaded exactly like a diffusers model.

Residual blocks of two linear layers on the flattened image, each told the timestep; trains in seconds on one core,
which is what makes a retraining oracle affordable in a demo.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from diffusers.models.embeddings import get_timestep_embedding
from torch import nn

from guda.config import ModelConfig
from guda.diffusion.denoiser import Denoiser
from guda.errors import GudaError

if TYPE_CHECKING:
    pass


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, width)
        self.down = nn.Linear(width, width)

    def forward(self, h: torch.Tensor, emb: torch.Tensor) -> torch.Tensor:
        return h + self.down(nn.functional.silu(self.up(self.norm(h)) + emb))


class ResidualMLP(ModelMixin, ConfigMixin):
    """(x_t [B,C,H,W], t [B]) -> prediction [B,C,H,W]; t may be fractional. With `num_class_embeds` also told a class
    per image, added to what it is told of t."""

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


def build_network(config: ModelConfig, shape: tuple[int, int, int]) -> tuple[Any, Any]:
    """The module of the recipe's architecture for images of `shape` (C, H, W), and what is frozen beside it."""
    channels, height, width = shape
    if height != width:
        raise GudaError("image-not-square", f"images are {width}x{height}; training needs square images: give --size N")
    options = {"sample_size": height, "in_channels": channels, "out_channels": channels} | config.options
    try:
        if config.net == "mlp":
            return ResidualMLP(**options), None
        if config.net == "unet2d-condition":
            from diffusers import UNet2DConditionModel

            from guda.diffusion.frozen_words import Words, text_width

            frozen = Words(config.text or "minilm", config.text_length, shape, config.patch)
            inside = {"sample_size": frozen.shape[1], "in_channels": frozen.shape[0], "out_channels": frozen.shape[0]}
            told = {"cross_attention_dim": text_width(frozen.encoder)}
            return UNet2DConditionModel(**(inside | told | config.options)), frozen
        from diffusers import UNet2DModel

        return UNet2DModel(**options), None
    except (TypeError, ValueError, RuntimeError) as e:
        raise GudaError(
            "model-options-invalid", f"model.options do not make a {config.net} network: {str(e).splitlines()[0]}"
        ) from None


def build_denoiser(config: ModelConfig, shape: tuple[int, int, int]) -> Denoiser:
    """A network to train, of the recipe's architecture, for images of `shape` (C, H, W)."""
    from guda.diffusion.loading import make_scheduler

    if config.scheduler is None:
        raise GudaError(
            "scheduler-not-given", "model.scheduler is needed to train a model, e.g. squaredcos_cap_v2:1000"
        )
    module, frozen = build_network(config, shape)
    denoiser = Denoiser.from_module(module, make_scheduler(config.scheduler), frozen=frozen)
    if denoiser.shape != (tuple(shape) if frozen is None else frozen.shape):
        raise GudaError(
            "model-options-mismatch",
            f"model.options make a network for {denoiser.shape}, the images are {tuple(shape)}",
        )
    return denoiser
