"""LoRA (Hu et al. 2022) through the peft library: adapters trained here, and files of a LoRA beside their base.

    W + (alpha / r) B A,   B = 0 at the start, so that the network's output at step 0 is unchanged

A base and one LoRA file can be the model under study. Then the network is *adapted*: W is frozen, A and B are the only
weights that training and unlearning move and that a bank holds, and W is shared by all copies of the network.

In a network that is wrapped here, every linear layer (a U-Net's attention projections among them) and every plain
convolution is adapted. A is drawn from a key, not from the global generator, so that the start does not depend on what
was trained before. Unlearned students keep the factors (unlearning/student.py); models fine-tuned from `model.start`
are published merged, as ordinary weights.
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


def is_adapter(name: str) -> bool:
    """Whether a weight of this name belongs to a LoRA."""
    return ".lora_" in name


def adapted(module: nn.Module) -> bool:
    """Whether the network is a frozen base with a LoRA."""
    return any(is_adapter(name) for name, _ in module.named_parameters())


def adapter_weights(module: nn.Module) -> dict[str, torch.Tensor]:
    return {k: v.detach().cpu().clone() for k, v in module.state_dict().items() if is_adapter(k)}


def lora_file(module: nn.Module) -> dict[str, torch.Tensor]:
    """An adapted network's LoRA as a diffusers pipeline reads it from a file; alpha / r is multiplied into B."""
    prefix = "unet" if "UNet" in type(module).__name__ else "transformer"
    found = {}
    for name, layer in _layers(module):
        scale = layer.scaling[ADAPTER]
        found[f"{prefix}.{name}.lora_A.weight"] = layer.lora_A[ADAPTER].weight.detach().cpu().clone()
        found[f"{prefix}.{name}.lora_B.weight"] = scale * layer.lora_B[ADAPTER].weight.detach().cpu()
    return found


def shared_base(module: nn.Module, everything: bool = False) -> dict[int, nn.Parameter]:
    """For `copy.deepcopy`: weights that the copy shares: the frozen ones of an adapted network, or all of them."""
    if not (everything or adapted(module)):
        return {}
    shared = [p for n, p in module.named_parameters() if everything or not is_adapter(n)]
    return {id(p): nn.Parameter(p.detach(), requires_grad=p.requires_grad) for p in shared}


