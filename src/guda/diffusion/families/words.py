"""A small text-to-image network of our own: token embeddings of a small text encoder beside pixels, no VAE.

For text-to-image models small enough for a laptop (the emoji benchmark): x_0 is the image itself in [-1, 1], its
patches of p x p pixels laid out as channels (a permutation: norms, noise and nats stay those of the pixels, and the
network is p^2 times cheaper). A UNet2DConditionModel attends to the text encoder's last hidden states, padding masked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from guda.config import ModelConfig
from guda.data.images import to_float, to_uint8
from guda.diffusion.families.base import FAMILIES, Cond, Family, Frozen, pixel_options
from guda.errors import GudaError
from guda.files import digest

ENCODERS = {"minilm": 384}  # name -> width of its token embeddings


def text_width(encoder: str) -> int:
    if encoder not in ENCODERS:
        raise GudaError(
            "text-encoder-unknown",
            f"model.text {encoder!r} is unknown; a network trained here can listen to {', '.join(ENCODERS)}",
        )
    return ENCODERS[encoder]


class Words(Frozen):
    def __init__(self, encoder: str, length: int, image_shape: Sequence[int], patch: int = 1) -> None:
        super().__init__()
        text_width(encoder)
        self.encoder, self.length, self.patch = encoder, int(length), int(patch)
        c, h, w = (int(n) for n in image_shape)
        if h % patch or w % patch:
            raise GudaError(
                "patch-size-mismatch", f"model.patch {patch} does not divide pictures of {w}x{h} pixels; choose another"
            )
        self.image_shape, self.shape = (c, h, w), (c * patch * patch, h // patch, w // patch)

    def encode(self, images: np.ndarray) -> torch.Tensor:
        self.check_images(images)
        return torch.nn.functional.pixel_unshuffle(torch.from_numpy(to_float(images)), self.patch)

    def decode(self, x0: torch.Tensor) -> np.ndarray:
        return to_uint8(torch.nn.functional.pixel_shuffle(x0.detach().cpu(), self.patch).numpy())

    def embed(self, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
        from guda.data.text import minilm_tokens

        hidden, mask = minilm_tokens(list(prompts), self.length)
        return {"encoder_hidden_states": hidden, "encoder_attention_mask": mask.bool()}

    def call(self, module: nn.Module, x_t: torch.Tensor, t: torch.Tensor, cond: Cond) -> torch.Tensor:
        return module(x_t, t, **cond.tensors).sample

    def source(self) -> dict[str, Any]:
        settings = {"encoder": self.encoder, "length": self.length, "patch": self.patch}
        return {"kind": "words", **settings, "image_shape": list(self.image_shape)}

    def digest(self) -> str:
        return digest(self.source(), 64)


class WordsFamily(Family):
    networks = ("diffusers:UNet2DConditionModel",)

    def build(self, config: ModelConfig, shape: tuple[int, int, int]) -> tuple[nn.Module, Words]:
        from diffusers import UNet2DConditionModel

        words = Words(config.text or "minilm", config.text_length, shape, config.patch)
        options = {"cross_attention_dim": text_width(words.encoder)} | pixel_options(config, words.shape)
        return UNet2DConditionModel(**options), words

    def frozen(self, source: Mapping[str, Any]) -> Words:
        return Words(source["encoder"], source["length"], source["image_shape"], source["patch"])


# by its network in recipes, and by its frozen part in the frozen.json of trained models
FAMILIES.register("words")(FAMILIES.register("unet2d-condition")(WordsFamily()))
