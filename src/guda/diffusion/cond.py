"""The conditioning of a model: named tensors with a common batch axis.

Indexable, concatenable, movable, so that code which cuts work into blocks need not know what is inside
(class labels, text embeddings, SDXL's added conditions).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


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
