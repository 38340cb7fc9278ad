"""FLUX: a flow-matching transformer over packed latents, told T5's hidden states and CLIP's pooled vector.

    token (i, j) = the 2x2 latents at (2i, 2j), all channels;    its position is (0, i, j), that of every text token 0

Packing is inside `call`, so x_0 is the VAE's latent [16, H/8, W/8] as in every other family. The network takes pictures
of any size: `model.size` says which (1024 by default), and the shift of the noise levels follows from it.

FLUX.1-dev is distilled from a guided model; the guidance w that it imitates is an input. Scores, training and
unlearning use one recorded w, `model.guidance`, by default 1: the plain conditional prediction, as for every model that
is guided from outside. Pictures are drawn with `queries.guidance`. FLUX.1-schnell is distilled to four steps and is
refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from guda.diffusion.families.base import FAMILIES, Cond
from guda.diffusion.families.pipeline import CLIP, LatentFrozen, PipelineFamily, Text, last, pooled
from guda.errors import GudaError

T5_LENGTH = 512  # tokens, as the pipeline takes by default


def pack(x: torch.Tensor) -> torch.Tensor:
    """[B, C, H, W] -> [B, H/2 W/2, 4C]."""
    b, c, h, w = x.shape
    return x.reshape(b, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(b, h * w // 4, 4 * c)


def unpack(tokens: torch.Tensor, h: int, w: int) -> torch.Tensor:
    b, _, c = tokens.shape
    return tokens.reshape(b, h // 2, w // 2, c // 4, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(b, c // 4, h, w)


class Flux(LatentFrozen):
    pixels: ClassVar[int | None] = 1024
    patch: ClassVar[int] = 2

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        c, h, w = self.shape
        if self.network.get("in_channels") != 4 * c or self.network.get("out_channels") not in (None, 4 * c):
            raise GudaError(
                "network-channels-differ",
                f"the network maps {self.network.get('in_channels')} channels, packed latents have {4 * c}; inpainting "
                "and control variants are not supported",
            )
        self.tokens = h * w // 4
        self.told = bool(self.network.get("guidance_embeds"))
        given = self.source().get("guidance")
        if given is not None and not self.told:
            raise GudaError(
                "model-guidance-unsupported",
                "the network has no guidance input (guidance_embeds); leave out model.guidance",
            )
        self.guidance = 1.0 if given is None else float(given)

    @property
    def embeds_guidance(self) -> bool:  # type: ignore[override]
        return self.told

    def identity(self) -> list[Any]:
        return [self.guidance] if self.told else []

    def check_scheduler(self, scheduler: Any) -> None:
        config = scheduler.config
        if not self.told and not config.get("use_dynamic_shifting") and float(config.get("shift") or 1.0) == 1.0:
            raise GudaError(
                "model-distilled",
                "a FLUX network without an embedded guidance and without a shift is FLUX.1-schnell, distilled to four "
                "steps: it has no bound to score. If this one was trained as a plain flow model, give its noise "
                "schedule: --scheduler FOLDER",
            )

    def sigmas(self, steps: int) -> np.ndarray:
        return np.linspace(1.0, 1 / steps, steps)

    def embed(self, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
        (vector,) = self.texts["text_encoder"](prompts, pooled)
        (hidden,) = self.texts["text_encoder_2"](prompts, last)
        return {"pooled_projections": vector, "encoder_hidden_states": hidden}

    def call(self, module: nn.Module, x_t: torch.Tensor, t: torch.Tensor, cond: Cond) -> torch.Tensor:
        _, _, h, w = x_t.shape
        tensors = dict(cond.tensors)
        guidance = tensors.pop("guidance", None)
        if guidance is None and self.told:
            guidance = torch.full((len(x_t),), self.guidance, device=x_t.device)
        places = torch.zeros(h // 2, w // 2, 3, device=x_t.device)
        places[..., 1] += torch.arange(h // 2, device=x_t.device)[:, None]
        places[..., 2] += torch.arange(w // 2, device=x_t.device)
        text = torch.zeros(tensors["encoder_hidden_states"].shape[1], 3, device=x_t.device)
        output = module(
            hidden_states=pack(x_t), timestep=t / 1000, guidance=guidance, img_ids=places.flatten(0, 1), txt_ids=text,
            **tensors,
        ).sample  # fmt: skip
        return unpack(output, h, w)


FAMILIES.register("flux")(
    PipelineFamily(
        "FluxPipeline", Flux, folder="transformer", network="FluxTransformer2DModel",
        texts={"text_encoder": CLIP, "text_encoder_2": Text(("T5EncoderModel",), T5_LENGTH)},
    )
)  # fmt: skip
