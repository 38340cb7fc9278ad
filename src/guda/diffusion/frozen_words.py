"""Words beside a pixel-space network: token embeddings of a small text encoder, no VAE.

For text-to-image models small enough for a laptop (the emoji benchmark): x_0 is the image itself in [-1, 1], and a
UNet2DConditionModel attends to the encoder's last hidden states, padding masked out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from guda.data.pixels import to_float, to_uint8
from guda.diffusion.cond import Cond
from guda.diffusion.frozen import Frozen
from guda.errors import GudaError
from guda.runs.store import digest

ENCODERS = {"minilm": 384}  # name -> width of its token embeddings


def text_width(encoder: str) -> int:
    if encoder not in ENCODERS:
        raise GudaError(
            f"model.text {encoder!r} is unknown; a network trained here can listen to {', '.join(ENCODERS)}"
        )
    return ENCODERS[encoder]


class Words(Frozen):
    def __init__(self, encoder: str, length: int, image_shape: Sequence[int]) -> None:
        super().__init__()
        text_width(encoder)
        self.encoder, self.length = encoder, int(length)
        c, h, w = (int(n) for n in image_shape)
        self.image_shape = self.shape = (c, h, w)

    def encode(self, images: np.ndarray) -> torch.Tensor:
        self.check_images(images)
        return torch.from_numpy(to_float(images))

    def decode(self, x0: torch.Tensor) -> np.ndarray:
        return to_uint8(x0.detach().cpu().numpy())

    def embed(self, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
        from guda.data.text import minilm_tokens

        hidden, mask = minilm_tokens(list(prompts), self.length)
        return {"encoder_hidden_states": hidden, "encoder_attention_mask": mask.bool()}

    def call(self, module: nn.Module, x_t: torch.Tensor, t: torch.Tensor, cond: Cond) -> torch.Tensor:
        return module(x_t, t, **cond.tensors).sample

    def source(self) -> dict[str, Any]:
        return {"kind": "words", "encoder": self.encoder, "length": self.length, "image_shape": list(self.image_shape)}

    def digest(self) -> str:
        return digest(self.source(), 64)
