"""The pilot: where along t the models differ, so that evaluations go there.

On a few training images and a grid of timesteps, one antithetic pair each, it measures for some counterfactuals
    r(t) = w_t sqrt( mean over images and groups of (d_k - mean_k d)^2 ),   d_k = error of counterfactual k - of full
(of a path divergence: d_k = its change), the size of what a ranking has to resolve at t. Interpolated (in log r) and
mixed with a tenth of the `stratified` density, so that no weight 1/p is large where the pilot saw nothing, r is the
density of the importance plan. Estimates are unbiased whatever the density is; a bad pilot only costs precision. It
names the models it was measured on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from guda.data.images import ImageData
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.noise import generator
from guda.diffusion.schedule import Schedule
from guda.errors import GudaError
from guda.scoring.plan import prior_density, stratified
from guda.scoring.terms import make_draws, measure_rule
from guda.scoring.terms import measure as measure_terms
from guda.unlearning.rule import RuledDenoiser

POINTS = 12  # timesteps of the grid

DEFENSIVE = 0.1  # share of the density that does not come from the pilot


def measure(
    full: Denoiser,
    counterfactuals: Sequence[Denoiser],
    images: np.ndarray,
    seed: int,
    block: int,
    prompts: Sequence[str] | None = None,
    path: bool = False,
) -> tuple[np.ndarray, np.ndarray, int]:
    """(t [P, n], contrasts d_k - mean d in nats [P, n, G], network evaluations): the raw pilot.

    `prompts`: what a conditional model is told of each image."""
    if len(counterfactuals) < 2:
        raise GudaError("pilot-groups-too-few", "a pilot compares counterfactuals and needs at least two")
    schedule = full.schedule
    plan = stratified(schedule, min(POINTS, schedule.t_max), seed, antithetic=True)
    ids = [f"pilot-{i}" for i in range(len(images))]
    draws = make_draws(full, full.encode(images), ids, plan, 0)
    cond = full.condition(prompts)
    silent = [path and isinstance(m, RuledDenoiser) for m in counterfactuals]  # a rule's change needs no network
    base = None if all(silent) else measure_terms(full, draws, block, cond, keep=True)
    found = []
    for m in counterfactuals:
        if path and isinstance(m, RuledDenoiser):
            found.append(measure_rule(m, draws, block)[0])
            continue
        assert base is not None
        one = measure_terms(m, draws, block, cond, base.predictions if path else None)
        found.append(one.errors[0] - base.errors[0] if one.changes is None else one.changes[0])
    d = np.stack(found, axis=-1) * schedule.weights[draws.t][..., None]
    evals = len(images) * plan.evals_per_round * ((base is not None) + silent.count(False))
    return draws.t.T, (d - d.mean(axis=-1, keepdims=True)).transpose(1, 0, 2), evals


def density(schedule: Schedule, t: np.ndarray, contrasts: np.ndarray) -> np.ndarray:
    """p(t) for t = 1..t_max, sums to one. Each grid stratum is summarised at its mean timestep."""
    size = np.sqrt((contrasts**2).mean(axis=(1, 2)))
    if not np.isfinite(size).all() or not (size > 0).any():
        raise GudaError(
            "pilot-without-difference", "the pilot saw no difference between the counterfactuals; are they fitted?"
        )
    size = np.maximum(size, size.max() * 1e-9)  # a timestep where nothing differed keeps the defensive share
    every = np.arange(1, schedule.t_max + 1)
    found = np.exp(np.interp(every, t.mean(axis=1), np.log(size)))
    return (1 - DEFENSIVE) * found / found.sum() + DEFENSIVE * prior_density(schedule)


IMAGES = 6  # training images, spread over the groups

MODELS = 5  # counterfactuals, at most; more of either changed nothing measurable


def pilot_images(data: ImageData, n: int, seed: int) -> np.ndarray:
    """Positions of n training images, drawn group by group."""
    rng = generator(seed, "pilot")
    per_group = [rng.permutation(data.groups.members(k)) for k in data.groups.leaves]
    mixed = [int(members[i]) for i in range(max(map(len, per_group))) for members in per_group if i < len(members)]
    return np.array(mixed[:n])


@dataclass(frozen=True, eq=False)
class Pilot:
    t: np.ndarray  # [P] mean timestep of each stratum of the grid
    size: np.ndarray  # [P] nats: how far the counterfactuals differ there
    density: np.ndarray  # p(t) for t = 1..t_max
    images: int
    evals: int


def measure_density(
    full: Denoiser,
    counterfactuals: Sequence[Denoiser],
    data: ImageData,
    seed: int,
    block: int,
    prompts: Sequence[str] | None = None,
    path: bool = False,
) -> Pilot:
    """The pilot on some training images. `prompts`: what a conditional model is told of every training image."""
    index = pilot_images(data, IMAGES, seed)
    told = None if prompts is None else [prompts[i] for i in index]
    t, contrasts, evals = measure(full, counterfactuals, data.images[index], seed, block, told, path)
    size = np.sqrt((contrasts**2).mean(axis=(1, 2)))
    return Pilot(t.mean(axis=1), size, density(full.schedule, t, contrasts), len(index), evals)
