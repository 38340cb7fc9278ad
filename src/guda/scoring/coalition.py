"""What any coalition of groups would explain of a picture, without training: the posterior rule for sets of groups.

    eps_S = eps_full + (a/s) (m_all - m_S)            m: posterior mean of x_0 given x_t, by the density of the images

(unlearning/rule.py, with any S in place of all but one group). The density of a coalition is the mixture of its groups'
Gaussians, each weighted by how much of its group is there, and of the pooled density p_0, which has the weight of one
image of N and is in every coalition: one Gaussian with the mean and covariance of all images together.

    p_n = sum_k (n_k / N_k) pi_k p_k + (1/N) p_0

So **nothing** (n = 0) is the pooled density: it knows how the images look together and none of the groups. Where an
image is in several groups, it is there only if all of them are.

Values are relative to the full model, v(all) = 0:

    elbo   v(S) = - sum_t w_t ( ||eps - eps_S||^2 - ||eps - eps_full||^2 )   one evaluation of the full model per draw
    path   v(S) = - sum_t w_t ||eps_full - eps_S||^2                         none at all

With m_S = sum_c u_c m_c all of this is arithmetic on inner products of the components' means, once per draw, whatever
the number of coalitions:

    ||eps_full - eps_S||^2 = (a/s)^2 (u_all - u_S)' K (u_all - u_S),   K_cd = <m_c, m_d>
    <eps - eps_full, eps_full - eps_S> = (a/s) sum_c (u_S - u_all)_c <eps - eps_full, m_c>
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from guda.blocks import blocks
from guda.diffusion.denoiser import Denoiser
from guda.errors import GudaError
from guda.scoring.terms import Draws, measure
from guda.unlearning.density import GaussianDensity
from guda.unlearning.rule import Rule

CHUNK = 256  # coalitions weighed at once


@dataclass(frozen=True, eq=False)
class Pooled:
    """One Gaussian of all images: the density of nothing."""

    mean: torch.Tensor  # [D]
    vectors: torch.Tensor  # [D, D]
    values: torch.Tensor  # [D], variances along them
    log_share: float  # log 1/N

    @classmethod
    def fit(cls, x0: torch.Tensor, floor: float) -> Pooled:
        """From all images [N, C, H, W]; `floor` is added to every variance, as in the groups' own Gaussians."""
        flat = x0.flatten(1).double().cpu().numpy()
        centred = flat - flat.mean(axis=0)
        values, vectors = np.linalg.eigh(centred.T @ centred / len(flat) + floor * np.eye(flat.shape[1]))
        mean = torch.from_numpy(flat.mean(axis=0).astype(np.float32))
        kept = torch.from_numpy(np.maximum(values, floor))
        return cls(mean, torch.from_numpy(vectors.astype(np.float32)), kept, -float(np.log(len(flat))))


