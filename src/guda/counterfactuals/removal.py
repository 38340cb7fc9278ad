"""The optimal denoiser of a density that is a mixture over groups, and how it moves when a group leaves.

    p = sum_c pi_c p_c,  every component c owned by one atom;  posterior mean of x_0 given x_t:  m = sum_c w_c m_c,
    w = softmax_c( log pi_c p_c(x_t) ),   removing group k drops its components:
    change_k = m_-k - m = (W_k m - S_k) / (1 - W_k),     W_k = sum_{c in k} w_c,  S_k = sum_{c in k} w_c m_c

An atom is the images that share all their groups, and a group is made of atoms (Groups.atoms): of a partition, of one
each. All groups come from one evaluation of the components. The quotient is used where W_k < 1/2; a group that holds
more at x_t, of a partition one at most, is computed from a softmax without it, because 1 - W_k would cancel. Two
densities:

    ImageDensity      the training images themselves, optionally widened by `bandwidth` (a kernel density): what a
                      network that memorised would do. At low noise one image takes all the weight.
    GaussianDensity   a few Gaussians per group (gaussians.py): what a network that generalises does at low noise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property

import torch

from guda.diffusion.schedule import Schedule

CHUNK = 8192  # images converted to float64 at a time


class Density(ABC):
    owner: torch.Tensor  # int64 [M]: the atom of each component
    made_of: torch.Tensor  # bool [atoms, groups]
    schedule: Schedule

    @abstractmethod
    def components(self, flat: torch.Tensor, a: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(log pi_c p_c(x_t) up to a constant per row, float64 [B, M]; posterior means m_c, [M, B, D])."""

    def changes(self, x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """m_-k(x_t) - m(x_t) of every group k, [G, *x_t.shape]."""
        flat = x_t.flatten(1)
        a, s = self.schedule.coefficients(t, flat.double())
        log_w, means = self.components(flat, a, s)
        w = log_w.softmax(dim=1)
        everything = torch.einsum("bm,mbd->bd", w.to(means), means)
        atoms, groups = self.made_of.shape
        weight = torch.zeros(len(w), atoms, dtype=w.dtype, device=w.device).index_add_(1, self.owner, w)
        part = torch.zeros(atoms, *flat.shape, dtype=means.dtype, device=means.device)
        part.index_add_(0, self.owner, w.to(means).T[:, :, None] * means)
        if not self._partition:
            weight = weight @ self.made_of.to(weight)
            part = torch.einsum("ag,abd->gbd", self.made_of.to(part), part)
        left = (1 - weight).clamp_min(0.5).to(means)  # where more is taken, the quotient is not used
        out = (weight.to(means).T[:, :, None] * everything - part) / left.T[:, :, None]
        rows = torch.arange(len(flat), device=flat.device)
        for largest in weight.argsort(dim=1, descending=True, stable=True).T:
            taken = weight[rows, largest] >= 0.5
            if not bool(taken.any()):
                break
            gone = self.made_of[self.owner].T[largest]  # [B, M]: components of the row's group
            others = log_w.masked_fill(gone, -torch.inf).softmax(dim=1)  # of all rows: a row's bits are its own
            direct = torch.einsum("bm,mbd->bd", others.to(means), means) - everything
            out[largest[taken], rows[taken]] = direct[taken]
        return out.reshape(groups, *x_t.shape).to(x_t.dtype)

    @cached_property
    def _partition(self) -> bool:
        return torch.equal(self.made_of, singles(self.owner))


def singles(owner: torch.Tensor) -> torch.Tensor:
    """bool [atoms, groups]: every atom is a group."""
    return torch.eye(int(owner.max()) + 1, dtype=torch.bool, device=owner.device)


class ImageDensity(Density):
    """Every training image x_r is a Gaussian of width h: logits by one matmul, means by another, both in float64,
    chunk by chunk (float32 would be 0.1-0.2 nats off at low noise).

    N(x_t; a x_r, (s^2 + a^2 h^2) I) and E[x_0 | x_t, r] = x_r + (a h^2 / (s^2 + a^2 h^2)) (x_t - a x_r). The part that
    all r share cancels in a change, so the factor s^2 / (s^2 + a^2 h^2) is all that is left of the width."""

    def __init__(
        self, x0: torch.Tensor, labels: torch.Tensor, schedule: Schedule, bandwidth: float = 0.0,
        made_of: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        """`labels`: the atom of each image; `made_of`: default, every atom is a group."""
        self.schedule, self.h = schedule, bandwidth
        self.owner = torch.arange(int(labels.max()) + 1, device=x0.device)
        self.made_of = singles(self.owner) if made_of is None else made_of
        flat = x0.flatten(1)
        self.members = [flat[labels == a] for a in self.owner]

    def components(self, flat: torch.Tensor, a: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = flat.double()
        v = s**2 + a**2 * self.h**2
        evidence, means = [], []
        for images in self.members:
            chunks = images.split(CHUNK)
            logits = (
                torch.cat([a * (x @ c.double().T) - a**2 * (c.double() ** 2).sum(1) / 2 for c in chunks], dim=1) / v
            )
            total = logits.logsumexp(dim=1, keepdim=True)
            weights = (logits - total).exp().split(CHUNK, dim=1)
            mean = torch.stack([w @ c.double() for w, c in zip(weights, chunks, strict=True)]).sum(0)
            evidence.append(total)
            means.append(mean * (s**2 / v))
        return torch.cat(evidence, dim=1), torch.stack(means)
