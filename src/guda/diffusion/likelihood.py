"""log p(x_0) of a model in nats: its probability-flow ODE followed from the picture to the prior (SPEC section 9).

With l = log SNR as time, s^2 = sigmoid(-l), and z = x / sqrt(a_t^2 + s_t^2) (x itself, but for flow matching),

    dz/dl = (s/2) (s z - eps_hat(x, t(l)))
    log p(z_0) = log N(z_T; 0, I) + int_{l_0}^{l_T} div(dz/dl) dl,      div = E[v . J v],  v = +-1 (Rademacher)

This is the usual ODE in t, written in the variable in which nothing is stiff and no beta_t jumps: both ends of the
integrand die out as e^{-|l|}. x_0 is taken for the state at t = 0, which has the noise of the first timestep; nothing
is dequantised. Probes are named (seed, query, number), so all models meet the same ones and their noise cancels in a
difference. The path does not depend on the probes: one forward pass serves all seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from guda.diffusion.cond import Cond
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.noise import KeyedNoise
from guda.diffusion.schedule import Schedule
from guda.errors import GudaError, NotFinite
from guda.runs.recipe import LikelihoodConfig

# nodes, coupling to earlier stages, weights of an explicit Runge-Kutta step
TABLEAUS: dict[str, tuple[tuple[float, ...], tuple[tuple[float, ...], ...], tuple[float, ...]]] = {
    "heun": ((0.0, 1.0), ((), (1.0,)), (0.5, 0.5)),
    "rk4": ((0.0, 0.5, 0.5, 1.0), ((), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)), (1 / 6, 1 / 3, 1 / 3, 1 / 6)),
}
ADAPTIVE_CALLS = 250  # network calls to expect of an adaptive solve: for plans and progress only


def network_calls(config: LikelihoodConfig) -> int:
    """Of one solve: steps times stages; what is expected of an adaptive one."""
    return ADAPTIVE_CALLS if config.solver == "adaptive" else config.steps * len(TABLEAUS[config.solver][0])


def evals(config: LikelihoodConfig, calls: int | None = None) -> int:
    """Evaluation units of one picture by one model: a forward pass is 1, a product with the Jacobian 2 more. On a grid
    all seeds share the forward pass; adaptive steps are solved seed by seed."""
    calls = network_calls(config) if calls is None else calls
    return calls * (3 * config.seeds if config.solver == "adaptive" else 1 + 2 * config.seeds)


def grid(schedule: Schedule, steps: int) -> np.ndarray:
    """The log SNRs of a fixed-step solve, [steps + 1]: evenly spaced from t = 0 to t_max."""
    return np.linspace(schedule.log_snr[0], schedule.log_snr[schedule.t_max], steps + 1)


class Probes:
    """Rademacher probes of some queries for some seeds, keyed (seed, query, number)."""

    def __init__(self, ids: Sequence[str], seeds: Sequence[int], shape: Sequence[int]) -> None:
        self.ids, self.seeds, self.shape = tuple(ids), tuple(seeds), tuple(shape)
        self._noise = KeyedNoise()

    def __call__(self, number: int) -> np.ndarray:
        """int8 [seeds, queries, *shape]."""
        size = math.prod(self.shape)
        rows = [
            np.frombuffer(self._noise.at("hutchinson", seed, query, number).bytes(-(-size // 8)), np.uint8)
            for seed in self.seeds
            for query in self.ids
        ]
        bits = np.unpackbits(np.stack(rows), axis=1, count=size).astype(np.int8)
        return (2 * bits - 1).reshape(len(self.seeds), len(self.ids), *self.shape)


@dataclass
class Flow:
    """dz/dl and its divergence for a batch of pictures; counts its network calls."""

    denoiser: Denoiser
    cond: Cond | None
    probes: Probes
    fresh: bool
    calls: int = 0

    def __call__(self, l: float, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: E741
        """z: float64 [B, ...]. The derivative, like z, and its divergence by each seed's probe, float64 [seeds, B]."""
        schedule, device = self.denoiser.schedule, z.device
        vectors = torch.from_numpy(self.probes(self.calls if self.fresh else 0)).to(device, torch.float32)
        self.calls += 1
        t = schedule.time_of(np.array([l]))
        a, s = schedule.at(t)
        norm, noise = float(np.hypot(a, s)[0]), math.exp(-0.5 * float(np.logaddexp(0, l)))
        times = torch.full((len(z),), float(t[0]), dtype=torch.float64, device=device)
        with torch.enable_grad():
            x = (norm * z).float().detach().requires_grad_()
            eps = self.denoiser.eps(x, times, self.cond)
            last = len(vectors) - 1
            # one product at a time: batched ones round differently with another number of seeds
            rows = [
                torch.autograd.grad(eps, x, v, retain_graph=i < last)[0].double().mul(v).flatten(1).sum(1)
                for i, v in enumerate(vectors)
            ]
        change = (noise / 2) * (noise * z - eps.detach().double())
        size = z[0].numel()
        return change, (noise / 2) * (noise * size - norm * torch.stack(rows))


