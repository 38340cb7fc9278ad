"""LoRA (Hu et al. 2022) through the peft library: adapters trained here, and files fused into a pipeline at load.

    W + (alpha / r) B A,   B = 0 at the start, so that the network's output at step 0 is unchanged

Every linear layer (a U-Net's attention projections among them) and every plain convolution is adapted. A is drawn from
a key, not from the global generator, so that the start does not depend on what was trained before. Unlearned students
keep the factors (unlearning/student.py); fine-tuned models are published merged, as ordinary weights.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

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


def wrap(module: nn.Module, rank: int, *key: str | int) -> None:
    """Put adapters whose start is a function of `key` into `module`, in place; everything else is frozen."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise GudaError(
            "package-missing",
            "LoRA (store = lora:R, training.lora) needs the peft library; install it with: pip install guda[lora]",
        ) from None
    names = targets(module)
    if not names:
        raise GudaError(
            "lora-layers-missing",
            f"{type(module).__name__} has no linear layer or convolution for LoRA to adapt; use store = fp32",
        )
    # one pattern of whole names: a list would also match layers that merely end in one of them
    config = LoraConfig(r=rank, lora_alpha=rank, target_modules="|".join(map(re.escape, names)))
    with torch.random.fork_rng():
        torch.manual_seed(torch_seed(*key))
        inject_adapter_in_model(config, module, ADAPTER)
    module.eval()


def factors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """(name its weight had before, B [out, r], A [r, in]) of every adapted layer; alpha / r is 1."""
    from peft.tuners.lora import LoraLayer

    layers: list[tuple[str, Any]] = [(n, m) for n, m in module.named_modules() if isinstance(m, LoraLayer)]
    for name, layer in layers:
        b, a = (part[ADAPTER].weight.detach().cpu().flatten(1).clone() for part in (layer.lora_B, layer.lora_A))
        yield f"{name}.weight", b, a


def merged(module: nn.Module) -> dict[str, torch.Tensor]:
    """The weights of the plain network that a wrapped one amounts to, under the names they had before."""
    state = {
        k.replace(".base_layer.", "."): v.detach().cpu().clone()
        for k, v in module.state_dict().items()
        if ".lora_" not in k
    }
    for name, b, a in factors(module):
        # in float64 on the CPU: once rounded, the result does not tell how many threads summed it
        change = (b.double() @ a.double()).reshape(state[name].shape)
        state[name] = (state[name].double() + change).to(state[name].dtype)
    return state


def fuse(pipeline: str, network: str, parts: Mapping[str, Any], lora: str) -> bool:
    """Add a diffusers LoRA file to the weights of the network and text encoders among `parts`, in place, so that the
    rest sees plain networks; returns whether a text encoder changed."""
    import diffusers

    file = Path(lora).expanduser()
    if not file.is_file() or file.suffix != ".safetensors":
        raise GudaError("lora-file-invalid", f"model.lora {lora!r} is not a .safetensors file")
    try:
        import peft  # noqa: F401
    except ImportError:
        raise GudaError("package-missing", "model.lora needs peft; run: pip install 'guda[lora]'") from None
    cls = getattr(diffusers, pipeline)
    accepted = inspect.signature(cls.__init__).parameters
    # parts that do not matter here are left out, and so is what would warn of their absence
    given = {n: parts.get(n) for n, p in accepted.items() if n != "self" and p.default is p.empty}
    given |= {n: False for n in ("requires_safety_checker", "add_watermarker") if n in accepted}
    before = {name: _sums(part) for name, part in parts.items()}
    try:
        pipe = cls(**given)
        pipe.load_lora_weights(str(file.parent), weight_name=file.name, use_safetensors=True)
        pipe.fuse_lora(components=[c for c in pipe._lora_loadable_modules if getattr(pipe, c, None) is not None])
        pipe.unload_lora_weights()
    except Exception as e:  # diffusers and peft raise many kinds; each means that the file does not fit
        raise GudaError(
            "lora-mismatch", f"model.lora {lora} does not fit this {pipeline}: {str(e).splitlines()[0]}"
        ) from e
    changed = [name for name in before if _sums(parts[name]) != before[name]]
    if network not in changed:
        raise GudaError(
            "lora-without-effect", f"model.lora {lora} changes no weight of the network; was it made for another model?"
        )
    return any(name.startswith("text_encoder") for name in changed)


def _sums(part: Any) -> list[float]:
    return [float(p.detach().double().sum()) for p in part.parameters()] if hasattr(part, "parameters") else []
