"""The terms table: ||eps - eps_hat||^2 of one model at (query, round, stratum). Everything else is arithmetic on it.

    KL_t = w_t ||eps - eps_hat(x_t, t)||^2 (nats, summed over dims), ELBO = - sum_t KL_t + what no model changes

The same (t, eps) serve every model. Networks run in blocks of one fixed size, short blocks padded, because CPU kernels
give other last bits at other batch sizes; with that, terms are byte-identical whatever the order, process count or
resume (SPEC section 2, "Invariance").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from guda.diffusion.cond import Cond
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.noise import KeyedNoise
from guda.errors import GudaError
from guda.scoring.plan import Plan


@dataclass(frozen=True)
class Draws:
    """The noised inputs of one round of some queries: made once, shared by all models."""

    t: np.ndarray  # int64 [Q, S]
    eps: torch.Tensor  # float32 [Q*S, C, H, W]
    x_t: torch.Tensor  # float32 [Q*S, C, H, W]
    x0: torch.Tensor  # float32 [Q, C, H, W]


def make_draws(denoiser: Denoiser, x0: torch.Tensor, ids: Sequence[str], plan: Plan, round_: int) -> Draws:
    noise = KeyedNoise()
    pairs = [plan.draw(noise, query, round_, denoiser.shape) for query in ids]
    t = np.stack([p[0] for p in pairs])
    eps = torch.from_numpy(np.concatenate([p[1] for p in pairs]))
    repeated = x0.repeat_interleave(plan.n_strata, dim=0)
    return Draws(t, eps, denoiser.schedule.add_noise(repeated, eps, torch.from_numpy(t.reshape(-1))), x0)


def _blocks(n: int, size: int) -> Iterator[tuple[slice, torch.Tensor]]:
    """(where the results go, which inputs go in); the last block repeats its last input to keep the shape."""
    for start in range(0, n, size):
        stop = min(start + size, n)
        yield slice(start, stop), torch.arange(start, start + size).clamp_(max=n - 1)


@torch.inference_mode()
def squared_errors(denoiser: Denoiser, draws: Draws, block: int, cond: Cond | None = None) -> np.ndarray:
    """float64 [Q, S]: ||eps - eps_hat||^2, or ||x_0 - x0_hat||^2 at timesteps without signal."""
    n_queries, n_strata = draws.t.shape
    t = torch.from_numpy(draws.t.reshape(-1))
    owner = torch.arange(n_queries).repeat_interleave(n_strata)
    zero_snr = torch.from_numpy(denoiser.schedule.zero_snr)[t]
    out = np.empty(len(t), np.float64)
    device = denoiser.device
    for where, index in _blocks(len(t), block):
        x_t, t_b = draws.x_t[index].to(device), t[index].to(device)
        raw = denoiser.raw(x_t, t_b, cond[owner[index]].to(device) if cond is not None else None)
        error = denoiser.schedule.to_eps(raw, x_t, t_b) - draws.eps[index].to(device)
        if bool(zero_snr[index].any()):
            x0_error = denoiser.schedule.to_x0(raw, x_t, t_b) - draws.x0[owner[index]].to(device)
            error = torch.where(zero_snr[index].to(device)[:, None, None, None], x0_error, error)
        squares = error.double().square().flatten(1).sum(1).cpu().numpy()
        out[where] = squares[: where.stop - where.start]
    if not np.isfinite(out).all():
        query, stratum = np.argwhere(~np.isfinite(out.reshape(n_queries, n_strata)))[0]
        raise GudaError(
            f"the network returned NaN or infinity at t = {draws.t[query, stratum]}; are its weights sound?"
        )
    return out.reshape(n_queries, n_strata)


def kl(plan: Plan, weights: np.ndarray, t: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Nats [..., S]: each draw's contribution to sum_t KL_t, i.e. w_t error / inclusion probability."""
    return plan.importance() * weights[t] * errors
