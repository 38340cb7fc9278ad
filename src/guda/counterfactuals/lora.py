"""LoRA: a student of which only thin factors move (Hu et al. 2022), through the peft library.

    W + (alpha / r) B A,   B = 0 at the start, so that the student is its teacher at step 0

Every linear layer and every plain convolution is adapted. A is drawn from the key (seed, "lora", group), not from the
global generator, so that a group's student is the same whatever was fitted before it.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn

from guda.counterfactuals.lowrank import A, B
from guda.diffusion.noise import torch_seed
from guda.errors import GudaError

ADAPTER = "default"


def targets(module: nn.Module) -> list[str]:
    """Names of the layers that can be adapted: where a convolution followed by a 1x1 one is one convolution."""

    def plain(layer: nn.Module) -> bool:
        if isinstance(layer, nn.Conv2d):
            return layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
        return isinstance(layer, nn.Linear)

    return [name for name, layer in module.named_modules() if plain(layer)]


def wrap(module: nn.Module, rank: int, seed: int, group: str) -> None:
    """Put adapters into `module`, in place; everything else is frozen."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise GudaError("store = lora:R needs the peft library; install it with: pip install guda[lora]") from None
    names = targets(module)
    if not names:
        raise GudaError(
            f"{type(module).__name__} has no linear layer or convolution for LoRA to adapt; use store = fp32"
        )
    # one pattern of whole names: a list would also match layers that merely end in one of them
    config = LoraConfig(r=rank, lora_alpha=rank, target_modules="|".join(map(re.escape, names)))
    with torch.random.fork_rng():
        torch.manual_seed(torch_seed(seed, "lora", group))
        inject_adapter_in_model(config, module, ADAPTER)
    module.eval()


def factors(module: nn.Module) -> dict[str, torch.Tensor]:
    """The adapters of a wrapped module under the names its weights had before: `<layer>.weight@B`, `@A`."""
    from peft.tuners.lora import LoraLayer

    found = {}
    layers: list[tuple[str, Any]] = [(n, m) for n, m in module.named_modules() if isinstance(m, LoraLayer)]
    for name, layer in layers:
        for key, part in ((B, layer.lora_B), (A, layer.lora_A)):
            found[f"{name}.weight{key}"] = part[ADAPTER].weight.detach().cpu().flatten(1).clone()
    return found
