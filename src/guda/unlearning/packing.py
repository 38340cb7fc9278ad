"""How a counterfactual is stored: the setting `store`, and what it costs on disk.

fp32           the whole change                                    1      of a full copy
bf16           the whole change, rounded to 8 bits (rel. 2^-8)     1/2
lowrank:R      factors of its truncated SVD                        r (out + in) / (out in) per matrix
lora:R         only factors were trained                           the same, and nothing for biases and norms
...:bf16       factors rounded as well                             half of that
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import AfterValidator
from torch import nn

from guda.diffusion.denoiser import Denoiser
from guda.errors import GudaError
from guda.unlearning.bank import Counterfactual, compress, factors_numel, pays

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Packing:
    kind: str  # of counterfactual: delta, lowrank, lora
    dtype: torch.dtype
    rank: int = 0

    @classmethod
    def parse(cls, text: str) -> Packing:
        if text in DTYPES:
            return cls("delta", DTYPES[text])
        found = re.fullmatch(r"(lowrank|lora):([1-9]\d{0,5})(?::(fp32|bf16))?", text)
        if found is None:
            raise GudaError(
                "store-invalid",
                f"store {text!r} is none of fp32, bf16, lowrank:RANK, lora:RANK (or RANK:bf16), e.g. lora:4",
            )
        return cls(found[1], DTYPES[found[3] or "fp32"], int(found[2]))

    def round(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {k: v.to(self.dtype) if v.is_floating_point() else v for k, v in tensors.items()}

    def pack(self, delta: Counterfactual) -> Counterfactual:
        """A whole change, as this packing keeps it."""
        if self.kind == "delta":
            return replace(delta, tensors=self.round(delta.tensors))
        if self.kind == "lora":
            raise GudaError(
                "store-lora-unsupported",
                "a LoRA adapter is trained, not made from a finished change; use store = lowrank:RANK",
            )
        tensors = self.round(compress(delta.tensors, self.rank))
        return replace(delta, kind="lowrank", tensors=tensors, about={"rank": self.rank})


def _known(text: str) -> str:
    try:
        Packing.parse(text)
    except GudaError as e:
        raise ValueError(str(e)) from None  # what pydantic reports with the name of the field
    return text


Store = Annotated[str, AfterValidator(_known)]  # a setting's text


def full_bytes(module: nn.Module) -> int:
    """A copy of the whole network in fp32."""
    return 4 * sum(v.numel() for v in module.state_dict().values())


def bank_fraction(network: Denoiser | nn.Module, store: str) -> float:
    """Bytes of one counterfactual that changes everything it can, over the bytes of a full fp32 copy. Only shapes are
    looked at: build the network on torch.device("meta") and nothing is allocated."""
    module = network.module if isinstance(network, Denoiser) else network
    packing, shapes = Packing.parse(store), {k: v.shape for k, v in module.state_dict().items()}
    if packing.kind == "lora":
        from guda.diffusion.lora import targets

        numbers = sum(factors_numel(shapes[f"{name}.weight"], packing.rank) for name in targets(module))
    else:
        thin = packing.kind == "lowrank"
        numbers = sum(
            factors_numel(s, packing.rank) if thin and pays(s, packing.rank) else s.numel() for s in shapes.values()
        )
    return numbers * packing.dtype.itemsize / full_bytes(module)
