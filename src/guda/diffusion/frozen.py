"""What stands around a text-to-image network and never moves: the VAE before it, the text encoder beside it, and how
the network wants to be called.

A Denoiser with a `frozen` part lives in latent space (x_0 = posterior mean of the VAE x its scaling factor, SPEC
section 2) and is told prompts. One class per kind of pipeline; training, unlearning and scoring see none of this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from guda.diffusion.cond import Cond
from guda.errors import GudaError

KEPT = 2**30  # bytes of embeddings held in memory; anchors draw the same few thousand prompts again and again

Row = dict[str, torch.Tensor]  # what one prompt is to the network


class Frozen(ABC):
    image_shape: tuple[int, int, int]  # of a picture, pixels
    shape: tuple[int, int, int]  # of x_0, what the network sees

    def __init__(self) -> None:
        self._computed: dict[str, Row] = {}  # at most KEPT bytes
        self._remembered: dict[str, Row] = {}  # views into a file on disk
        self._bytes = 0

    @abstractmethod
    def encode(self, images: np.ndarray) -> torch.Tensor:
        """uint8 [n, C, H, W] -> x_0, float32 on the CPU; an image's latent does not depend on its neighbours."""

    @abstractmethod
    def decode(self, x0: torch.Tensor) -> np.ndarray:
        """x_0 -> uint8 [n, C, H, W]."""

    @abstractmethod
    def embed(self, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
        """What the text encoder says of each prompt: named tensors [n, ...] on the CPU, arguments of `call`."""

    @abstractmethod
    def call(self, module: nn.Module, x_t: torch.Tensor, t: torch.Tensor, cond: Cond) -> torch.Tensor:
        """The network's native output; t is what the network is told (`Schedule.network_time`)."""

    @abstractmethod
    def source(self) -> dict[str, Any]:
        """Where to find it again, as JSON: kept beside a trained network instead of a copy of gigabytes."""

    @abstractmethod
    def digest(self) -> str:
        """Identity of everything that decides latents and embeddings."""

    def to(self, device: torch.device | str) -> None:  # noqa: B027  a frozen part may have no weights
        """Moves what computes."""

    def condition(self, prompts: Sequence[str]) -> Cond:
        """One row per prompt; each text is embedded once and kept."""
        found = {p: self._remembered.get(p) or self._computed.get(p) for p in dict.fromkeys(prompts)}
        if new := [p for p, row in found.items() if row is None]:
            made = self.embed(new)
            size = sum(value.nbytes for value in made.values())
            if self._bytes + size > KEPT:
                self._computed, self._bytes = {}, 0
            rows = {p: {name: value[i] for name, value in made.items()} for i, p in enumerate(new)}
            found |= rows
            if size <= KEPT:
                self._computed |= rows
                self._bytes += size
        picked = [found[p] or {} for p in prompts]
        return Cond({name: torch.stack([row[name] for row in picked]) for name in picked[0]})

    def unconditional(self, n: int) -> Cond:
        """What guidance moves away from in generating: the empty prompt, n times."""
        return self.condition([""] * n)

    def remember(self, prompts: Sequence[str], tensors: dict[str, torch.Tensor]) -> None:
        """Embeddings computed before, from a file that stays (`cache.py`): rows are read when they are asked for."""
        for i, prompt in enumerate(prompts):
            self._remembered[prompt] = {name: value[i] for name, value in tensors.items()}

    def remembers(self, prompts: Sequence[str]) -> bool:
        return all(p in self._remembered for p in prompts)

    def check_images(self, images: np.ndarray) -> None:
        if tuple(images.shape[1:]) != self.image_shape:
            c, h, w = self.image_shape
            found = "x".join(str(n) for n in images.shape[1:])
            fix = f"give --size {h}" if images.shape[2:] != (h, w) else f"set data.mode: {'RGB' if c == 3 else 'L'}"
            raise GudaError(
                "image-shape-mismatch",
                f"the model takes pictures of {c}x{h}x{w} (channels, height, width), got {found}; {fix}",
            )


def from_source(value: dict[str, Any]) -> Frozen:
    """The frozen part that `source()` described."""
    if value.get("kind") == "words":
        from guda.diffusion.frozen_words import Words

        return Words(value["encoder"], value["length"], value["image_shape"], value["patch"])
    if value.get("kind") == "pipeline":
        from guda.diffusion.pipelines import frozen_of

        return frozen_of(value["path"], value.get("lora"))
    raise GudaError("frozen-part-unknown", f"unknown frozen part {value.get('kind')!r}; written by a newer guda?")
