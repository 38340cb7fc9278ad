"""Sana and Lumina 2: flow-matching transformers that listen to a Gemma 2 language model.

Both pipelines put an instruction before the prompt, and none before the empty prompt that guidance moves away from; so
does `embed`. The texts are those of the installed diffusers and belong to the digest of the frozen part.

* Sana works on the latents of a deep-compression autoencoder (32 pixels each way), written in small letters, and keeps
  the first token and the last 299.
* Lumina 2 counts time from noise to picture and predicts x_0 - eps, so its output is negated here. Tokens of padding do
  not exist for it, so that the last bits of an output may depend on how long the other prompts of its block are.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn

from guda.diffusion.families.base import FAMILIES, Cond
from guda.diffusion.families.pipeline import LatentFrozen, PipelineFamily, Text, before_last, last
from guda.errors import GudaError

GEMMA = ("Gemma2Model",)


class Instructed(LatentFrozen):
    def instruction(self) -> str:
        """What stands before every prompt but the empty one."""
        raise NotImplementedError

    def encode_texts(self, prompts: Sequence[str], instructed: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """(hidden states, mask), [n, length, ...] either way."""
        raise NotImplementedError

    def identity(self) -> list[Any]:
        return [self.instruction()]

    def embed(self, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
        rows: list[Any] = [None] * len(prompts)
        for instructed in (True, False):
            if chosen := [i for i, p in enumerate(prompts) if bool(p) == instructed]:
                found = self.encode_texts([prompts[i] for i in chosen], instructed)
                for i, *row in zip(chosen, *found, strict=True):
                    rows[i] = row
        hidden, mask = (torch.stack(values) for values in zip(*rows, strict=True))
        return {"encoder_hidden_states": hidden, "encoder_attention_mask": mask}


class Sana(Instructed):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.network.get("guidance_embeds"):
            raise GudaError(
                "model-distilled",
                "a Sana network with an embedded guidance (Sana-Sprint) is distilled to a few steps: it has no bound",
            )

    def instruction(self) -> str:
        return _sana_instruction()

    def encode_texts(self, prompts: Sequence[str], instructed: bool) -> tuple[torch.Tensor, torch.Tensor]:
        encoder, before = self.texts["text_encoder"], self.instruction() if instructed else ""
        n = len(encoder.tokenizer.encode(before)) - 2 if before else 0
        hidden, mask = encoder([before + p.lower().strip() for p in prompts], last, encoder.length + n)
        kept = [0, *range(-encoder.length + 1, 0)]
        return hidden[:, kept], mask[:, kept]

    def call(self, module: nn.Module, x_t: torch.Tensor, t: torch.Tensor, cond: Cond) -> torch.Tensor:
        output: torch.Tensor = module(x_t, timestep=t * self.network.get("timestep_scale", 1.0), **cond.tensors).sample
        return output


class Lumina2(Instructed):
    def instruction(self) -> str:
        return _lumina_instruction()

    def encode_texts(self, prompts: Sequence[str], instructed: bool) -> tuple[torch.Tensor, torch.Tensor]:
        before = self.instruction() if instructed else ""
        hidden, mask = self.texts["text_encoder"]([before + p for p in prompts], before_last)
        return hidden, mask

    def sigmas(self, steps: int) -> np.ndarray:
        return np.linspace(1.0, 1 / steps, steps)

    def call(self, module: nn.Module, x_t: torch.Tensor, t: torch.Tensor, cond: Cond) -> torch.Tensor:
        tensors = cond.tensors | {"encoder_attention_mask": cond.tensors["encoder_attention_mask"].long()}
        output: torch.Tensor = module(x_t, timestep=1 - t / 1000, **tensors).sample
        return -output


@cache
def _sana_instruction() -> str:
    from diffusers import SanaPipeline

    return "\n".join(inspect.signature(SanaPipeline.__call__).parameters["complex_human_instruction"].default)


@cache
def _lumina_instruction() -> str:
    from diffusers import Lumina2Pipeline

    return f"{Lumina2Pipeline(*[None] * 5).system_prompt} <Prompt Start> "


FAMILIES.register("sana")(
    PipelineFamily(
        "SanaPipeline", Sana, folder="transformer", network="SanaTransformer2DModel", vae="AutoencoderDC",
        texts={"text_encoder": Text(GEMMA, 300, mask=True)},
    )
)  # fmt: skip

FAMILIES.register("lumina2")(
    PipelineFamily(
        "Lumina2Pipeline", Lumina2, folder="transformer", network="Lumina2Transformer2DModel",
        texts={"text_encoder": Text(GEMMA, 256, mask=True)},
    )
)  # fmt: skip
