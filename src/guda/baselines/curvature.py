"""A block-diagonal curvature H in its eigenbasis, and gradients seen through a power of H + damping I.

    (U_B (x) U_A) diag(l + damping)^power (U_B (x) U_A)^T       one block per layer, weight with bias

for the layers that K-FAC knows (kfac.py finds H). Damping is exact, added to every eigenvalue. Applying it needs no
library; a file holds eigenvectors and eigenvalues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from guda.baselines.features import Precondition
from guda.errors import GudaError
from guda.files import read_tensors, write_tensors

PARTS = ("left", "right", "eigenvalues")


@dataclass(frozen=True)
class Block:
    """H of one layer: (left (x) right) diag(eigenvalues) (left (x) right)^T."""

    left: torch.Tensor  # eigenvectors of B, [out, out]
    right: torch.Tensor  # eigenvectors of A, [in, in]; with the bias, a last row for its constant input
    eigenvalues: torch.Tensor  # [out, in]

    def power(self, gradient: torch.Tensor, damping: float, power: float) -> torch.Tensor:
        """(H + damping I)^power of gradients [n, out, in]."""
        rotated = self.left.T @ gradient @ self.right
        return self.left @ (rotated * (self.eigenvalues + damping) ** power) @ self.right.T


class Curvature:
    """H, block by block; `blocks` are named by their layers."""

    def __init__(self, blocks: Mapping[str, Block], biased: Sequence[str]) -> None:
        self.blocks, self.biased = dict(blocks), set(biased)

    @property
    def names(self) -> list[str]:
        """The weights it knows."""
        return [f"{layer}.{part}" for layer in self.blocks for part in ("weight", "bias")[: 1 + (layer in self.biased)]]

    @property
    def mean_eigenvalue(self) -> float:
        """tr H / size: what a relative damping is relative to."""
        values = [b.eigenvalues for b in self.blocks.values()]
        return sum(float(v.double().sum()) for v in values) / sum(v.numel() for v in values)

    def precondition(
        self, gradients: Mapping[str, torch.Tensor], damping: float, power: float = -1.0
    ) -> dict[str, torch.Tensor]:
        """(H + damping I)^power g of n gradients {weight: [n, size]}; weights that H does not know are dropped.

        A power of -1/2 on both sides of a product gives what -1 gives on one of them."""
        done = {}
        for layer, block in self.blocks.items():
            out = len(block.left)
            weight = gradients[f"{layer}.weight"]
            parts = [weight.reshape(len(weight), out, -1)]
            if layer in self.biased:
                parts.append(gradients[f"{layer}.bias"][:, :, None])
            found = block.power(torch.cat(parts, dim=2), damping, power)
            width = parts[0].shape[2]
            done[f"{layer}.weight"] = found[:, :, :width].flatten(1)
            if layer in self.biased:
                done[f"{layer}.bias"] = found[:, :, width]
        return done

    def save(self, path: Path, model: str) -> None:
        """`model`: the digest of the weights it was found at."""
        tensors = {f"{layer}/{part}": getattr(b, part) for layer, b in self.blocks.items() for part in PARTS}
        names = {"layers": " ".join(self.blocks), "biased": " ".join(sorted(self.biased))}
        write_tensors(path, tensors, names | {"model": model})

    @classmethod
    def load(cls, path: Path, model: str) -> Curvature:
        tensors, header = read_tensors(path)
        if header.get("model") != model:
            raise GudaError("curvature-stale", f"{path} is the curvature of another network; delete it and fit again")
        try:
            blocks = {n: Block(*(tensors[f"{n}/{part}"] for part in PARTS)) for n in header["layers"].split()}
            return cls(blocks, header["biased"].split())
        except KeyError as e:
            raise GudaError(
                "curvature-damaged", f"{path} holds no curvature ({e} is missing); delete it and fit again"
            ) from None

    def to(self, device: torch.device | str) -> Curvature:
        moved = {n: Block(*(getattr(b, part).to(device) for part in PARTS)) for n, b in self.blocks.items()}
        return Curvature(moved, sorted(self.biased))


@dataclass(frozen=True)
class Through:
    """Gradients are seen through (H + damping I)^power of a run's curvature file."""

    file: str
    damping: float
    relative: bool  # damping in units of the mean eigenvalue
    power: float

    def load(self, path: Path, model: str, device: torch.device) -> Precondition:
        found = Curvature.load(path, model).to(device)
        damping = self.damping * (found.mean_eigenvalue if self.relative else 1.0)
        return lambda gradients: found.precondition(gradients, damping, self.power)
