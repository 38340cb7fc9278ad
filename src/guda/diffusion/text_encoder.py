"""A pipeline's frozen text encoder: prompts -> what its network says of them, as the pipeline itself would ask it.

Prompts are padded to the encoder's full length and cut there, as diffusers does. The encoder always runs on BLOCK rows,
short blocks padded, because kernels give other last bits at other shapes: an embedding is a function of its prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from guda.blocks import blocks

BLOCK = 4  # rows per call: what one prompt alone costs

Read = Callable[[Any], tuple[torch.Tensor, ...]]


def last(output: Any) -> tuple[torch.Tensor, ...]:
    """The first output: last hidden states of an encoder without a projection."""
    return (output[0],)


def penultimate(output: Any) -> tuple[torch.Tensor, ...]:
    """Hidden states before the last layer, and the first output: pooled, where the encoder has a projection."""
    return output.hidden_states[-2], output[0]


class TextEncoder:
    def __init__(self, tokenizer: Any, model: Any, length: int | None = None) -> None:
        self.tokenizer, self.model = tokenizer, model.eval().requires_grad_(False)
        self.length = int(length or tokenizer.model_max_length)

    @torch.no_grad()
    def __call__(self, prompts: Sequence[str], read: Read) -> tuple[torch.Tensor, ...]:
        """What `read` takes from the encoder's output, [n, ...] float32 on the CPU."""
        parts: list[tuple[torch.Tensor, ...]] = []
        device = next(self.model.parameters()).device
        for block in blocks(len(prompts), BLOCK):
            tokens = self.tokenizer(
                block.take(list(prompts)), padding="max_length", max_length=self.length, truncation=True,
                return_tensors="pt",
            )  # fmt: skip
            # Stable Diffusion attends to the padding too, unless the encoder was made otherwise
            masked = getattr(self.model.config, "use_attention_mask", False)
            mask = {"attention_mask": tokens.attention_mask.to(device)} if masked else {}
            output = self.model(tokens.input_ids.to(device), output_hidden_states=read is penultimate, **mask)
            parts.append(tuple(value[: block.n].float().cpu() for value in read(output)))
        return tuple(torch.cat(values) for values in zip(*parts, strict=True))
