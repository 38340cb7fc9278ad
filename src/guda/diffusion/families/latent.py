"""The components around the networks of latent text-to-image pipelines: a VAE and text encoders, never trained.

    x_0 = (posterior mean - shift) x scaling factor                (the shift is 0 except for newer VAEs)

The mean and not a draw, so that every method scores the same latent. Encoders run on blocks of BLOCK rows, short blocks
padded, because kernels give other last bits at other shapes: a latent is a function of its image alone, an embedding of
its prompt. float32 on the CPU; on a GPU each part computes in the precision it was stored in, a VAE marked
`force_upcast` in float32 (SDXL's overflows in half precision). The digest is of values, so it does not depend on the
device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch

from guda.data.pixels import to_float, to_uint8
from guda.diffusion.families.base import Frozen
from guda.errors import GudaError
from guda.files import digest, digest_arrays

BLOCK = 4  # rows per call of an encoder: what one prompt alone costs

CHUNK = 64 * BLOCK  # images that are floats at the same time

Read = Callable[[Any], tuple[torch.Tensor, ...]]


class Vae:
    def __init__(self, model: Any) -> None:
        config = model.config
        if getattr(config, "latents_mean", None) is not None or getattr(config, "latents_std", None) is not None:
            raise GudaError(
                "vae-unsupported", "the VAE normalises each latent channel (latents_mean, latents_std); not supported"
            )
        self.model = model.eval().requires_grad_(False)
        self.scale, self.shift = float(config.scaling_factor), float(getattr(config, "shift_factor", None) or 0)
        self.factor = 2 ** (len(config.block_out_channels) - 1)  # pixels per latent, each way
        self.channels, self.latent_channels = int(config.in_channels), int(config.latent_channels)

    def _blocks(self, x: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
        """(rows that count, block) for each block."""
        like = next(self.model.parameters())
        for start in range(0, len(x), BLOCK):
            rows = torch.arange(start, start + BLOCK).clamp_(max=len(x) - 1)
            yield min(BLOCK, len(x) - start), x[rows].to(like)

    @torch.no_grad()
    def encode(self, images: np.ndarray) -> torch.Tensor:
        means = []
        for start in range(0, len(images), CHUNK):  # floats of 24,000 images of 512 x 512 would be 75 GB
            x = torch.from_numpy(to_float(np.ascontiguousarray(images[start : start + CHUNK])))
            means += [self.model.encode(b).latent_dist.mode()[:n].float().cpu() for n, b in self._blocks(x)]
        return (torch.cat(means) - self.shift) * self.scale

    @torch.no_grad()
    def decode(self, x0: torch.Tensor) -> np.ndarray:
        z = x0.detach().float().cpu() / self.scale + self.shift
        return np.concatenate(
            [to_uint8(self.model.decode(b).sample[:n].float().cpu().numpy()) for n, b in self._blocks(z)]
        )


def last(output: Any) -> tuple[torch.Tensor, ...]:
    """The first output: last hidden states of an encoder without a projection."""
    return (output[0],)


def penultimate(output: Any) -> tuple[torch.Tensor, ...]:
    """Hidden states before the last layer, and the first output: pooled, where the encoder has a projection."""
    return output.hidden_states[-2], output[0]


class TextEncoder:
    """Prompts are padded to the encoder's full length and cut there, as diffusers does."""

    def __init__(self, tokenizer: Any, model: Any, length: int | None = None) -> None:
        self.tokenizer, self.model = tokenizer, model.eval().requires_grad_(False)
        self.length = int(length or tokenizer.model_max_length)

    @torch.no_grad()
    def __call__(self, prompts: Sequence[str], read: Read) -> tuple[torch.Tensor, ...]:
        """What `read` takes from the encoder's output, [n, ...] float32 on the CPU."""
        parts: list[tuple[torch.Tensor, ...]] = []
        device = next(self.model.parameters()).device
        for start in range(0, len(prompts), BLOCK):
            block = list(prompts[start : start + BLOCK])
            n = len(block)
            tokens = self.tokenizer(
                block + [""] * (BLOCK - n), padding="max_length", max_length=self.length, truncation=True,
                return_tensors="pt",
            )  # fmt: skip
            # Stable Diffusion attends to the padding too, unless the encoder was made otherwise
            masked = getattr(self.model.config, "use_attention_mask", False)
            mask = {"attention_mask": tokens.attention_mask.to(device)} if masked else {}
            output = self.model(tokens.input_ids.to(device), output_hidden_states=read is penultimate, **mask)
            parts.append(tuple(value[:n].float().cpu() for value in read(output)))
        return tuple(torch.cat(values) for values in zip(*parts, strict=True))


class LatentFrozen(Frozen):
    cache_latents: ClassVar[bool] = True

    def __init__(
        self,
        vae: Any,
        texts: Mapping[str, TextEncoder],
        sample_size: int | Sequence[int] | None,
        *,
        source: Mapping[str, Any],
        options: Mapping[str, Any] | None = None,
        stored: Mapping[str, torch.dtype] | None = None,
        tokenizers: str = "",
    ) -> None:
        """sample_size: of the network's latents; source: see `Frozen.source`; options: of the pipeline
        (model_index.json); stored: precision of each part on disk; tokenizers: digest of their files."""
        super().__init__()
        if sample_size is None:
            raise GudaError(
                "sample-size-missing", "the network's config.json has no sample_size; write its latent size there"
            )
        self.vae, self.texts, self.options = Vae(vae), dict(texts), dict(options or {})
        self._source, self._stored, self._tokenizers = dict(source), dict(stored or {}), tokenizers
        h, w = (sample_size, sample_size) if isinstance(sample_size, int) else (int(n) for n in sample_size)
        self.shape = (self.vae.latent_channels, h, w)
        self.image_shape = (self.vae.channels, h * self.vae.factor, w * self.vae.factor)

    def encode(self, images: np.ndarray) -> torch.Tensor:
        self.check_images(images)
        return self.vae.encode(images)

    def decode(self, x0: torch.Tensor) -> np.ndarray:
        return self.vae.decode(x0)

    def source(self) -> dict[str, Any]:
        return dict(self._source)

    def parts(self) -> dict[str, Any]:
        return {"vae": self.vae.model} | {name: text.model for name, text in self.texts.items()}

    def digest(self) -> str:
        return self._digest

    @cached_property
    def _digest(self) -> str:
        """Values without their names, which transformers renames from version to version."""
        weights = {
            name: sorted(digest_arrays(p.detach().float().cpu().numpy()) for p in part.parameters())
            for name, part in self.parts().items()
        }
        lengths = {name: text.length for name, text in self.texts.items()}
        kind = [type(self).__name__, list(self.image_shape), self.vae.scale, self.vae.shift]
        return digest([*kind, weights, lengths, self._tokenizers], 64)

    def to(self, device: torch.device | str) -> None:
        on_cpu = torch.device(device).type == "cpu"
        for name, part in self.parts().items():
            whole = on_cpu or (name == "vae" and getattr(part.config, "force_upcast", False))
            # not diffusers' own `to`, which warns of every change of precision
            torch.nn.Module.to(part, device, torch.float32 if whole else self._stored.get(name, torch.float32))
