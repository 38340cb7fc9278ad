"""Stable Diffusion 1 and 2: the network attends to the last hidden states of one CLIP text encoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from guda.diffusion.cond import Cond
from guda.diffusion.families.base import FAMILIES
from guda.diffusion.families.pipeline import CLIP, LatentFrozen, PipelineFamily, last


class StableDiffusion(LatentFrozen):
    def embed(self, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
        (hidden,) = self.texts["text_encoder"](prompts, last)
        return {"encoder_hidden_states": hidden}

    def call(self, module: nn.Module, x_t: torch.Tensor, t: torch.Tensor, cond: Cond) -> torch.Tensor:
        return module(x_t, t, **cond.tensors).sample


FAMILIES.register("sd")(
    PipelineFamily(
        "StableDiffusionPipeline", StableDiffusion, folder="unet", network="UNet2DConditionModel",
        texts={"text_encoder": CLIP},
    )
)  # fmt: skip