def restart(module: nn.Module, *key: str | int) -> None:
    """Start the network's own LoRA afresh, in place: A is a function of `key`, B = 0."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(*key))
        for _, layer in _layers(module):
            layer.reset_lora_parameters(ADAPTER, True)


def _layers(module: nn.Module) -> list[tuple[str, Any]]:
    from peft.tuners.lora import LoraLayer

    return [(name, layer) for name, layer in module.named_modules() if isinstance(layer, LoraLayer)]


def targets(module: nn.Module) -> list[str]:
    """Names of the layers that can be adapted: where a convolution followed by a 1x1 one is one convolution."""

    def plain(layer: nn.Module) -> bool:
        if isinstance(layer, nn.Conv2d):
            return layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
        return isinstance(layer, nn.Linear)

    return [name for name, layer in module.named_modules() if plain(layer)]


def wrap(module: nn.Module, rank: int, *key: str | int) -> None:
    """Put adapters whose start is a function of `key` into `module`, in place; everything else is frozen."""
    if adapted(module):
        raise GudaError(
            "lora-already-there",
            "the model is a base with a LoRA, and its LoRA is all that is trained; leave out training.lora, and use "
            "store = fp32 or bf16",
        )
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
    for name, layer in _layers(module):
        b, a = (part[ADAPTER].weight.detach().cpu().flatten(1).clone() for part in (layer.lora_B, layer.lora_A))
        yield f"{name}.weight", b, a


def merged(module: nn.Module) -> dict[str, torch.Tensor]:
    """The weights of the plain network that a wrapped one amounts to, under the names they had before."""
    state = {
        k.replace(".base_layer.", "."): v.detach().cpu().clone()
        for k, v in module.state_dict().items()
        if ".lora_" not in k
    }
    scales = {f"{name}.weight": layer.scaling[ADAPTER] for name, layer in _layers(module)}
    for name, b, a in factors(module):
        # in float64 on the CPU: once rounded, the result does not tell how many threads summed it
        change = scales[name] * (b.double() @ a.double()).reshape(state[name].shape)
        state[name] = (state[name].double() + change).to(state[name].dtype)
    return state


def add_lora(pipeline: str, network: str, parts: Mapping[str, Any], lora: str, fused: bool) -> bool:
    """Add a diffusers LoRA file to the network and the text encoders among `parts`, in place; returns whether a text
    encoder changed. Text encoders are never trained, so there it becomes part of the weights; in the network too if
    `fused`, else its factors stay apart and everything else is frozen."""
    import diffusers

    file = Path(lora).expanduser()
    if not file.is_file() or file.suffix != ".safetensors":
        raise GudaError("lora-file-invalid", f"model.lora {lora!r} is not a .safetensors file")
    try:
        import peft  # noqa: F401
    except ImportError:
        raise GudaError("package-missing", "model.lora needs peft; run: pip install 'guda[lora]'") from None
    cls = getattr(diffusers, pipeline)
    if not hasattr(cls, "load_lora_weights"):
        raise GudaError(
            "lora-unsupported", f"diffusers reads no LoRA files for a {pipeline}; merge it, remove model.lora"
        )
    accepted = inspect.signature(cls.__init__).parameters
    # parts that do not matter here are left out, and so is what would warn of their absence
    given = {n: parts.get(n) for n, p in accepted.items() if n != "self" and p.default is p.empty}
    given |= {n: False for n in ("requires_safety_checker", "add_watermarker") if n in accepted}
    module, before = parts[network], {name: _sums(part) for name, part in parts.items()}
    try:
        pipe = cls(**given)
        pipe.load_lora_weights(
            str(file.parent), weight_name=file.name, use_safetensors=True, adapter_name=ADAPTER, low_cpu_mem_usage=False
        )
        loadable = [c for c in pipe._lora_loadable_modules if getattr(pipe, c, None) is not None]
        if fused:
            pipe.fuse_lora(components=loadable)
            pipe.unload_lora_weights()
        else:
            _fuse_texts(pipe, [c for c in loadable if c != network and adapted(parts[c])])
    except Exception as e:  # diffusers and peft raise many kinds; each means that the file does not fit
        raise GudaError(
            "lora-mismatch", f"model.lora {lora} does not fit this {pipeline}: {str(e).splitlines()[0]}"
        ) from e
    changed = [name for name in before if _sums(parts[name]) != before[name]]
    if network not in changed if fused else not adapted(module):
        raise GudaError(
            "lora-without-effect", f"model.lora {lora} changes no weight of the network; was it made for another model?"
        )
    if not fused:
        _freeze_base(module, lora)
    return any(name.startswith("text_encoder") for name in changed)


def _fuse_texts(pipe: Any, texts: list[str]) -> None:
    from diffusers.utils import recurse_remove_peft_layers

    if texts:
        pipe.fuse_lora(components=texts)
        for name in texts:
            recurse_remove_peft_layers(getattr(pipe, name))


def _freeze_base(module: nn.Module, lora: str) -> None:
    """Only plain factors are trainable; what a file has beside them (DoRA, biases) would change the base."""
    for name, parameter in module.named_parameters():
        if is_adapter(name) and not name.endswith((f"lora_A.{ADAPTER}.weight", f"lora_B.{ADAPTER}.weight")):
            raise GudaError(
                "lora-unsupported", f"model.lora {lora} has more than the two factors of each layer ({name}: DoRA?)"
            )
        parameter.requires_grad_(is_adapter(name))
    module.float().eval()


def _sums(part: Any) -> list[float]:
    return [float(p.detach().double().sum()) for p in part.parameters()] if hasattr(part, "parameters") else []
