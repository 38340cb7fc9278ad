"""The terms table: ||eps - eps_hat||^2 of one model at (query, round, stratum). Everything else is arithmetic on it.

    KL_t = w_t ||eps - eps_hat(x_t, t)||^2 (nats, summed over dims), ELBO = - sum_t KL_t + what no model changes

The same (t, eps) serve every model. Networks run in blocks of one fixed size, short blocks padded, because CPU kernels
give other last bits at other batch sizes; with that, terms are byte-identical whatever the order, process count or
resume. The error of an antithetic draw is the mean over its two halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from guda.blocks import blocks
from guda.diffusion.cond import Cond
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.noise import KeyedNoise
from guda.errors import NotFinite
from guda.scoring.plan import Plan


@dataclass(frozen=True)
class Terms:
    """Contributions of one model to sum_t KL_t in nats, and their timesteps; [rounds, Q, strata]."""

    kl: np.ndarray
    t: np.ndarray


@dataclass(frozen=True)
class Draws:
    """The noised inputs of one round of some queries: made once, shared by all models."""

    t: np.ndarray  # int64 [Q, S]
    eps: torch.Tensor  # float32 [Q, S, halves, C, H, W]
    x_t: torch.Tensor  # the same shape
    x0: torch.Tensor  # float32 [Q, C, H, W]

    def of(self, queries: np.ndarray) -> Draws:
        """Those of some queries (positions), for models that only these still need."""
        index = torch.from_numpy(queries)
        return Draws(self.t[queries], self.eps[index], self.x_t[index], self.x0[index])


def make_draws(denoiser: Denoiser, x0: torch.Tensor, ids: Sequence[str], plan: Plan, round_: int) -> Draws:
    plan.check(denoiser.schedule)
    noise = KeyedNoise()
    pairs = [plan.draw(noise, query, round_, denoiser.shape) for query in ids]
    t = np.stack([p[0] for p in pairs])
    eps = torch.from_numpy(np.stack([p[1] for p in pairs]))[:, :, None]
    if plan.antithetic:
        eps = torch.cat([eps, -eps], dim=2)
    repeated = x0[:, None, None].expand(eps.shape)
    flat_t = torch.from_numpy(np.repeat(t.reshape(-1), eps.shape[2]))
    x_t = denoiser.schedule.add_noise(repeated.flatten(0, 2), eps.flatten(0, 2), flat_t).reshape(eps.shape)
    return Draws(t, eps, x_t, x0)


def squared_errors(denoiser: Denoiser, draws: Draws, block: int, cond: Cond | None = None) -> np.ndarray:
    """float64 [Q, S]: ||eps - eps_hat||^2, or ||x_0 - x0_hat||^2 at timesteps without signal."""
    return all_squared_errors(denoiser, draws, block, cond)[0]


@torch.inference_mode()
def all_squared_errors(denoiser: Denoiser, draws: Draws, block: int, cond: Cond | None = None) -> np.ndarray:
    """float64 [K, Q, S] of the K models that `denoiser.raws` answers for."""
    n_queries, n_strata, halves = draws.eps.shape[:3]
    eps, x_t = draws.eps.flatten(0, 2), draws.x_t.flatten(0, 2)
    t = torch.from_numpy(np.repeat(draws.t.reshape(-1), halves))
    owner = torch.arange(n_queries).repeat_interleave(n_strata * halves)
    zero_snr = torch.from_numpy(denoiser.schedule.zero_snr)[t]
    parts = []
    device = denoiser.device
    for rows in blocks(len(t), block):
        x_b, t_b = rows.take(x_t).to(device), rows.take(t).to(device)
        owner_b, zero_b = rows.take(owner), rows.take(zero_snr)
        squares = []
        for raw in denoiser.raws(x_b, t_b, cond[owner_b].to(device) if cond is not None else None):
            error = denoiser.schedule.to_eps(raw, x_b, t_b) - rows.take(eps).to(device)
            if bool(zero_b.any()):
                x0_error = denoiser.schedule.to_x0(raw, x_b, t_b) - draws.x0[owner_b].to(device)
                error = torch.where(zero_b.to(device)[:, None, None, None], x0_error, error)
            squares.append(error.double().square().flatten(1).sum(1).cpu().numpy())
        parts.append(np.stack(squares)[:, : rows.n])
    out = np.concatenate(parts, axis=1)
    if not np.isfinite(out).all():
        bad = int(t[int(np.argwhere(~np.isfinite(out))[0, 1])])
        raise NotFinite(
            "network-not-finite", f"the network returned NaN or infinity at t = {bad}; are its weights sound?"
        )
    return out.reshape(len(out), n_queries, n_strata, halves).mean(axis=-1)


def kl(plan: Plan, weights: np.ndarray, t: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Nats [..., S]: each draw's contribution to sum_t KL_t, i.e. w_t error / inclusion probability."""
    return plan.counts(t) * weights[t] * errors
