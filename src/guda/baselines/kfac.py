"""K-FAC influence: gradients seen through the curvature of the training loss.

    tau_i(q) = grad m(q)^T (H + damping I)^{-1} grad l(z_i)

H is the Gauss-Newton matrix of the mean squared error over draws (image, t, eps), one block per Linear or Conv2d layer
(weight with bias), approximated by curvlinops: the block of a layer with inputs a and output derivatives d is

    K-FAC   B (x) A,  A = E[a a^T],  B = E[d d^T]       = (U_B (x) U_A) diag(l_B l_A^T) (U_B (x) U_A)^T
    EKFAC   the same eigenvectors, eigenvalues E[(U_B^T G U_A)^2] of the layer's own gradients G

d comes from targets sampled around the output, N(output, 1/2), not from the residual (that would be the empirical
Fisher). A target is keyed by its draw, where the library's own sampling would depend on how draws are batched: the
network's output less its value is compared with keyed noise. Damping is exact, added to every eigenvalue. All other
weights (norms, embeddings, attention's lone parameters) have no block and are left out of both sides.

`Curvature` keeps H in its eigenbasis, and shows gradients through a power of H + damping I:

    (U_B (x) U_A) diag(l + damping)^power (U_B (x) U_A)^T       one block per layer, weight with bias

Applying it needs no library; a file holds eigenvectors and eigenvalues.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from guda.baselines.features import Precondition
from guda.baselines.gradients import chosen_weights
from guda.diffusion.denoiser import Denoiser, Latents
from guda.diffusion.families.base import Cond
from guda.diffusion.noise import generator
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


class Draws:
    """Batches (what the network is given, sampled targets) of draws (image, t, eps), a function of (seed, draw) alone.

    Every image is drawn once before any is drawn twice. Iterated twice by EKFAC, so nothing is kept."""

    def __init__(
        self, denoiser: Denoiser, x0: Latents, prompts: Sequence[str] | None, draws: int, batch: int, seed: int
    ) -> None:
        self.denoiser, self.x0, self.prompts = denoiser, x0, prompts
        self.draws, self.batch, self.seed = draws, batch, seed
        self.order = generator("kfac", seed, "order").permutation(len(x0.x0))

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        model, shape, device = self.denoiser, self.denoiser.shape, self.denoiser.device
        for first in range(0, self.draws, self.batch):
            rows = range(first, min(first + self.batch, self.draws))
            index = self.order[np.array(rows) % len(self.order)]
            keyed = [generator("kfac", self.seed, row) for row in rows]
            t = torch.tensor([int(g.integers(model.schedule.T)) for g in keyed]).to(device)
            eps, z = (
                torch.from_numpy(np.stack([g.standard_normal(shape, np.float32) for g in keyed])).to(device)
                for _ in range(2)
            )
            told = model.condition(None if self.prompts is None else [self.prompts[i] for i in index])
            given = {} if told is None else told.to(device).tensors
            x_t = model.schedule.add_noise(self.x0.take(index).to(device), eps, t)
            yield {"x_t": x_t, "t": t} | given, z.flatten(1) * 0.5**0.5


class _Change(nn.Module):
    """The network's output less its value: zero, with the network's derivative."""

    def __init__(self, denoiser: Denoiser) -> None:
        super().__init__()
        self.network = denoiser.module
        self._denoiser = [denoiser]  # in a list: its module must not be registered twice

    def forward(self, given: dict[str, torch.Tensor]) -> torch.Tensor:
        told = {k: v for k, v in given.items() if k not in ("x_t", "t")}
        output = self._denoiser[0].raw(given["x_t"], given["t"], Cond(told) if told else None).flatten(1)
        return output - output.detach()


def curvature(denoiser: Denoiser, draws: Draws, weights: str = "all", *, corrected: bool = False) -> Curvature:
    """H of the Linear and Conv2d layers among `weights`; `corrected`: with EKFAC's eigenvalues (a second pass)."""
    library = _curvlinops()
    denoiser = denoiser.clone()  # the library's hooks stay where it fails
    chosen = chosen_weights(denoiser, weights)
    layers = [
        name
        for name, layer in denoiser.module.named_modules()
        if isinstance(layer, nn.Linear | nn.Conv2d) and f"{name}.weight" in chosen
    ]
    if not layers:
        raise GudaError(
            "kfac-layers-missing",
            f"weights {weights!r} names no Linear or Conv2d layer, the only ones K-FAC has a curvature of",
        )
    biased = [name for name in layers if f"{name}.bias" in chosen]
    params = [chosen[f"{name}.weight"] for name in layers] + [chosen[f"{name}.bias"] for name in biased]
    operator = (library.EKFACLinearOperator if corrected else library.KFACLinearOperator)(
        _Change(denoiser), nn.MSELoss(), params, draws, check_deterministic=False, fisher_type="empirical",
        num_per_example_loss_terms=1, separate_weight_and_bias=False, num_data=draws.draws,
        batch_size_fn=lambda given: len(given["t"]),
    )  # fmt: skip
    try:
        operator.compute_kronecker_factors()
        if corrected:
            operator.compute_eigenvalue_correction()
    except (RuntimeError, ValueError) as e:  # a layer that is not used, or is called with several inputs
        raise GudaError(
            "kfac-layers-unseen", f"curvlinops cannot see all of {weights!r} ({str(e).splitlines()[0]}); narrow weights"
        ) from e
    state = operator.state_dict()
    return Curvature({name: _block(state, f"network.{name}", corrected) for name in layers}, biased)


def _block(state: dict[str, Any], name: str, corrected: bool) -> Block:
    if corrected:
        u_b, u_a = (state[f"{side}_covariances_eigenvectors"][name] for side in ("gradient", "input"))
        found = state["corrected_eigenvalues"][name]
        if isinstance(found, dict):  # a layer without bias: by position
            (found,) = found.values()
        return Block(u_b, u_a, found)
    (l_b, u_b), (l_a, u_a) = (
        torch.linalg.eigh(state[f"{side}_covariances"][name].double()) for side in ("gradient", "input")
    )
    return Block(u_b.float(), u_a.float(), torch.outer(l_b.clamp(min=0), l_a.clamp(min=0)).float())


def need_library() -> None:
    """Refuse early where it is not installed, without importing it."""
    if find_spec("curvlinops") is None:
        raise GudaError(
            "package-missing",
            "kfac needs curvlinops, which is not installed; install it with: pip install 'guda[kfac]'",
        )


def _curvlinops() -> Any:
    need_library()
    try:
        import curvlinops
    except ImportError as e:
        raise GudaError(
            "package-broken", f"curvlinops cannot be imported ({e}); install it with: pip install 'guda[kfac]'"
        ) from None
    return curvlinops
