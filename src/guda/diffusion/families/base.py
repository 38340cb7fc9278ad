"""Model families: which networks guda loads and trains, and the components around each of them.

A `Family` says which network classes may be read, how a recipe's `model.net` builds one, and which pipeline folders it
reads as a whole. A `Frozen` part surrounds a network and is never trained: the VAE before it, the text
encoder beside it, and how the network is called. A new family is one file that registers a Family:

    FAMILIES.register("my-net")(MyFamily())

and another package names that file under the entry-point group "guda.families". Only classes that a family lists are
ever instantiated, from safetensors alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from guda.config import ModelConfig
from guda.errors import GudaError
from guda.registry import Registry


@dataclass(frozen=True)
class Cond:
    tensors: dict[str, torch.Tensor]  # keyword arguments of the network, each [B, ...]

    def __post_init__(self) -> None:
        if len({len(v) for v in self.tensors.values()}) != 1:
            raise ValueError("a Cond needs tensors of one common batch size")

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def __getitem__(self, index: torch.Tensor | slice) -> Cond:
        return Cond({k: v[index] for k, v in self.tensors.items()})

    def to(self, device: torch.device | str) -> Cond:
        return Cond({k: v.to(device) for k, v in self.tensors.items()})

    @staticmethod
    def cat(parts: Sequence[Cond]) -> Cond:
        return Cond({k: torch.cat([p.tensors[k] for p in parts]) for k in parts[0].tensors})


EMBEDDING_BYTES = 2**30  # embeddings held in memory; anchors draw the same few thousand prompts again and again

Row = dict[str, torch.Tensor]  # the embedding of one prompt, by argument of the network


class Frozen(ABC):
    """What surrounds a network. x_0 is what the network sees: pixels, or the posterior mean of a VAE times its
    scaling factor. Training, unlearning and scoring see a Denoiser and none of this."""

    image_shape: tuple[int, int, int]  # (C, H, W) of an image in pixels
    shape: tuple[int, int, int]  # (C, H, W) of x_0
    tokens: int | None = None  # a picture is to the network, where its noise levels depend on it (dynamic shifting)
    cache_latents: ClassVar[bool] = False  # whether encoding is so slow that a run keeps the result on disk
    embeds_guidance: ClassVar[bool] = False  # whether guidance is an input of the network (`cond.tensors["guidance"]`)
    drops_variance: ClassVar[bool] = False  # whether `call` leaves out the half of the channels that is a variance

    def __init__(self) -> None:
        self._computed: dict[str, Row] = {}  # at most EMBEDDING_BYTES
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
        """Embeddings of the prompts: named tensors [n, ...] on the CPU, which `call` receives as `cond.tensors`."""

    @abstractmethod
    def call(self, module: nn.Module, x_t: torch.Tensor, t: torch.Tensor, cond: Cond) -> torch.Tensor:
        """The network's native output; t is already `Schedule.network_time`."""

    @abstractmethod
    def source(self) -> dict[str, Any]:
        """Where to find it again, as JSON with a `kind` (see `loading.read_frozen`): saved beside a trained network
        instead of a copy of gigabytes."""

    @abstractmethod
    def digest(self) -> str:
        """Identity of everything that decides latents and embeddings."""

    def to(self, device: torch.device | str) -> None:  # noqa: B027  a frozen part may have no weights
        """Move the weights in place."""

    def release(self) -> None:  # noqa: B027
        """Free what is only needed to encode new pictures and prompts."""

    def check_scheduler(self, scheduler: Any) -> None:  # noqa: B027
        """Refuse a pipeline whose own scheduler shows that it is distilled to a few steps."""

    def sigmas(self, steps: int) -> np.ndarray | None:
        """Noise levels of a flow-matching sampler before they are shifted; None: the scheduler's own."""
        return None

    def condition(self, prompts: Sequence[str]) -> Cond:
        """One row per prompt; each text is embedded once and kept."""
        rows = {p: self._remembered.get(p) or self._computed.get(p) for p in dict.fromkeys(prompts)}
        if new := [p for p, row in rows.items() if row is None]:
            embedded = self.embed(new)
            size = sum(value.nbytes for value in embedded.values())
            if self._bytes + size > EMBEDDING_BYTES:
                self._computed, self._bytes = {}, 0
            new_rows = {p: {name: value[i] for name, value in embedded.items()} for i, p in enumerate(new)}
            rows |= new_rows
            if size <= EMBEDDING_BYTES:
                self._computed |= new_rows
                self._bytes += size
        picked = [rows[p] or {} for p in prompts]
        return Cond({name: torch.stack([row[name] for row in picked]) for name in picked[0]})

    def unconditional(self, n: int) -> Cond:
        """What guidance moves away from: the empty prompt, n times."""
        return self.condition([""] * n)

    def remember(self, prompts: Sequence[str], tensors: dict[str, torch.Tensor]) -> None:
        """Use embeddings computed before, from a memory-mapped file: a row is read when its prompt is first used."""
        for i, prompt in enumerate(prompts):
            self._remembered[prompt] = {name: value[i] for name, value in tensors.items()}

    def remembers(self, prompts: Sequence[str]) -> bool:
        return all(p in self._remembered for p in prompts)

    def check_images(self, images: np.ndarray) -> None:
        if tuple(images.shape[1:]) != self.image_shape:
            c, h, w = self.image_shape
            given = "x".join(str(n) for n in images.shape[1:])
            fix = f"give --size {h}" if images.shape[2:] != (h, w) else f"set data.mode: {'RGB' if c == 3 else 'L'}"
            raise GudaError(
                "image-shape-mismatch",
                f"the model takes pictures of {c}x{h}x{w} (channels, height, width), got {given}; {fix}",
            )


