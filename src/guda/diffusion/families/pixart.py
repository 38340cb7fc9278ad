"""PixArt-alpha and PixArt-Sigma: transformers in the manner of DiT that attend to T5's hidden states.

The network has twice the channels of x_0: a prediction of eps, and a variance that was learned beside it. Neither
diffusers' pipelines nor their samplers read the variance; they draw with a fixed one. So does the bound: `call` returns
the first half, and what the second half would say changes no score. (A model whose own sampler uses its learned
variance has another bound, and is refused.) Fine-tuning and unlearning leave the second half without a gradient.

Prompts are written in small letters, as these pipelines do, and padding is masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from guda.diffusion.families.base import FAMILIES, Cond
from guda.diffusion.families.pipeline import LatentFrozen, PipelineFamily, Text, last

MICRO = 128  # latent size of the networks that are also told resolution and aspect ratio, if they were made so


class PixArt(LatentFrozen):
    drops_variance: ClassVar[bool] = True

    def embed(self, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
        hidden, mask = self.texts["text_encoder"]([p.lower().strip() for p in prompts], last)
        return {"encoder_hidden_states": hidden, "encoder_attention_mask": mask}

    def call(self, module: nn.Module, x_t: torch.Tensor, t: torch.Tensor, cond: Cond) -> torch.Tensor:
        added: dict[str, Any] = {"resolution": None, "aspect_ratio": None}
        if self.network.get("sample_size") == MICRO:
            _, h, w = self.image_shape
            size = torch.tensor([float(h), float(w)], device=x_t.device).expand(len(x_t), 2)
            added = {"resolution": size, "aspect_ratio": size[:, :1] / size[:, 1:]}
        output: torch.Tensor = module(x_t, timestep=t, added_cond_kwargs=added, **cond.tensors).sample
        return output[:, : x_t.shape[1]]


for _name, _pipeline, _length in (("pixart", "PixArtAlphaPipeline", 120), ("pixart-sigma", "PixArtSigmaPipeline", 300)):
    FAMILIES.register(_name)(
        PipelineFamily(
            _pipeline, PixArt, folder="transformer", network="PixArtTransformer2DModel",
            texts={"text_encoder": Text(("T5EncoderModel",), _length, mask=True)},
        )
    )  # fmt: skip
