"""Denoiser: the interface to a network that the rest of guda uses.

The same for any nn.Module (x_t, t) -> prediction and for the models of every family: `eps(x_t, t, cond)`,
`encode(images)`, `condition(prompts)`, `schedule`. Training and gradient methods may also use `module`,
`raw(x_t, t, cond)` (native output) and `target(x0, eps, t)`. `Latents` are the training images as it sees them.
"""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from guda.data.images import to_float, to_uint8
from guda.diffusion import distributed
from guda.diffusion.families.base import Cond, Frozen
from guda.diffusion.lora import adapted, is_adapter, shared_base
from guda.diffusion.schedule import Schedule
from guda.errors import GudaError, NotFinite
from guda.files import digest_arrays


def weights_digest(state: Mapping[str, torch.Tensor]) -> str:
    """sha256 over names and values: the identity of a set of weights, independent of its file."""
    h = hashlib.sha256()
    for name in sorted(state):
        h.update(name.encode())
        h.update(digest_arrays(state[name].detach().cpu().contiguous().view(-1).numpy()).encode())
    return h.hexdigest()


def _same(one: torch.Tensor, two: torch.Tensor) -> bool:
    return one.data_ptr() == two.data_ptr() or torch.equal(one.to(two), two)


def default_device() -> str:
    """$GUDA_DEVICE, else the GPU where there is one and the launcher was not given --cpu."""
    return os.environ.get("GUDA_DEVICE") or (
        "cuda" if torch.cuda.is_available() and not distributed.on_cpu() else "cpu"
    )


def _check_config(config: Any, frozen: Frozen | None) -> None:
    """Refuse diffusers networks with inputs or outputs that are not supported."""
    out = config.out_channels or config.in_channels
    if out == 2 * config.in_channels and not (frozen is not None and frozen.drops_variance):
        raise GudaError(
            "network-variance-learned", "the network has a learned-variance head (twice the channels); not supported"
        )
    if out not in (config.in_channels, 2 * config.in_channels):
        raise GudaError("network-channels-differ", f"the network maps {config.in_channels} channels to {out}")
    if getattr(config, "class_embed_type", None) is not None:
        raise GudaError(
            "class-embedding-unsupported",
            "the network has a class_embed_type; guda conditions on num_class_embeds or on text",
        )
    if frozen is None and hasattr(config, "cross_attention_dim"):
        raise GudaError(
            "pipeline-required", "the network listens to text; load its whole pipeline folder, text encoder included"
        )


