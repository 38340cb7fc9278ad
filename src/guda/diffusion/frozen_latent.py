"""What the text-to-image pipelines of diffusers have in common: a VAE, text encoders, and a folder they came from.

float32 on the CPU; on a GPU each part computes in the precision it was stored in, a VAE marked `force_upcast` in
float32 (SDXL's overflows in half precision). The digest is of values, so it does not depend on where they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from guda.diffusion.frozen import Frozen
from guda.diffusion.text_encoder import TextEncoder
from guda.diffusion.vae import Vae
from guda.errors import GudaError
from guda.files import digest, digest_arrays


class LatentFrozen(Frozen):
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
        """sample_size: of the network's latents; options: of the pipeline (model_index.json); stored: precision of
        each part on disk; tokenizers: digest of their files."""
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