Field = Callable[[float, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def runge_kutta(field: Field, z: torch.Tensor, points: np.ndarray, solver: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(z at the last point, integral of the divergence [seeds, B]) by fixed steps."""
    nodes, couplings, weights = TABLEAUS[solver]
    total: torch.Tensor | float = 0.0
    for start, end in pairwise(points.tolist()):
        h = end - start
        changes: list[torch.Tensor] = []
        for node, row, weight in zip(nodes, couplings, weights, strict=True):
            inside = z + h * sum(c * k for c, k in zip(row, changes, strict=True) if c) if row else z
            change, divergence = field(start + node * h, inside)
            changes.append(change)
            total = total + h * weight * divergence
        z = z + h * sum(w * k for w, k in zip(weights, changes, strict=True))
    assert isinstance(total, torch.Tensor)
    return z, total


def dopri5(field: Field, z: torch.Tensor, ends: np.ndarray, tolerance: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The same by adaptive steps, for one picture and one seed: their size depends on everything that is solved with
    them."""
    odeint = need_torchdiffeq()

    def right(l: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: E741
        return field(float(l), state[0])

    times = torch.from_numpy(ends).to(z.device)
    begin = (z, torch.zeros(1, len(z), dtype=z.dtype, device=z.device))
    try:
        states, totals = odeint(right, begin, times, rtol=tolerance, atol=tolerance, method="dopri5")
    except AssertionError as e:  # how torchdiffeq says that its step has shrunk to nothing
        raise GudaError(f"the adaptive solver gave up ({str(e) or 'step too small'}); use --solver heun") from None
    return states[-1], totals[-1]


def need_torchdiffeq() -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    try:
        from torchdiffeq import odeint
    except ImportError:
        raise GudaError(
            "the adaptive solver needs torchdiffeq: pip install 'guda[likelihood]', or use --solver heun"
        ) from None
    found: Callable[..., tuple[torch.Tensor, torch.Tensor]] = odeint
    return found


def log_likelihoods(
    denoiser: Denoiser,
    x0: torch.Tensor,
    ids: Sequence[str],
    config: LikelihoodConfig,
    seeds: Sequence[int],
    cond: Cond | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """(log p in nats, network calls), float64 and int64 [seeds, len(ids)]; the network runs in single precision."""
    schedule = denoiser.schedule
    a, s = schedule.at(np.zeros(1))
    norm, size = float(np.hypot(a, s)[0]), math.prod(denoiser.shape)
    found, calls = np.empty((len(seeds), len(ids))), np.empty((len(seeds), len(ids)), np.int64)
    for rows, columns, padded in _pieces(len(seeds), len(ids), config):
        names = [ids[i] for i in padded]
        index = torch.from_numpy(padded)
        told = None if cond is None else cond[index].to(denoiser.device)
        probes = Probes(names, seeds[rows], denoiser.shape)
        flow = Flow(denoiser, told, probes, config.probes == "fresh" and config.solver != "adaptive")
        z = x0[index].to(denoiser.device).double() / norm
        points = grid(schedule, config.steps)
        if config.solver == "adaptive":
            z, total = dopri5(flow, z, points[[0, -1]], config.tolerance)
        else:
            z, total = runge_kutta(flow, z, points, config.solver)
        prior = -0.5 * (z.square().flatten(1).sum(1) + size * math.log(2 * math.pi))
        values = (prior + total - size * math.log(norm)).cpu().numpy()
        if not np.isfinite(values).all():
            bad = names[int(np.argwhere(~np.isfinite(values))[0, 1])]
            raise NotFinite(f"log p of {bad!r} is not a number: the path left all bounds; more --steps, or sound weights?")
        found[rows, columns], calls[rows, columns] = values[:, : columns.stop - columns.start], flow.calls
    return found, calls


def _pieces(n_seeds: int, n: int, config: LikelihoodConfig) -> Iterator[tuple[slice, slice, np.ndarray]]:
    """(seeds, pictures, pictures with padding) that are solved together: on a grid a block with all seeds, short blocks
    padded because CPU kernels round differently at other batch sizes; adaptively one by one."""
    if config.solver == "adaptive":
        for k in range(n_seeds):
            for i in range(n):
                yield slice(k, k + 1), slice(i, i + 1), np.array([i])
        return
    for start in range(0, n, config.block):
        padded = np.minimum(np.arange(start, start + config.block), n - 1)
        yield slice(0, n_seeds), slice(start, min(start + config.block, n)), padded
