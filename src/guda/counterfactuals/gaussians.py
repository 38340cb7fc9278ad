"""A few Gaussians per group: a density of the data that generalises between its images.

    component c of group k: N(mu_c, Sigma_c),  Sigma_c = (1 - shrink) S_c + shrink P + floor I
    S_c: covariance of the images k-means puts into c;  P: pooled covariance within all components

Where groups share images, the density is kept by atoms (Groups.atoms). An atom of a few images has no covariance worth
the name: it is taken for a share of the group that its images are counted under (Groups.homes).

Its posterior mean is a Wiener filter in the eigenbasis of Sigma_c, with v = a^2 lambda + s^2 and y = V^T (x_t - a mu):
    log N(x_t; a mu, a^2 Sigma + s^2 I) = -1/2 sum (y^2/v + log v) + const,    m_c = mu + V (a lambda y / v)

The images alone say that at low noise x_t can only have come from the nearest of them; a network says that it came from
something like them. Per group and noise level these filters are that "something like them", which is why the change of
this density's denoiser follows a retrained network where that of the bare images does not (benchmarks/operators.py).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from guda.counterfactuals.removal import Density, singles
from guda.diffusion.schedule import Schedule
from guda.errors import GudaError

FEW = 10  # images of an atom that is a part of a larger group; fewer have no covariance of their own
LARGEST = 4096  # dims; a component keeps its eigenvectors, dims^2 numbers


def fit_gaussians(
    x0: np.ndarray, labels: np.ndarray, components: int, shrink: float, floor: float, seed: int,
    homes: np.ndarray | None = None,
) -> dict[str, torch.Tensor]:  # fmt: skip
    """Means, eigenvectors, eigenvalues, log shares and owners, as named tensors for a safetensors file.

    `labels`: the atom of each image; `homes`: the group it is counted under, default its atom. "gaussian": which of the
    Gaussians each component is, where some share one."""
    flat = np.asarray(x0, np.float64).reshape(len(x0), -1)
    if flat.shape[1] > LARGEST:
        raise GudaError(
            "density-too-large",
            f"images of {flat.shape[1]} numbers are too large for full covariances; set density: images",
        )
    homes = labels if homes is None else homes
    parts: list[np.ndarray] = []  # of the images, one per Gaussian
    own: list[tuple[int, int, int]] = []  # components: (owner, Gaussian, images)
    lent: dict[int, int] = {}  # home -> the Gaussian of all its images
    for k in range(int(labels.max()) + 1):
        members = np.flatnonzero(labels == k)
        home = np.flatnonzero(homes == homes[members[0]])
        if len(members) < FEW and len(members) < len(home):
            if (number := int(homes[members[0]])) not in lent:
                lent[number] = len(parts)
                parts.append(home)
            own.append((k, lent[number], len(members)))
        else:
            for p in _clusters(flat, members, components, seed):
                own.append((k, len(parts), len(p)))
                parts.append(p)
    pooled = sum(_scatter(flat[p]) for p in parts) / sum(map(len, parts))
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
        "log_share": torch.from_numpy(np.log([n / len(flat) for _, _, n in own])),
        "owner": torch.from_numpy(np.array([owner for owner, _, _ in own])),
        **({"gaussian": torch.from_numpy(np.array([g for _, g, _ in own]))} if lent else {}),
    }


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
