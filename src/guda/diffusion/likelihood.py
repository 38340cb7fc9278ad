"""log p(x_0) of a model in nats: its probability-flow ODE followed from the picture to the prior.

The paper uses it in "Validity of the ELBO Proxy: Comparison with a Likelihood Oracle".

With l = log SNR as time, s^2 = sigmoid(-l), and z = x / sqrt(a_t^2 + s_t^2) (x itself, but for flow matching),

    dz/dl = (s/2) (s z - eps_hat(x, t(l)))        or, y = x / a_t and sigma = e^{-l/2}:   dy/dsigma = eps_hat
    log p(z_0) = log N(z_T; 0, I) + int_{l_0}^{l_T} div(dz/dl) dl,      div = E[v . J v],  v = +-1 (Rademacher)

This is the usual ODE in t, written in variables without the jumps of beta_t. Heun's steps take y, which is straight in
sigma both on the data (eps = 0) and far from it (eps constant), and the divergence of z, which is smooth in l and dies
out at both ends; the others take z and l. x_0 is taken for the state at t = 0, which has the noise of the first
timestep; nothing is dequantised. Probes are named (seed, query, number): all models meet the same ones, and their noise
cancels in a difference. The path does not depend on the probes, so one forward pass serves all seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from guda.blocks import blocks
from guda.config import LikelihoodConfig
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.families.base import Cond
from guda.diffusion.noise import KeyedNoise
from guda.diffusion.schedule import Schedule
from guda.errors import GudaError, NotFinite

ADAPTIVE_CALLS = 500  # network calls to expect of an adaptive solve: for plans and progress only


def evals(config: LikelihoodConfig) -> int:
    """Evaluation units of one picture by one model: a forward pass is 1, a product with the Jacobian 2 more.
    heun: two forward passes a step, products at its first point only, and one more point at the end."""
    products = 2 * config.seeds
    if config.solver == "heun":
        return config.steps * (2 + products) + 1 + products
    return 4 * config.steps * (1 + products) if config.solver == "rk4" else ADAPTIVE_CALLS * 3 * config.seeds


def grid(schedule: Schedule, steps: int) -> np.ndarray:
    """The log SNRs [steps + 1] of a fixed-step solve from t = 0 to t_max, the same for every model. Densest in
    -2 < l < 7.5, where the picture dissolves; beyond, the integrand dies out as e^{-|l|}."""
    fine = np.linspace(schedule.log_snr[0], schedule.log_snr[schedule.t_max], 4001)
    density = 0.15 + 1 / ((1 + np.exp(-2 - fine)) * (1 + np.exp(fine - 7.5)))
    share = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    points = np.interp(np.linspace(0, 1, steps + 1), share / share[-1], fine)
    points[[0, -1]] = fine[[0, -1]]
    return points


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
class Path:
    """What the network says along the ODE of a batch of pictures; counts its calls."""

    denoiser: Denoiser
    cond: Cond | None
    probes: Probes
    fresh: bool  # another probe for every divergence
    calls: int = 0
    drawn: int = 0

    def scale(self, l: float) -> tuple[float, float, float]:  # noqa: E741
        """(t, a_t, sqrt(a_t^2 + s_t^2)) at a log SNR."""
        t = self.denoiser.schedule.time_of(np.array([l]))
        a, s = self.denoiser.schedule.at(t)
        return float(t[0]), float(a[0]), float(np.hypot(a, s)[0])

    def eps(self, l: float, y: torch.Tensor) -> torch.Tensor:  # noqa: E741
        """The predicted noise, float64 like y."""
        with torch.no_grad():
            return self._eps(l, y)[1].double()

    def both(self, l: float, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: E741
        """The predicted noise and, by each seed's probe, the divergence of dz/dl, float64 [seeds, B]."""
        vectors = torch.from_numpy(self.probes(self.drawn)).to(y.device, torch.float32)
        self.drawn += self.fresh
        with torch.enable_grad():
            x, eps = self._eps(l, y)
            last = len(vectors) - 1
            # one product at a time: batched ones round differently with another number of seeds
            rows = [
                torch.autograd.grad(eps, x, v, retain_graph=i < last)[0].double().mul(v).flatten(1).sum(1)
                for i, v in enumerate(vectors)
            ]
        s, size = _noise(l), y[0].numel()
        return eps.detach().double(), (s / 2) * (s * size - self.scale(l)[2] * torch.stack(rows))

    def slope(self, l: float, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: E741
        """dz/dl and its divergence."""
        s, (_, a, norm) = _noise(l), self.scale(l)
        eps, divergence = self.both(l, z * (norm / a))
        return (s / 2) * (s * z - eps), divergence

    def _eps(self, l: float, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: E741
        self.calls += 1
        t, a, _ = self.scale(l)
        x = (a * y).float().detach().requires_grad_(torch.is_grad_enabled())
        times = torch.full((len(y),), t, dtype=torch.float64, device=y.device)
        return x, self.denoiser.eps(x, times, self.cond)


def _noise(l: float) -> float:  # noqa: E741
    """s of the variance-preserving path at a log SNR."""
    return math.exp(-0.5 * float(np.logaddexp(0, l)))


def heun(path: Path, z: torch.Tensor, points: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """(z at the last point, integral of the divergence [seeds, B]): Heun in (y, sigma), and the trapezoidal rule in l
    over the points where y is corrected."""
    (_, a, norm), (_, last, final) = path.scale(float(points[0])), path.scale(float(points[-1]))
    y = z * (norm / a)
    weights = np.convolve(np.diff(points), [0.5, 0.5])
    total: torch.Tensor | float = 0.0
    for (start, end), weight in zip(pairwise(points.tolist()), weights.tolist(), strict=False):
        step = math.exp(-end / 2) - math.exp(-start / 2)
        eps, divergence = path.both(start, y)
        total = total + weight * divergence
        y = y + step / 2 * (eps + path.eps(end, y + step * eps))
    return y * (last / final), total + float(weights[-1]) * path.both(float(points[-1]), y)[1]


def rk4(path: Path, z: torch.Tensor, points: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in z by the classical method of fourth order in l."""
    total: torch.Tensor | float = 0.0
    for start, end in pairwise(points.tolist()):
        h, middle = end - start, (start + end) / 2
        k1, d1 = path.slope(start, z)
        k2, d2 = path.slope(middle, z + h / 2 * k1)
        k3, d3 = path.slope(middle, z + h / 2 * k2)
        k4, d4 = path.slope(end, z + h * k3)
        z = z + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        total = total + h / 6 * (d1 + 2 * d2 + 2 * d3 + d4)
    assert isinstance(total, torch.Tensor)
    return z, total


def dopri5(path: Path, z: torch.Tensor, ends: np.ndarray, tolerance: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The same by adaptive steps, for one picture and one seed: the size of a step depends on everything that is solved
    with it."""
    odeint = need_torchdiffeq()
    begin = (z, torch.zeros(1, len(z), dtype=z.dtype, device=z.device))
    times = torch.from_numpy(ends).to(z.device)
    try:
        states, totals = odeint(
            lambda l, state: path.slope(float(l), state[0]), begin, times,  # noqa: E741
            rtol=tolerance, atol=tolerance, method="dopri5",
        )  # fmt: skip
    except AssertionError as e:  # how torchdiffeq says that its step has shrunk to nothing
        raise GudaError(
            "solver-failed", f"the adaptive solver gave up ({str(e) or 'step too small'}); use --solver heun"
        ) from None
    return states[-1], totals[-1]


def need_torchdiffeq() -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    try:
        from torchdiffeq import odeint
    except ImportError:
        raise GudaError(
            "package-missing",
            "the adaptive solver needs torchdiffeq: pip install 'guda[likelihood]', or use --solver heun",
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
    size = math.prod(denoiser.shape)
    points = grid(denoiser.schedule, config.steps)
    found, calls = np.empty((len(seeds), len(ids))), np.empty((len(seeds), len(ids)), np.int64)
    for rows, columns, padded in _pieces(len(seeds), len(ids), config):
        names, index = [ids[i] for i in padded], torch.from_numpy(padded)
        told = None if cond is None else cond[index].to(denoiser.device)
        fresh = config.probes == "fresh" and config.solver != "adaptive"
        path = Path(denoiser, told, Probes(names, seeds[rows], denoiser.shape), fresh)
        _, _, norm = path.scale(float(points[0]))
        z = x0[index].to(denoiser.device).double() / norm
        if config.solver == "adaptive":
            z, total = dopri5(path, z, points[[0, -1]], config.tolerance)
        else:
            z, total = (heun if config.solver == "heun" else rk4)(path, z, points)
        prior = -0.5 * (z.square().flatten(1).sum(1) + size * math.log(2 * math.pi))
        values = (prior + total - size * math.log(norm)).cpu().numpy()
        if not np.isfinite(values).all():
            bad = names[int(np.argwhere(~np.isfinite(values))[0, 1])]
            raise NotFinite(
                "likelihood-not-finite",
                f"log p of {bad!r} is not a number: are the weights sound? If they are, use more --steps",
            )
        found[rows, columns], calls[rows, columns] = values[:, : columns.stop - columns.start], path.calls
    return found, calls


def _pieces(n_seeds: int, n: int, config: LikelihoodConfig) -> Iterator[tuple[slice, slice, np.ndarray]]:
    """(seeds, pictures, pictures with padding) that are solved together: on a grid a block with all seeds, short blocks
    padded because CPU kernels round differently at other batch sizes; adaptively one by one."""
    if config.solver == "adaptive":
        for k in range(n_seeds):
            for i in range(n):
                yield slice(k, k + 1), slice(i, i + 1), np.array([i])
        return
    for block in blocks(n, config.block):
        yield slice(0, n_seeds), slice(block.start, block.stop), np.array(block.index)
