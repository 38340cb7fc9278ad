"""The pilot: where along t models without a group would differ, so that evaluations go there.

On a few training images and a grid of timesteps, one antithetic pair each, it measures for some counterfactuals
    r(t) = w_t sqrt( mean over images and groups of (d_k - mean_k d)^2 ),   d_k = error of counterfactual k - of full
(of a path divergence: d_k = its change), the size of what a ranking has to resolve at t. Interpolated (in log r) and
mixed half and half with the `stratified` density, so that no weight 1/p is large where the pilot saw nothing, r is the
density of the importance plan. Estimates are unbiased whatever the density is; a bad pilot only costs precision.

It is a function of the model and the training data alone, so that no score depends on which method was scored first.
Its counterfactuals are therefore nobody's: nothing is fitted for it but a Gaussian per group.

    unconditional   the posterior rule (unlearning/rule.py) of one Gaussian for each of the first few groups
    conditional     the model itself, told a prompt of another group
    neither         images too large for a covariance, one group, no prompts: the `stratified` density
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from guda.data.images import ImageData
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.families.base import Cond
from guda.diffusion.noise import generator
from guda.diffusion.schedule import Schedule
from guda.errors import GudaError
from guda.scoring.plan import prior_density, stratified
from guda.scoring.terms import make_draws, measure_rule
from guda.scoring.terms import measure as measure_terms
from guda.unlearning.density import GaussianDensity, fit_gaussians
from guda.unlearning.rule import Rule, RuleConfig, RuledDenoiser

POINTS = 12  # timesteps of the grid

DEFENSIVE = 0.5  # share of the density that does not come from the pilot, which has seen no method: weights stay small


def measure(
    full: Denoiser,
    counterfactuals: Sequence[Denoiser],
    images: np.ndarray,
    seed: int,
    block: int,
    prompts: Sequence[str] | None = None,
    path: bool = False,
    told: Sequence[Sequence[str]] | None = None,
) -> tuple[np.ndarray, np.ndarray, int]:
    """(t [P, n], contrasts d_k - mean d in nats [P, n, G], network evaluations): the raw pilot.

    `prompts`: what a conditional model is told of each image; `told`: what each counterfactual is told instead."""
    schedule = full.schedule
    plan = stratified(schedule, min(POINTS, schedule.t_max), seed, antithetic=True)
    ids = [f"pilot-{i}" for i in range(len(images))]
    draws = make_draws(full, full.encode(images), ids, plan, 0)
    cond = full.condition(prompts)
    conds: list[Cond | None] = [cond] * len(counterfactuals) if told is None else [full.condition(p) for p in told]
    silent = [path and isinstance(m, RuledDenoiser) for m in counterfactuals]  # a rule's change needs no network
    base = None if all(silent) else measure_terms(full, draws, block, cond, keep=True)
    differences: list[np.ndarray] = []
    for m, each in zip(counterfactuals, conds, strict=True):
        if path and isinstance(m, RuledDenoiser):
            differences += list(measure_rule(m, draws, block))
            continue
        assert base is not None
        one = measure_terms(m, draws, block, each, base.predictions if path else None)
        differences += list(one.errors - base.errors if one.changes is None else one.changes)
    if len(differences) < 2:
        raise GudaError("pilot-groups-too-few", "a pilot compares counterfactuals and needs at least two")
    d = np.stack(differences, axis=-1) * schedule.weights[draws.t][..., None]
    evals = len(images) * plan.evals_per_round * ((base is not None) + silent.count(False))
    return draws.t.T, (d - d.mean(axis=-1, keepdims=True)).transpose(1, 0, 2), evals


def density(schedule: Schedule, t: np.ndarray, contrasts: np.ndarray) -> np.ndarray:
    """p(t) for t = 1..t_max, sums to one. Each grid stratum is summarised at its mean timestep."""
    size = _sizes(contrasts)
    if not np.isfinite(size).all() or not (size > 0).any():
        raise GudaError("pilot-without-difference", "the pilot saw no difference between the counterfactuals")
    size = np.maximum(size, size.max() * 1e-9)  # a timestep where nothing differed keeps the defensive share
    every = np.arange(1, schedule.t_max + 1)
    shape = np.exp(np.interp(every, t.mean(axis=1), np.log(size)))
    return (1 - DEFENSIVE) * shape / shape.sum() + DEFENSIVE * prior_density(schedule)


def _sizes(contrasts: np.ndarray) -> np.ndarray:
    """r [P], of four digits: a density need not be exact, and other threads or blocks change the last bits only."""
    return np.array([float(f"{r:.4g}") for r in np.sqrt((contrasts**2).mean(axis=(1, 2)))])


SEED = 0  # not the recipe's, which may change after the pilot was made

IMAGES = 6  # training images, spread over the groups

GROUPS = 5  # at most; more of either changed nothing measurable

LARGEST = 1024  # numbers of an image; the covariances of larger ones take longer than the pilot saves

MEMBERS = 500  # images of a group that its Gaussian is fitted to, at most


def pilot_images(data: ImageData, n: int, seed: int, groups: int | None = None) -> np.ndarray:
    """Positions of n training images, drawn group by group, of all leaves or of the first `groups`."""
    rng = generator(seed, "pilot")
    per_group = [rng.permutation(data.groups.members(k)) for k in data.groups.leaves[:groups]]
    mixed = [int(members[i]) for i in range(max(map(len, per_group))) for members in per_group if i < len(members)]
    return np.array(mixed[:n])


@dataclass(frozen=True, eq=False)
class Pilot:
    by: str  # what was compared: "rule", "prompts" or "nothing"
    groups: tuple[str, ...]
    t: np.ndarray  # [P] mean timestep of each stratum of the grid
    size: np.ndarray  # [P] nats: how far the counterfactuals differ there
    density: np.ndarray  # p(t) for t = 1..t_max
    images: int
    evals: int


def pilot_kind(full: Denoiser, data: ImageData, prompts: Sequence[str] | None) -> str:
    """What a pilot of this model can compare."""
    if len(data.groups.leaves) < 2:
        return "nothing"
    if full.conditional:
        return "nothing" if prompts is None else "prompts"
    return "rule" if np.prod(full.shape) <= LARGEST else "nothing"


def measure_density(
    full: Denoiser, data: ImageData, block: int, prompts: Sequence[str] | None = None, path: bool = False
) -> Pilot:
    """The pilot on some training images. `prompts`: what a conditional model is told of every training image."""
    kind, leaves = pilot_kind(full, data, prompts), data.groups.leaves[:GROUPS]
    nothing = Pilot("nothing", (), np.zeros(0), np.zeros(0), prior_density(full.schedule), 0, 0)
    if kind == "nothing":
        return nothing
    index = pilot_images(data, IMAGES, SEED, GROUPS)
    images, names = data.images[index], tuple(data.groups.names[k] for k in leaves)
    if kind == "rule":
        t, contrasts, evals = measure(full, [_rule(full, data, leaves)], images, SEED, block, None, path)
    else:
        assert prompts is not None
        others = [[prompts[data.groups.members(k)[0]]] * len(index) for k in leaves]
        own = [prompts[i] for i in index]
        t, contrasts, evals = measure(full, [full] * len(others), images, SEED, block, own, path, others)
    if not contrasts.any():  # one prompt for all groups
        return nothing
    p = density(full.schedule, t, contrasts)
    return Pilot(kind, names, t.mean(axis=1), _sizes(contrasts), p, len(index), evals)


def _rule(full: Denoiser, data: ImageData, leaves: Sequence[int]) -> RuledDenoiser:
    """The model without each of the leaves, by a rule that knows these only."""
    rng, usual = generator(SEED, "pilot-rule"), RuleConfig()  # type: ignore[call-arg]
    members = [np.sort(rng.permutation(data.groups.members(k))[:MEMBERS]) for k in leaves]
    labels = np.repeat(np.arange(len(leaves)), [len(m) for m in members])
    x0 = full.encode(data.images[np.concatenate(members)]).numpy()
    tensors = fit_gaussians(x0, labels, 1, usual.shrink, usual.floor, SEED)
    owned = torch.eye(len(leaves), dtype=torch.bool, device=full.device)
    return RuledDenoiser(full, Rule(GaussianDensity(tensors, full.schedule, full.device, owned), usual.window),
                         list(range(len(leaves))))  # fmt: skip
