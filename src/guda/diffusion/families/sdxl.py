"""Stable Diffusion XL: two CLIP text encoders side by side, the second one's pooled vector, and the image's size.

The size conditions are those of an image that was neither scaled nor cropped: original size and target size are the
image's own, the crop starts at (0, 0).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from guda.diffusion.cond import Cond
from guda.diffusion.families.base import FAMILIES
from guda.diffusion.families.pipeline import CLIP, LatentFrozen, PipelineFamily, penultimate


class StableDiffusionXL(LatentFrozen):
    def embed(self, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
        one, _ = self.texts["text_encoder"](prompts, penultimate)
        two, pooled = self.texts["text_encoder_2"](prompts, penultimate)
        return {"encoder_hidden_states": torch.cat([one, two], dim=-1), "text_embeds": pooled}

    def time_ids(self) -> torch.Tensor:
        """(original height, width, crop top, left, target height, width)."""
        _, h, w = self.image_shape
        return torch.tensor([h, w, 0, 0, h, w], dtype=torch.float32)

    def call(self, module: nn.Module, x_t: torch.Tensor, t: torch.Tensor, cond: Cond) -> torch.Tensor:
        ids = self.time_ids().to(x_t.device).expand(len(x_t), 6)
        added = {"text_embeds": cond.tensors["text_embeds"], "time_ids": ids}
        hidden = cond.tensors["encoder_hidden_states"]
        return module(x_t, t, encoder_hidden_states=hidden, added_cond_kwargs=added).sample

    def unconditional(self, n: int) -> Cond:
        """Zeros instead of the empty prompt, where the pipeline was trained so (`force_zeros_for_empty_prompt`)."""
        empty = super().unconditional(n)
        if not self.options.get("force_zeros_for_empty_prompt", True):
            return empty
        return Cond({name: torch.zeros_like(value) for name, value in empty.tensors.items()})


FAMILIES.register("sdxl")(
    PipelineFamily(
        "StableDiffusionXLPipeline", StableDiffusionXL, folder="unet", network="UNet2DConditionModel",
        texts={"text_encoder": CLIP, "text_encoder_2": CLIP},
    )
)  # fmt: skip
