"""Stable Diffusion 1 and 2: the network attends to the last hidden states of one CLIP text encoder.

Stable Diffusion 3: a flow-matching transformer that attends to two CLIP encoders and T5, or to zeros in T5's place.

CLIP's hidden states are widened with zeros to T5's width and stand before T5's; the pooled vectors are joined.

Stable Diffusion XL: two CLIP text encoders side by side, the second one's pooled vector, and the image's size.

The size conditions are those of an image that was neither scaled nor cropped: original size and target size are the
image's own, the crop starts at (0, 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad

from guda.diffusion.families.base import FAMILIES, Cond
from guda.diffusion.families.pipeline import CLIP, LatentFrozen, PipelineFamily, Text, last, penultimate


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


T5_LENGTH = 256  # tokens, as the pipeline takes by default

T5 = Text(("T5EncoderModel",), T5_LENGTH, optional=True)


class StableDiffusion3(LatentFrozen):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        _, h, w = self.shape
        patch = int(self.network.get("patch_size", 2))
        self.tokens = (h // patch) * (w // patch)

    def embed(self, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
        one, pooled_one = self.texts["text_encoder"](prompts, penultimate)
        two, pooled_two = self.texts["text_encoder_2"](prompts, penultimate)
        tensors = {"clip": torch.cat([one, two], dim=-1), "pooled_projections": torch.cat([pooled_one, pooled_two], -1)}
        if "text_encoder_3" in self.texts:
            (tensors["t5"],) = self.texts["text_encoder_3"](prompts, last)
        return tensors

    def call(self, module: nn.Module, x_t: torch.Tensor, t: torch.Tensor, cond: Cond) -> torch.Tensor:
        net: Any = module
        clip, t5 = cond.tensors["clip"], cond.tensors.get("t5")
        clip = pad(clip, (0, net.config.joint_attention_dim - clip.shape[-1]))
        # zeros are joined here and not in `embed`: 4 MB for every prompt kept
        hidden = pad(clip, (0, 0, 0, T5_LENGTH)) if t5 is None else torch.cat([clip, t5], dim=1)
        pooled = cond.tensors["pooled_projections"]
        return net(hidden_states=x_t, timestep=t, encoder_hidden_states=hidden, pooled_projections=pooled).sample


FAMILIES.register("sd3")(
    PipelineFamily(
        "StableDiffusion3Pipeline", StableDiffusion3, folder="transformer", network="SD3Transformer2DModel",
        texts={"text_encoder": CLIP, "text_encoder_2": CLIP, "text_encoder_3": T5},
    )
)  # fmt: skip


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