class CoalitionRule:
    """Values of coalitions of some groups, each of so many parcels; all other groups are always there."""

    def __init__(self, rule: Rule, pooled: Pooled, columns: Sequence[int], parcels: Sequence[int]) -> None:
        """`columns`: the players' numbers among the density's groups."""
        density = rule.density
        if not isinstance(density, GaussianDensity):
            raise GudaError(
                "coalition-density-unsupported",
                "coalitions need whole Gaussians; set methods.posterior.density: gaussians, without directions",
            )
        self.rule, self.density, self.pooled = rule, density, pooled
        self.parcels = torch.tensor(list(parcels), dtype=torch.float64)
        made_of = density.made_of[:, list(columns)].cpu()  # bool [atoms, players]
        if max(parcels) > 1 and bool((made_of.sum(dim=1) > 1).any()):
            raise GudaError("parcels-overlap", "groups that share images cannot be cut into parcels; use one per group")
        self.owned = made_of[density.owner.cpu()]  # bool [M, players]

    def log_parts(self, coalitions: np.ndarray) -> torch.Tensor:
        """[N, M + 1]: log of how much of each component is there; the last is the pooled density, which always is."""
        fraction = torch.from_numpy(np.asarray(coalitions, np.float64)) / self.parcels  # [N, players]
        logs = torch.where(self.owned[None], fraction.log()[:, None, :], 0.0).amin(dim=-1)  # all of its groups
        return torch.cat([logs, torch.zeros(len(logs), 1, dtype=logs.dtype)], dim=1)

    def components(self, x_t: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(log weights [B, M + 1], means [B, M + 1, D]), the pooled density last; float64."""
        flat = x_t.flatten(1).float()
        a, s = self.density.schedule.coefficients(t, flat.double())
        log_w, means = self.density.components(flat, a, s)
        y = (flat - a.to(flat) * self.pooled.mean.to(flat)) @ self.pooled.vectors.to(flat)
        v = a**2 * self.pooled.values.to(a) + s**2
        own = self.pooled.log_share - ((y.double() ** 2 / v).sum(1) + v.log().sum(1)) / 2
        gain = (a * self.pooled.values.to(a) / v).to(flat)
        mean = self.pooled.mean.to(flat) + (y * gain) @ self.pooled.vectors.to(flat).T
        return torch.cat([log_w, own[:, None]], 1), torch.cat([means.transpose(0, 1), mean[:, None]], 1).double()

    def squares(
        self, x_t: torch.Tensor, t: torch.Tensor, coalitions: np.ndarray, off: torch.Tensor | None = None
    ) -> torch.Tensor:
        """float64 [N, B]: by how much the squared error of the full model grows, `off` [B, D] being that error; with
        None, the squared change of its prediction."""
        log_w, means = self.components(x_t, t)
        a, s = self.density.schedule.coefficients(t, log_w)
        scale = torch.where(a > 0, a / s, -1.0)[:, 0]  # without signal the prediction of x_0 counts, which moves back
        inside = ((t >= self.rule.times[0]) & (t < self.rule.times[1])).to(scale)
        gram = torch.einsum("bmd,bnd->bmn", means, means)
        along = None if off is None else torch.einsum("bd,bmd->bm", off.double(), means)
        everything = log_w.softmax(dim=1)
        chunks = []
        for parts in self.log_parts(coalitions).to(log_w).split(CHUNK):
            away = everything[:, None] - (log_w[:, None] + parts[None]).softmax(dim=2)  # [B, N, M + 1]
            change = torch.einsum("bnm,bmk,bnk->nb", away, gram, away).clamp_min(0.0) * scale**2
            if along is not None:
                change = change - 2 * scale * torch.einsum("bnm,bm->nb", away, along)
            chunks.append(change * inside)
        return torch.cat(chunks)


@torch.inference_mode()
def coalition_draws(
    rule: CoalitionRule, draws: Draws, coalitions: np.ndarray, block: int, off: torch.Tensor | None = None
) -> np.ndarray:
    """float64 [N, Q, S]: `squares` at the draws of some queries, the mean over the halves of a draw."""
    n_queries, n_strata, halves = draws.eps.shape[:3]
    t = torch.from_numpy(np.repeat(draws.t.reshape(-1), halves))
    x_t, parts = draws.x_t.flatten(0, 2), []
    device = rule.density.mean.device
    for rows in blocks(len(t), block):
        residual = None if off is None else rows.take(off).to(device)
        parts.append(
            rule.squares(rows.take(x_t).to(device), rows.take(t).to(device), coalitions, residual)[:, : rows.n]
        )
    out = torch.cat([part.cpu() for part in parts], dim=1).numpy()
    return np.asarray(out.reshape(len(coalitions), n_queries, n_strata, halves).mean(axis=3))


@torch.inference_mode()
def pooled_draws(rule: CoalitionRule, draws: Draws, block: int, off: torch.Tensor, path: bool) -> np.ndarray:
    """float64 [Q, S]: the same of the pooled density as a model by itself, x0_hat = m_0, which has nothing of the full
    model: what trained coalitions are compared with. `off` as of `residuals`; `path`: the squared change instead."""
    n_queries, n_strata, halves = draws.eps.shape[:3]
    t = torch.from_numpy(np.repeat(draws.t.reshape(-1), halves))
    x_t, x0 = draws.x_t.flatten(0, 2), draws.x0.repeat_interleave(n_strata * halves, dim=0).flatten(1)
    parts, device = [], rule.density.mean.device
    for rows in blocks(len(t), block):
        x_b, t_b, own = rows.take(x_t).to(device), rows.take(t).to(device), rows.take(off).to(device).double()
        mean = rule.components(x_b, t_b)[1][:, -1]
        a, s = rule.density.schedule.coefficients(t_b, mean)
        scale = torch.where(a > 0, a / s, -1.0)
        error = scale * (mean - rows.take(x0).to(mean))  # eps - eps_0; without signal x_0 - m_0
        grown = (error - own).square().sum(1) if path else error.square().sum(1) - own.square().sum(1)
        parts.append(grown[: rows.n].cpu())
    return np.asarray(torch.cat(parts).numpy().reshape(n_queries, n_strata, halves).mean(axis=2))


def residuals(denoiser: Denoiser, draws: Draws, block: int) -> torch.Tensor:
    """float32 [Q S halves, D]: eps less the model's prediction of it; at timesteps without signal the same of x_0."""
    predicted = measure(denoiser, draws, block, keep=True).predictions
    assert predicted is not None
    n_strata, halves = draws.eps.shape[1:3]
    t = torch.from_numpy(np.repeat(draws.t.reshape(-1), halves))
    x0 = draws.x0.repeat_interleave(n_strata * halves, dim=0)
    zero = torch.from_numpy(denoiser.schedule.zero_snr)[t][:, None, None, None]
    return (torch.where(zero, x0, draws.eps.flatten(0, 2)) - predicted).flatten(1)
