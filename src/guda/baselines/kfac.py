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
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import nn

from guda.baselines.curvature import Block, Curvature
from guda.baselines.gradients import chosen_weights
from guda.diffusion.cond import Cond
from guda.diffusion.denoiser import Denoiser, Latents
from guda.diffusion.noise import generator
from guda.errors import GudaError


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
