"""The terms table: two squared lengths of one model at (query, round, stratum). Everything else is arithmetic on it.

    error    ||eps - eps_hat||^2         KL_t = w_t error (nats, summed over dims), ELBO = - sum_t KL_t + const
    change   ||eps_full - eps_hat||^2    of a counterfactual: w_t change is the KL divergence of the full model's
                                         reverse step from the counterfactual's, its sum over t the path divergence

The same (t, eps) serve every model. Networks run in blocks of one fixed size, short blocks padded, because CPU kernels
give other last bits at other batch sizes; with that, terms are byte-identical whatever the order, process count or
resume. The error of an antithetic draw is the mean over its two halves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from guda.blocks import blocks
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.families.base import Cond
from guda.diffusion.noise import KeyedNoise
from guda.errors import NotFinite
from guda.scoring.plan import Plan
from guda.unlearning.rule import RuledDenoiser


@dataclass(frozen=True)
class Terms:
    """Contributions to a sum over t in nats, and their timesteps; [rounds, Q, strata]."""

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


Squares = Callable[[torch.Tensor], torch.Tensor]  # rows [n, C, H, W] -> their squared lengths, float64


def whole(x: torch.Tensor) -> torch.Tensor:
    """[n]: summed over everything."""
    return x.double().square().flatten(1).sum(1)


def by_cell(x: torch.Tensor) -> torch.Tensor:
    """[n, H, W]: summed over channels only, for maps (scoring/maps.py)."""
    return x.double().square().sum(1)


@dataclass(frozen=True)
class Measured:
    """What K models that share an evaluation say at some draws."""

    errors: np.ndarray  # float64 [K, Q, S]: ||eps - eps_hat||^2, or ||x_0 - x0_hat||^2 at timesteps without signal
    changes: np.ndarray | None = None  # the same of their difference from a reference
    predictions: torch.Tensor | None = None  # float32 [Q S halves, C, H, W] of a single model, where asked


def squared_errors(denoiser: Denoiser, draws: Draws, block: int, cond: Cond | None = None) -> np.ndarray:
    """float64 [Q, S] of one model."""
    return np.asarray(measure(denoiser, draws, block, cond).errors[0])


@torch.inference_mode()
def measure(
    denoiser: Denoiser,
    draws: Draws,
    block: int,
    cond: Cond | None = None,
    reference: torch.Tensor | None = None,
    keep: bool = False,
    squares: Squares = whole,
) -> Measured:
    """Of the K models that `denoiser.raws` answers for; `reference`: predictions of the model they came from at these
    draws; `keep` returns the predictions, to be a reference. `squares`: `whole`, or `by_cell` for errors and changes
    [K, Q, S, H, W]."""
    eps, x_t, t, owner = rows_of(draws)
    zero_snr = torch.from_numpy(denoiser.schedule.zero_snr)[t]
    errors: list[torch.Tensor] = []
    changes: list[torch.Tensor] = []
    kept: list[torch.Tensor] = []
    device = denoiser.device
    for rows in blocks(len(t), block):
        x_b, t_b = rows.take(x_t).to(device), rows.take(t).to(device)
        owner_b, zero_b = rows.take(owner), rows.take(zero_snr).to(device)[:, None, None, None]
        target, at_zero = rows.take(eps).to(device), bool(zero_b.any())
        if at_zero:
            target = torch.where(zero_b, draws.x0[owner_b].to(device), target)
        before = None if reference is None else rows.take(reference).to(device)
        squared = []
        for raw in denoiser.raws(x_b, t_b, cond[owner_b].to(device) if cond is not None else None):
            predicted = denoiser.schedule.to_eps(raw, x_b, t_b)
            if at_zero:
                predicted = torch.where(zero_b, denoiser.schedule.to_x0(raw, x_b, t_b), predicted)
            squared.append((squares(predicted - target), None if before is None else squares(before - predicted)))
        if keep:
            kept.append(predicted[: rows.n].cpu())
        errors.append(torch.stack([e for e, _ in squared])[:, : rows.n].cpu())
        if before is not None:
            changes.append(torch.stack([c for _, c in squared if c is not None])[:, : rows.n].cpu())
    return Measured(
        _per_draw(errors, draws), _per_draw(changes, draws) if changes else None, torch.cat(kept) if keep else None
    )


@torch.inference_mode()
def measure_rule(
    denoiser: RuledDenoiser, draws: Draws, block: int, squares: Squares = whole, cond: Cond | None = None
) -> np.ndarray:
    """The changes float64 [K, Q, S] of a rule's members. They are a function of x_t and its class alone: no network is
    evaluated. `squares` as of `measure`."""
    _, x_t, t, owner = rows_of(draws)
    moves, device = [], denoiser.device
    for rows in blocks(len(t), block):
        x_b, t_b = rows.take(x_t).to(device), rows.take(t).to(device)
        cond_b = None if cond is None else cond[rows.take(owner)].to(device)
        moved = squares(denoiser.x0_changes(x_b, t_b, cond_b).flatten(0, 1)).unflatten(0, (-1, len(t_b)))
        a, s = denoiser.schedule.coefficients(t_b, moved[0])
        ratio = torch.where(a > 0, a / s, 1.0)  # eps moves by a/s of what x_0 does; without signal x_0 itself counts
        moves.append((ratio**2 * moved)[:, : rows.n].cpu())
    return _per_draw(moves, draws)


def rows_of(draws: Draws) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(eps, x_t, t, query) with a row for each half of each draw."""
    n_queries, n_strata, halves = draws.eps.shape[:3]
    t = torch.from_numpy(np.repeat(draws.t.reshape(-1), halves))
    return (
        draws.eps.flatten(0, 2),
        draws.x_t.flatten(0, 2),
        t,
        torch.arange(n_queries).repeat_interleave(n_strata * halves),
    )


def _per_draw(parts: list[torch.Tensor], draws: Draws) -> np.ndarray:
    """float64 [K, Q, S, ...] from [K, rows, ...] blocks, the mean over the halves of a draw."""
    out = torch.cat(parts, dim=1).numpy()
    n_queries, n_strata, halves = draws.eps.shape[:3]
    if not np.isfinite(out).all():
        bad = int(np.repeat(draws.t.reshape(-1), halves)[int(np.argwhere(~np.isfinite(out))[0, 1])])
        raise NotFinite(
            "network-not-finite", f"the network returned NaN or infinity at t = {bad}; are its weights sound?"
        )
    return np.asarray(out.reshape(len(out), n_queries, n_strata, halves, *out.shape[2:]).mean(axis=3))


def kl(plan: Plan, weights: np.ndarray, t: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """Nats [..., S]: each draw's contribution to a sum over t, i.e. w_t error (or change) / inclusion probability."""
    return plan.counts(t) * weights[t] * squares
