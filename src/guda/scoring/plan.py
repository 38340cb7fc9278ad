"""The scoring plan: which timesteps are evaluated, and the weight of each.

Strata partition 1..t_max. A round draws one keyed (t, eps) in every stratum, t with probability p(t)/P_s inside stratum
s; a draw counts for 1/(that probability), so a round is by itself an unbiased estimate of the whole sum whatever p is.

Rounds do not draw their timesteps independently of each other. A query has one random start u in every stratum, and
round r takes the quantile u + r (sqrt 5 - 1)/2 modulo one of the stratum's density: uniform in every round, and any few
rounds in a row lie far apart. Terms change smoothly along t, so the mean of several rounds errs less than that of
independent draws, while their variance, which counts the trend along t as noise, does not shrink: intervals hold, and
are wider than they need be where the trend is most of the variance (docs/scoring.md, "What the error bars mean").

Kinds of plan:

    uniform      strata of equal width, t uniform inside them
    stratified   strata of equal mass of half the KL weight w_t and half a uniform density; t uniform inside them
    importance   strata of equal mass of a pilot's density (see pilot.py), t drawn from that density inside them
    paper        the fixed grid of the paper with weight one: a raw sum, never called an estimate of the bound

Antithetic: a draw is the pair (t, eps), (t, -eps), and its value their mean. Differences between models are nearly
linear in eps at low noise, where most of the variance is, and that part cancels.

How networks are run when scoring: device, precision, memory layout, block size. Part of the terms' key.

On the CPU everything is plain fp32 and nothing needs probing. On a GPU the first scoring of a run times a few ways to
run the model once, keeps the fastest and writes RUN/probe.json; later scorings read it, so that one run never mixes
two. When a block does not fit into memory it is halved and the terms go under the new key.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from guda.config import ScoringConfig
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.noise import KeyedNoise
from guda.diffusion.schedule import Schedule
from guda.errors import GudaError
from guda.files import digest

ROTATION = (5**0.5 - 1) / 2  # of the quantile, from round to round: any few multiples of it lie far apart


@dataclass(frozen=True)
class Plan:
    """Stratum i holds t in [edges[i], edges[i+1]); or, for a `grid`, exactly the t listed."""

    edges: tuple[int, ...]
    seed: int
    grid: tuple[int, ...] = ()
    density: tuple[float, ...] = field(default=(), repr=False)  # p(t) for t = 1..t_max, any scale; (): uniform
    antithetic: bool = False

    def __post_init__(self) -> None:
        if self.grid:
            if min(self.grid) < 1:
                raise GudaError("plan-grid-invalid", f"plan: the bound begins at t = 1, the grid at {min(self.grid)}")
            return
        if len(self.edges) < 2 or self.edges[0] < 1 or any(np.diff(self.edges) < 1):
            raise GudaError(
                "plan-strata-invalid",
                f"plan: strata must begin at t >= 1 and be in order and not empty, got {self.edges}",
            )
        p = np.array(self.density)
        if len(p) and (len(p) != self.edges[-1] - 1 or not (np.isfinite(p) & (p > 0)).all()):
            raise GudaError(
                "plan-density-invalid", "plan: the density must be positive and finite at every t of 1..t_max"
            )

    def check(self, schedule: Schedule) -> None:
        """A plan made for a longer schedule asks for timesteps this one does not have."""
        last = max(self.grid) if self.grid else self.edges[-1] - 1
        if last >= schedule.T:
            raise GudaError(
                "plan-outside-schedule", f"the plan reaches t = {last}, this schedule ends at {schedule.T - 1}"
            )

    @property
    def n_strata(self) -> int:
        return len(self.grid) or len(self.edges) - 1

    @property
    def evals_per_round(self) -> int:
        """Network evaluations of one model, for one query."""
        return self.n_strata * (2 if self.antithetic else 1)

    @property
    def estimand(self) -> str:
        """Named in every output."""
        if self.grid:
            return f"paper grid: raw sum over {len(self.grid)} timesteps {self.grid[0]}..{self.grid[-1]}"
        return f"ELBO: sum over 1 <= t <= {self.edges[-1] - 1}"

    @property
    def path_estimand(self) -> str:
        return f"path divergence: sum over 1 <= t <= {self.edges[-1] - 1}"

    @property
    def key(self) -> str:
        return digest(
            {
                "edges": self.edges,
                "grid": self.grid,
                "seed": self.seed,
                "density": self.density,
                "pairs": self.antithetic,
                "rotation": ROTATION,
            }
        )

    @cached_property
    def _inside(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(cumulative probability, probability) of the timesteps inside each stratum."""
        pairs = []
        for low, high in zip(self.edges, self.edges[1:], strict=False):
            p = np.array(self.density[low - 1 : high - 1]) if self.density else np.ones(high - low)
            p = p / p.sum()
            pairs.append((np.cumsum(p), p))
        return pairs

    def counts(self, t: np.ndarray) -> np.ndarray:
        """What a draw at t counts for: 1 / (probability of drawing t in its stratum)."""
        if self.grid:
            return np.ones(t.shape)
        table = np.zeros(self.edges[-1])
        table[self.edges[0] :] = np.concatenate([1 / p for _, p in self._inside])
        return table[t]

    def draw(self, noise: KeyedNoise, query: str, round_: int, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """(t int64 [S], eps float32 [S, C, H, W]) of one query in one round: functions of their keys alone."""
        t = np.empty(self.n_strata, np.int64)
        eps = np.empty((self.n_strata, *shape), np.float32)
        for i in range(self.n_strata):
            if self.grid:
                t[i] = self.grid[i]
            else:
                u = (noise.at(self.seed, "start", query, i).random() + round_ * ROTATION) % 1.0
                cumulative, p = self._inside[i]
                t[i] = self.edges[i] + min(int(np.searchsorted(cumulative, u, side="right")), len(p) - 1)
            noise.at(self.seed, "score", query, round_, i).standard_normal(dtype=np.float32, out=eps[i])
        return t, eps


def _equal_mass(density: np.ndarray, n: int) -> tuple[int, ...]:
    """Edges of n strata of 1..len(density), of about equal mass and at least one timestep each."""
    t_max = len(density)
    if not 1 <= n <= t_max:
        raise GudaError("strata-outside-schedule", f"scoring.strata = {n}: needs 1..{t_max} (t_max of this schedule)")
    mass = np.cumsum(density)
    cuts = 1 + np.searchsorted(mass, np.arange(1, n) / n * mass[-1])
    step = np.arange(n - 1)
    cuts = np.maximum.accumulate(np.maximum(cuts, step + 2) - step) + step
    cuts = np.minimum(cuts, t_max + 1 - step[::-1] - 1)
    return (1, *(int(c) for c in cuts), t_max + 1)


def uniform(schedule: Schedule, n: int, seed: int, antithetic: bool = False) -> Plan:
    return Plan(_equal_mass(np.ones(schedule.t_max), n), seed, antithetic=antithetic)


def prior_density(schedule: Schedule) -> np.ndarray:
    """What is known of t = 1..t_max before looking, sums to one: half KL weight, half uniform. The weights vary
    150-fold, so equal widths waste draws; the weight alone would starve high noise, where models differ much."""
    w = schedule.weights[1 : schedule.t_max + 1]
    return 0.5 * w / w.sum() + 0.5 / len(w)


def stratified(schedule: Schedule, n: int, seed: int, antithetic: bool = False) -> Plan:
    return Plan(_equal_mass(prior_density(schedule), n), seed, antithetic=antithetic)


def importance(schedule: Schedule, density: np.ndarray, n: int, seed: int, antithetic: bool = True) -> Plan:
    """`density`: p(t) for t = 1..t_max, from a pilot."""
    if len(density) != schedule.t_max:
        raise GudaError(
            "pilot-schedule-mismatch",
            f"the pilot covers t = 1..{len(density)}, this schedule 1..{schedule.t_max}; make a new pilot",
        )
    return Plan(_equal_mass(density, n), seed, density=tuple(float(p) for p in density), antithetic=antithetic)


def paper_grid(schedule: Schedule, stride: int, seed: int) -> Plan:
    """t = stride, 2 stride, ... below T."""
    grid = tuple(range(stride, schedule.T, stride))
    if not grid:
        raise GudaError(
            "stride-too-large",
            f"scoring.stride = {stride}: no timestep of a schedule of {schedule.T} steps is on that grid",
        )
    return Plan((), seed, grid)


def make_plan(schedule: Schedule, config: ScoringConfig, density: np.ndarray | None = None) -> Plan:
    """The plan a recipe asks for; `density` is needed by `importance` and by nothing else."""
    if config.estimand == "paper":
        return paper_grid(schedule, config.stride, config.seed)
    if config.plan == "importance":
        if density is None:
            raise GudaError(
                "pilot-missing",
                "the importance plan needs a pilot; in a run `guda score` makes it, in Python give data=...",
            )
        return importance(schedule, density, config.strata, config.seed, config.antithetic)
    maker = {"uniform": uniform, "stratified": stratified}[config.plan]
    return maker(schedule, config.strata, config.seed, config.antithetic)


def typical_plan(schedule: Schedule, seed: int) -> Plan:
    """The draws that describe a picture (scoring/origin.py), whatever plan its scores have: one answer for every
    estimand."""
    return stratified(schedule, min(6, schedule.t_max), seed, antithetic=True)


REPEATS = 3


class OutOfMemory(GudaError):
    """A block did not fit; raised in a worker, answered by the driver with a smaller block."""


@dataclass(frozen=True)
class Settings:
    block: int
    device: str = "cpu"
    precision: str = "fp32"  # or bf16: autocast
    channels_last: bool = False
    compiled: bool = False

    @property
    def key(self) -> str:
        extras = ("-cl" if self.channels_last else "") + ("-compiled" if self.compiled else "")
        return f"b{self.block}-{self.device}-{self.precision}{extras}"

    def halved(self) -> Settings:
        """After an OutOfMemory: the same with half the block."""
        if self.block == 1:
            raise GudaError("image-out-of-memory", "even one image does not fit into memory; use a machine with more")
        return replace(self, block=self.block // 2)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Autocast where chosen; running out of memory becomes `OutOfMemory`."""
        context: Any = contextlib.nullcontext()
        if self.precision == "bf16":
            context = torch.autocast(self.device, torch.bfloat16)
        try:
            with context:
                yield
        except (torch.OutOfMemoryError, RuntimeError) as e:
            if not isinstance(e, torch.OutOfMemoryError) and "can't allocate memory" not in str(e):
                raise
            raise OutOfMemory(
                "block-out-of-memory",
                f"a block of {self.block} images does not fit into memory; set scoring.block lower",
            ) from e

    def prepare(self, denoiser: Denoiser) -> Denoiser:
        if self.channels_last:
            module: Any = denoiser.module
            module.to(memory_format=torch.channels_last)
        if self.compiled and getattr(denoiser.module, "_compiled_call_impl", None) is None:
            denoiser.module.compile()
        return denoiser


def candidates(block: int, device: str) -> list[Settings]:
    if device == "cpu":
        return [Settings(block)]
    plain = Settings(block, device)
    half = replace(plain, precision="bf16")
    return [plain, half, replace(half, channels_last=True), replace(half, channels_last=True, compiled=True)]


def fastest(denoiser: Denoiser, block: int) -> tuple[Settings, dict[str, float]]:
    """What is fastest on the model's device, and the seconds per block of everything tried; a CPU has one way."""
    if denoiser.device.type == "cpu":
        return Settings(block), {}
    timed = {s: seconds_per_block(denoiser.clone(), s) for s in candidates(block, denoiser.device.type)}
    return min(timed, key=lambda s: timed[s]), {s.key: v for s, v in timed.items()}


def seconds_per_block(denoiser: Denoiser, settings: Settings) -> float:
    """Best of a few timed calls after a warm-up, synchronised on a GPU."""
    model = settings.prepare(denoiser)
    x = torch.randn(settings.block, *denoiser.shape, device=denoiser.device)
    t = torch.full((settings.block,), denoiser.schedule.T // 2, device=denoiser.device)
    cond = denoiser.condition(["0"] * settings.block) if denoiser.conditional else None
    best = float("inf")
    with torch.inference_mode(), settings.active():
        for attempt in range(REPEATS + 1):
            started = time.perf_counter()
            model.raw(x, t, cond)
            if settings.device == "cuda":
                torch.cuda.synchronize()
            if attempt:
                best = min(best, time.perf_counter() - started)
    return best