class Family:
    """One kind of model; override what it supports."""

    networks: tuple[str, ...] = ()  # network classes that may be read, as "module:Class"
    any_size: bool = False  # whether its networks take pictures of any size (`model.size`)
    pipeline: str | None = None  # `_class_name` of the pipeline folders (model_index.json) it reads as a whole

    def build(self, config: ModelConfig, shape: tuple[int, int, int]) -> tuple[nn.Module, Frozen | None]:
        """A new network for images of `shape`, by a recipe's model section, and what surrounds it. Raise
        TypeError, ValueError or RuntimeError where the options do not make a network."""
        raise GudaError(
            "family-not-trainable", f"model.net {config.net!r} cannot be trained from scratch; give model.start or path"
        )

    def frozen(self, source: Mapping[str, Any]) -> Frozen:
        """The frozen part that `Frozen.source()` described, where its `kind` is the name of this family."""
        raise self._lacks("frozen part")

    def download_patterns(self) -> list[str]:
        """Files of a pipeline's Hub repository that are needed: not the other copies of the weights beside them."""
        raise self._lacks("pipeline to download")

    def read_pipeline(
        self, folder: Path, path: str, lora: str | None = None, fused: bool = True, **options: Any
    ) -> tuple[nn.Module, Frozen]:
        """The network and the frozen part of a pipeline folder; `path`: how the user named it; `fused`: whether a LoRA
        becomes part of the weights; `options`: `size` and `guidance` of the recipe's model section, where given."""
        raise self._lacks("pipeline to read")

    def read_frozen(self, folder: Path, path: str, **options: Any) -> Frozen:
        """The frozen part of a pipeline folder alone, for networks fine-tuned here."""
        raise self._lacks("pipeline to read a frozen part from")

    def _lacks(self, what: str) -> GudaError:
        return GudaError("pipeline-unsupported", f"{type(self).__name__} has no {what}; choose another model family")


FAMILIES: Registry[Family] = Registry(
    "family",
    "guda.families",
    [f"guda.diffusion.families.{name}" for name in ("unet2d", "mlp", "words", "sd", "flux", "pixart", "gemma")],
)


def pixel_options(config: ModelConfig, shape: tuple[int, int, int]) -> dict[str, Any]:
    """Constructor arguments of a network that maps images of `shape` to the same shape."""
    channels, size, _ = shape
    return {"sample_size": size, "in_channels": channels, "out_channels": channels} | config.options