class Denoiser:
    """A network with its schedule. Pixel space (images in [-1, 1]), unconditional or class-conditional; or, with a
    `frozen` part around it (families/base.py), conditioned on prompts and in its latent space."""

    def __init__(
        self,
        module: nn.Module,
        schedule: Schedule,
        shape: Sequence[int],
        *,
        n_classes: int | None = None,
        scheduler: Any = None,
        frozen: Frozen | None = None,
    ) -> None:
        self.module = module.eval()
        self.schedule = schedule
        self.shape = tuple(int(n) for n in shape)  # (C, H, W) of x_0
        self.n_classes = n_classes
        self.scheduler = scheduler  # the diffusers scheduler it came with, needed to sample and to save
        self.frozen = frozen

    @classmethod
    def from_module(
        cls, module: nn.Module, scheduler: Any, shape: Sequence[int] | None = None, frozen: Frozen | None = None
    ) -> Denoiser:
        """Wrap a network: a diffusers model, or any nn.Module called as module(x_t, t). `scheduler`: diffusers'."""
        config = getattr(module, "config", None)
        n_classes = None
        if config is not None and hasattr(config, "sample_size"):
            if shape is None and config.sample_size is None:
                raise GudaError(
                    "sample-size-missing",
                    "the network's config.json has no sample_size; write its image size (pixels) there",
                )
            if shape is None:
                size = config.sample_size
                shape = (config.in_channels, *((size, size) if isinstance(size, int) else size))
            _check_config(config, frozen)
            n_classes = getattr(config, "num_class_embeds", None)
        if shape is None:
            raise GudaError(
                "image-shape-missing", "give the image shape (C, H, W): the module has no config to read it from"
            )
        schedule = Schedule.from_scheduler(scheduler, None if frozen is None else frozen.tokens)
        return cls(module, schedule, shape, n_classes=n_classes, scheduler=scheduler, frozen=frozen)

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        scheduler: str | None = None,
        lora: str | None = None,
        fused: bool = False,
        **options: Any,
    ) -> Denoiser:
        """A local folder or Hub id in the diffusers layout (safetensors only); see `loading.load`."""
        from guda.diffusion.loading import load

        module, noise, frozen = load(str(path), scheduler, lora, fused, **options)
        denoiser = cls.from_module(module, noise, None if frozen is None else frozen.shape, frozen)
        denoiser.check_finite(str(path))
        return denoiser

    def save_pretrained(self, path: str | Path) -> None:
        """Write the diffusers pipeline layout: model_index.json, unet/, scheduler/."""
        from guda.diffusion.loading import save

        save(self, Path(path))

    # ---- outputs -----------------------------------------------------------------------------------------

    def raw(self, x_t: torch.Tensor, t: torch.Tensor, cond: Cond | None = None) -> torch.Tensor:
        """The network's native output."""
        if self.conditional and cond is None:
            raise self._prompts_required()
        t = self.schedule.network_time(t)
        if self.frozen is not None and cond is not None:
            return self.frozen.call(self.module, x_t, t, cond)
        out = self.module(x_t, t, **(cond.tensors if cond is not None else {}))
        return out if isinstance(out, torch.Tensor) else out.sample

    def raws(self, x_t: torch.Tensor, t: torch.Tensor, cond: Cond | None = None) -> torch.Tensor:
        """Native outputs of all the models this one stands for, [K, *x_t.shape]: one, but for counterfactual rules."""
        return self.raw(x_t, t, cond)[None]

    def eps(self, x_t: torch.Tensor, t: torch.Tensor, cond: Cond | None = None) -> torch.Tensor:
        return self.schedule.to_eps(self.raw(x_t, t, cond), x_t, t)

    def x0(self, x_t: torch.Tensor, t: torch.Tensor, cond: Cond | None = None) -> torch.Tensor:
        return self.schedule.to_x0(self.raw(x_t, t, cond), x_t, t)

    def target(self, x0: torch.Tensor, eps: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.schedule.target(x0, eps, t)

    # ---- inputs ---------------------------------------------------------------------------------------------

    @property
    def conditional(self) -> bool:
        return self.n_classes is not None or self.frozen is not None

    @property
    def kind(self) -> str:
        return "text-to-image" if self.frozen else "unconditional" if self.n_classes is None else "class-conditional"

    @property
    def condition_name(self) -> str:
        """What a conditional model needs for every image."""
        return "prompt" if self.frozen else "class"

    @property
    def empty(self) -> str:
        """What a conditional model is told in the place of a dropped prompt: of classes, the last label, which is the
        null label where no class has it."""
        return "" if self.n_classes is None else str(self.n_classes - 1)

    def _prompts_required(self) -> GudaError:
        return GudaError(
            "prompts-required",
            f"this model is {self.kind}: every image needs its {self.condition_name} (a prompts.jsonl file)",
        )

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(C, H, W) of a picture in pixels; `shape` is that of x_0."""
        return self.shape if self.frozen is None else self.frozen.image_shape

    def encode(self, images: np.ndarray) -> torch.Tensor:
        """uint8 [n,C,H,W] -> x_0. Pixel models: the image in [-1, 1]."""
        return torch.from_numpy(to_float(images)) if self.frozen is None else self.frozen.encode(images)

    def decode(self, x0: torch.Tensor) -> np.ndarray:
        return to_uint8(x0.detach().cpu().numpy()) if self.frozen is None else self.frozen.decode(x0)

    def condition(self, prompts: Sequence[str] | None) -> Cond | None:
        """The network's condition for each image; class-conditional models read the prompt as a class index."""
        if self.frozen is not None and prompts is not None:
            return self.frozen.condition(prompts)
        if not self.conditional:
            if prompts is not None:
                raise GudaError(
                    "prompts-unexpected",
                    "the model is unconditional but the queries have prompts; remove prompts.jsonl",
                )
            return None
        if prompts is None:
            raise self._prompts_required()
        assert self.n_classes is not None
        for p in prompts:
            if not p.isdigit() or int(p) >= self.n_classes:
                raise GudaError("class-unknown", f"class {p!r} is not one of 0..{self.n_classes - 1}")
        return Cond({"class_labels": torch.tensor([int(p) for p in prompts])})

    # ---- weights --------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.module.parameters()), torch.device("cpu"))

    def to(self, device: torch.device | str) -> Denoiser:
        """Moves the network in place."""
        self.module.to(device)
        if self.frozen is not None:
            self.frozen.to(device)
        return self

    def weights(self) -> dict[str, torch.Tensor]:
        return dict(self.module.state_dict())

    def digest(self) -> str:
        return weights_digest(self.weights())

    def check_finite(self, where: str, why: str = "the checkpoint is broken") -> None:
        for name, value in self.weights().items():
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                raise NotFinite("weights-not-finite", f"{where}: weight {name!r} holds NaN or infinity; {why}")

    def check_weights(self, state: Mapping[str, torch.Tensor], where: str) -> None:
        mine = self.weights()
        if set(mine) != set(state):
            odd = sorted(set(mine) ^ set(state))[0]
            raise GudaError(
                "weights-mismatch", f"{where} does not fit this network: weight {odd!r} is on one side only"
            )
        for name, value in state.items():
            if value.shape != mine[name].shape:
                raise GudaError(
                    "weight-shape-mismatch",
                    f"{where}: {name!r} is {tuple(value.shape)}, the network has {tuple(mine[name].shape)}",
                )

    def with_weights(self, state: Mapping[str, torch.Tensor]) -> Denoiser:
        """A second network of the same architecture; this one is left alone. Of a base with a LoRA only the LoRA is
        copied."""
        self.check_weights(state, "the given weights")
        if adapted(self.module):  # copies share the base
            mine = self.weights()
            if odd := [k for k, v in state.items() if not is_adapter(k) and not _same(v, mine[k])]:
                raise GudaError(
                    "adapter-base-changed", f"the given weights change {odd[0]!r}, of the base that only has a LoRA"
                )
            state = {k: v for k, v in state.items() if is_adapter(k)}
        twin = self.clone()
        twin.module.load_state_dict(dict(state), strict=len(state) == len(self.weights()))
        return twin

    def clone(self, share: bool = False) -> Denoiser:
        """`share`: one memory for the weights of both, for a copy whose weights nobody changes."""
        twin = copy.copy(self)
        twin.module = copy.deepcopy(self.module, shared_base(self.module, share)).eval()
        return twin

    def n_parameters(self) -> int:
        return sum(p.numel() for p in self.module.parameters())


@dataclass(frozen=True)
class Latents:
    """The training images as the network sees them, with their mirror images where flips are drawn. The latent of a
    mirrored image is not the mirrored latent of a VAE, so both are kept; for pixel models mirroring is exact."""

    x0: torch.Tensor  # float32 [n, C, H, W], on the CPU
    mirrored: torch.Tensor | None = None  # of the mirrored images; None: x0.flip(-1) is the same

    def take(self, index: np.ndarray, flip: np.ndarray | None = None) -> torch.Tensor:
        """Rows `index`, mirrored where `flip` is true."""
        x = self.x0[index]
        if flip is None or not flip.any():
            return x
        other = x.flip(-1) if self.mirrored is None else self.mirrored[index]
        return torch.where(torch.from_numpy(flip)[:, None, None, None], other, x)


def encode_all(denoiser: Denoiser, images: np.ndarray, flips: bool = False) -> Latents:
    # a VAE may answer in another memory layout, for which kernels give other last bits than for latents from a file
    x0 = denoiser.encode(images).contiguous()
    if denoiser.frozen is None or denoiser.frozen.shape == denoiser.frozen.image_shape or not flips:
        return Latents(x0)
    return Latents(x0, denoiser.encode(images[..., ::-1]).contiguous())
