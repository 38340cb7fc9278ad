"""Which timesteps are evaluated, and what each counts for.

Strata partition 1..t_max. A round draws one keyed (t, eps) in every stratum; a draw at t counts for 1/(probability of
drawing t), so a round is by itself an unbiased estimate of the whole sum (SPEC section 2). The `paper` plan is a
fixed grid with weight one: a raw sum, reproduced as such and never called an estimate of the bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from guda.diffusion.noise import KeyedNoise
from guda.diffusion.schedule import Schedule
from guda.errors import GudaError
from guda.runs.recipe import ScoringConfig
from guda.runs.store import digest


@dataclass(frozen=True)
class Plan:
    """Stratum i holds t in [edges[i], edges[i+1]), drawn uniformly; or, for `grid`, exactly the t listed."""

    edges: tuple[int, ...]
    seed: int
    grid: tuple[int, ...] = ()

    @property
    def n_strata(self) -> int:
        return len(self.grid) or len(self.edges) - 1

    @property
    def estimand(self) -> str:
        """Named in every output."""
        if self.grid:
            return f"paper grid: raw sum over {len(self.grid)} timesteps {self.grid[0]}..{self.grid[-1]}"
        return f"ELBO: sum over 1 <= t <= {self.edges[-1] - 1}"

    @property
    def key(self) -> str:
        return digest({"edges": self.edges, "grid": self.grid, "seed": self.seed})

    def importance(self) -> np.ndarray:
        """1 / inclusion probability of a draw, per stratum."""
        return np.ones(self.n_strata) if self.grid else np.diff(self.edges).astype(np.float64)

    def draw(self, noise: KeyedNoise, query: str, round_: int, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """(t int64 [S], eps float32 [S, C, H, W]) of one query in one round: functions of their keys alone."""
        t = np.empty(self.n_strata, np.int64)
        eps = np.empty((self.n_strata, *shape), np.float32)
        for i in range(self.n_strata):
            g = noise.at(self.seed, "score", query, round_, i)
            u = g.random()
            t[i] = self.grid[i] if self.grid else self.edges[i] + int(u * (self.edges[i + 1] - self.edges[i]))
            g.standard_normal(dtype=np.float32, out=eps[i])
        return t, eps


def stratified(schedule: Schedule, n: int, seed: int) -> Plan:
    """Strata of equal mass of a fixed density: half the KL weight w_t, half uniform in t.

    The weights vary 150-fold, so equal widths waste draws; the weight alone would starve high noise, where
    differences between models are large.
    """
    t_max = schedule.t_max
    if not 1 <= n <= t_max:
        raise GudaError(f"scoring.strata = {n}: needs 1..{t_max} (t_max of this schedule)")
    w = schedule.weights[1 : t_max + 1]
    mass = np.cumsum(0.5 * w / w.sum() + 0.5 / t_max)
    cuts = 1 + np.searchsorted(mass, np.arange(1, n) / n)
    # at least one timestep per stratum, from both ends
    cuts = np.maximum.accumulate(np.maximum(cuts, np.arange(2, n + 1)) - np.arange(n - 1)) + np.arange(n - 1)
    cuts = np.minimum(cuts, t_max + 1 - np.arange(n - 1, 0, -1))
    return Plan((1, *(int(c) for c in cuts), t_max + 1), seed)


def paper_grid(schedule: Schedule, stride: int, seed: int) -> Plan:
    """t = stride, 2 stride, ... below T."""
    grid = tuple(range(stride, schedule.T, stride))
    if not grid:
        raise GudaError(f"scoring.stride = {stride}: no timestep of a schedule of {schedule.T} steps is on that grid")
    return Plan((), seed, grid)


def make_plan(schedule: Schedule, config: ScoringConfig) -> Plan:
    if config.estimand == "paper":
        return paper_grid(schedule, config.stride, config.seed)
    return stratified(schedule, config.strata, config.seed)
