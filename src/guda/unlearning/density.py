"""The optimal denoiser of a density that is a mixture over groups, and how it changes when a group is removed.

    p = sum_c pi_c p_c,  every component c owned by one atom;  posterior mean of x_0 given x_t:  m = sum_c w_c m_c,
    w = softmax_c( log pi_c p_c(x_t) ),   removing group k drops its components:
    change_k = m_-k - m = (W_k m - S_k) / (1 - W_k),     W_k = sum_{c in k} w_c,  S_k = sum_{c in k} w_c m_c

An atom is the images that share all their groups, and a group is made of atoms (Groups.atoms): of a partition, of one
each. All groups come from one evaluation of the components. The quotient is used where W_k < 1/2; a group that holds
more at x_t, of a partition one at most, is computed from a softmax without it, because 1 - W_k would cancel. Two
densities of whole images (a third, of patches, is in patches.py):

    ImageDensity      the training images themselves, optionally widened by `bandwidth` (a kernel density): what a
                      network that memorised would do. At low noise one image takes all the weight.
    GaussianDensity   a few Gaussians per group: what a network that generalises does at low noise.

Any other set of images R is removed the same way from the images. A Gaussian that lost some of its images is fitted
again to those that are left, with the same assignment of images to Gaussians and the same pooled covariance
(GaussianRemoval); one that lost them all is dropped. Where R is a group of a partition, that is the group's own change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property

import numpy as np
import torch

from guda.diffusion.schedule import Schedule
from guda.errors import GudaError

CHUNK = 8192  # images converted to float64 at a time


class Removal(ABC):
    """How the optimal denoiser changes when images are removed."""

    schedule: Schedule

    @abstractmethod
    def changes(self, x_t: torch.Tensor, t: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """By how much the posterior mean of x_0 moves without each of G sets of images, [G, *x_t.shape]; `labels`: the
        class of each row, for a removal within classes."""


class Density(Removal):
    owner: torch.Tensor  # int64 [M]: the atom of each component
    made_of: torch.Tensor  # bool [atoms, groups]

    @abstractmethod
    def components(self, flat: torch.Tensor, a: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(log pi_c p_c(x_t) up to a constant per row, float64 [B, M]; posterior means m_c, [M, B, D])."""

    def changes(self, x_t: torch.Tensor, t: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
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


# ---- A few Gaussians per group: a density of the data that generalises between its images.
FEW = 10  # images of an atom that is a part of a larger group; fewer have no covariance of their own

LARGEST = 4096  # dims; a component keeps its eigenvectors, dims^2 numbers


def fit_gaussians(
    x0: np.ndarray, labels: np.ndarray, components: int, shrink: float, floor: float, seed: int,
    homes: np.ndarray | None = None, removed: np.ndarray | None = None,
) -> dict[str, torch.Tensor]:  # fmt: skip
    """Means, eigenvectors, eigenvalues, log shares and owners, as named tensors for a safetensors file.

    `labels`: the atom of each image; `homes`: the group it is counted under, default its atom. "gaussian": which of the
    Gaussians each component is, where some share one. `removed`: images (numbers) that Gaussians are fitted without;
    which images are in which Gaussian, and the covariance that all share, are still those of all images."""
    flat = np.asarray(x0, np.float64).reshape(len(x0), -1)
    if flat.shape[1] > LARGEST:
        raise GudaError(
            "density-too-large",
            f"images of {flat.shape[1]} numbers are too large for full covariances; "
            "set directions: 64, or density: images",
        )
    homes = labels if homes is None else homes
    parts: list[np.ndarray] = []  # of the images, one per Gaussian
    own: list[tuple[int, int, np.ndarray]] = []  # components: (owner, Gaussian, images)
    lent: dict[int, int] = {}  # home -> the Gaussian of all its images
    for k in range(int(labels.max()) + 1):
        members = np.flatnonzero(labels == k)
        home = np.flatnonzero(homes == homes[members[0]])
        if len(members) < FEW and len(members) < len(home):
            if (number := int(homes[members[0]])) not in lent:
                lent[number] = len(parts)
                parts.append(home)
            own.append((k, lent[number], members))
        else:
            for p in _clusters(flat, members, components, seed):
                own.append((k, len(parts), p))
                parts.append(p)
    pooled = sum(_scatter(flat[p]) for p in parts) / sum(map(len, parts))
    if removed is not None:
        parts, own = _without(parts, own, removed)
    mu, vectors, values = [], [], []
    for p in parts:
        covariance = (1 - shrink) * _scatter(flat[p]) / len(p) + shrink * pooled + floor * np.eye(flat.shape[1])
        lam, v = np.linalg.eigh(covariance)
        mu.append(flat[p].mean(axis=0))
        vectors.append(v)
        values.append(np.maximum(lam, floor))
    return {
        "mean": torch.from_numpy(np.stack(mu).astype(np.float32)),
        "vectors": torch.from_numpy(np.stack(vectors).astype(np.float32)),
        "values": torch.from_numpy(np.stack(values)),
        "log_share": torch.from_numpy(np.log([len(members) / len(flat) for _, _, members in own])),
        "owner": torch.from_numpy(np.array([owner for owner, _, _ in own])),
        **({"gaussian": torch.from_numpy(np.array([g for _, g, _ in own]))} if lent else {}),
    }


def _without(
    parts: list[np.ndarray], own: list[tuple[int, int, np.ndarray]], removed: np.ndarray
) -> tuple[list[np.ndarray], list[tuple[int, int, np.ndarray]]]:
    """Gaussians and components less some images; those without any image are dropped."""
    left = [np.setdiff1d(p, removed) for p in parts]
    number = np.cumsum([len(p) > 0 for p in left]) - 1
    kept = [(owner, int(number[g]), np.setdiff1d(members, removed)) for owner, g, members in own]
    return [p for p in left if len(p)], [c for c in kept if len(c[2])]


def _scatter(x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(axis=0)
    return centred.T @ centred


def _clusters(flat: np.ndarray, members: np.ndarray, n: int, seed: int) -> list[np.ndarray]:
    if n == 1 or len(members) < 2 * n:  # too few images to split: one Gaussian
        return [members]
    from sklearn.cluster import KMeans

    found = KMeans(n, n_init=2, random_state=seed).fit_predict(flat[members])
    return [members[found == c] for c in range(n) if (found == c).any()]


class GaussianDensity(Density):
    def __init__(
        self, tensors: Mapping[str, torch.Tensor], schedule: Schedule, device: torch.device | str,
        made_of: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        self.mean, self.vectors, self.values, self.log_share, self.owner = (
            tensors[name].to(device) for name in ("mean", "vectors", "values", "log_share", "owner")
        )
        self.gaussian = tensors["gaussian"].to(device) if "gaussian" in tensors else None  # None: each its own
        self.made_of, self.schedule = singles(self.owner) if made_of is None else made_of, schedule

    def components(self, flat: torch.Tensor, a: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        evidence, means = [], []
        for c in range(len(self.mean)):
            y = (flat - a.to(flat) * self.mean[c]) @ self.vectors[c]
            v = a**2 * self.values[c] + s**2
            evidence.append(-((y.double() ** 2 / v).sum(1) + v.log().sum(1)) / 2)
            gain = (a * self.values[c] / v).to(flat)
            means.append(self.mean[c] + (y * gain) @ self.vectors[c].T)
        logs, found = torch.stack(evidence, dim=1), torch.stack(means)
        if self.gaussian is not None:
            logs, found = logs[:, self.gaussian], found[self.gaussian]
        return self.log_share + logs, found

    def posterior_mean(self, x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """Of x_0 given x_t, [B, D]."""
        flat = x_t.flatten(1)
        log_w, means = self.components(flat, *self.schedule.coefficients(t, flat.double()))
        return torch.einsum("bm,mbd->bd", log_w.softmax(dim=1).to(means), means)


class GaussianRemoval(Removal):
    """From the density of all images to that of those that are left."""

    def __init__(self, every: GaussianDensity, left: GaussianDensity) -> None:
        self.every, self.left, self.schedule = every, left, every.schedule

    def changes(self, x_t: torch.Tensor, t: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        found = self.left.posterior_mean(x_t, t) - self.every.posterior_mean(x_t, t)
        return found.reshape(1, *x_t.shape).to(x_t.dtype)


class ClassRemoval(Removal):
    """Within the classes of a class-conditional model: each row by the density of its own class. Of a label without
    images (the null label) nothing moves."""

    def __init__(self, by_class: dict[int, Density]) -> None:
        self.by_class, self.schedule = by_class, next(iter(by_class.values())).schedule

    def changes(self, x_t: torch.Tensor, t: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        assert labels is not None
        groups = next(iter(self.by_class.values())).made_of.shape[1]
        out = torch.zeros(groups, *x_t.shape, dtype=x_t.dtype, device=x_t.device)
        for label, density in self.by_class.items():
            rows = labels == label
            if bool(rows.any()):
                # of all rows, as for one class: a row's bits are its own
                out = torch.where(rows.reshape(1, -1, *(1,) * (x_t.ndim - 1)), density.changes(x_t, t), out)
        return out
