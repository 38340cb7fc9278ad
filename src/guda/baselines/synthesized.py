"""Unlearning the synthesised image (Wang et al., 2024): forget the query, see which training images go with it.

    theta <- theta + rate u,  u = g / (F + damping),  g = gradient of the query's loss at `levels` timesteps per step
    tau_i  = loss_i(theta after) - loss_i(theta before)          positive = image i is forgotten too: it helped

F is the diagonal Fisher information of the training loss (gradients.py): the step ascends the query's loss where the
training data minds least. Only the chosen weights move, and each query starts from the model itself. A plain rate is
lr or lr / N; the ascent then runs away where the loss is steeper than F makes believe, as it is in networks that fit
well. Steps of one length, rate |theta| u / |u|, cannot.

The loss of a training image is its mean over a uniform grid of timesteps; one noise per image, the same at every
timestep, before and after, so that tau is exactly 0 for weights that did not move. To first order

    tau_i ~ g_i^T sum over steps of (rate u)         the limit of small rates; all g at the model itself

which needs no ascent and no evaluation after it; one step of it is rate g_i^T (F + damping)^-1 g.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from pydantic import Field, field_validator, model_validator

from guda.baselines.gradients import KEYS_AND_VALUES, Gradients, chosen_weights, regular_expression
from guda.baselines.influence import PATTERN
from guda.blocks import blocks
from guda.config import Config
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.families.base import Cond
from guda.diffusion.noise import KeyedNoise

CHECK = 10  # steps between looks at how far the weights have gone

TINY = 1e-300  # a gradient of zero has no direction: nothing moves


class SynthesizedConfig(Config):
    weights: str = Field(
        "auto",
        description="Which weights move: all, those whose name a regular expression finds, or auto: the keys and "
        "values of cross-attention in text-to-image models, all in others.",
    )
    lr: float = Field(0.01, ge=0, description="Size of the steps, see scale; 0.1 with scale: n is the paper's.")
    scale: Literal["length", "n", "none"] = Field(
        "length",
        description="length: steps along g/(F + damping) of one length, all together as long as lr times the weights; "
        "n: lr/N g/(F + damping) for N training images, which diverges where a network fits well; none: without 1/N.",
    )
    steps: int = Field(100, gt=0, description="Steps of unlearning a query.")
    checkpoints: tuple[int, ...] = Field(
        (10, 25, 50, 100), description="Steps after which losses are taken, up to `steps`, which always is one."
    )
    at: int | None = Field(None, gt=0, description="The checkpoint that scores are read at; null: the last.")
    levels: int = Field(10, gt=0, description="Timesteps of one step, and of a training image's loss.")
    per_group: int | None = Field(20, gt=0, description="Images that stand for a group, drawn by its name; null: all.")
    flips: bool = Field(
        False, description="Also follow mirrored training images; the larger change of each pair counts."
    )
    fisher_passes: int = Field(5, gt=0, description="Times that the Fisher information sees each of its images.")
    fisher_images: int | None = Field(1000, gt=0, description="Training images that it is taken over; null: all.")
    damping: float = Field(1e-3, gt=0, description="Added to the Fisher information, in units of its mean.")
    cap: float = Field(1.0, gt=0, description="The ascent has diverged once the weights moved by this of their length.")
    order: Literal["steps", "first"] = Field(
        "steps", description="steps: ascend and evaluate; first: to first order in lr, products of gradients only."
    )
    aggregate: str = Field(
        "sum", pattern=PATTERN, description="From a group's images to its score: sum, mean, max, median or top<m>."
    )
    per_sample: Literal["vmap", "loop"] = Field(
        "vmap", description="How gradients of single samples are taken; loop where a network cannot be batched."
    )
    seed: int = Field(0, ge=0, description="Seed of timesteps, noise and the images of the Fisher information.")

    @field_validator("weights")
    @classmethod
    def _expression(cls, value: str) -> str:
        return regular_expression(value)

    @model_validator(mode="after")
    def _together(self) -> SynthesizedConfig:
        if any(c < 1 for c in self.checkpoints) or list(self.checkpoints) != sorted(set(self.checkpoints)):
            raise ValueError(f"checkpoints {list(self.checkpoints)} must be numbers of steps, increasing")
        if self.at is not None and self.at not in self.reached:
            raise ValueError(f"at = {self.at} is not a checkpoint; losses are taken after {list(self.reached)} steps")
        return self

    @property
    def reached(self) -> tuple[int, ...]:
        return (*(c for c in self.checkpoints if c < self.steps), self.steps)

    @property
    def place(self) -> int:
        """Where among the checkpoints scores are read."""
        return self.reached.index(self.at or self.steps)

    def pattern(self, model: Denoiser) -> str:
        """`weights`, with `auto` spelled out for this model."""
        if self.weights != "auto":
            return self.weights
        return "all" if model.frozen is None else KEYS_AND_VALUES


@dataclass(frozen=True)
class Samples:
    """Training images whose losses are followed, each with its one noise."""

    x0: torch.Tensor  # [n, C, H, W]
    eps: torch.Tensor  # the same shape
    cond: Cond | None = None

    @classmethod
    def of(
        cls, x0: torch.Tensor, ids: Sequence[str], cond: Cond | None = None, seed: int = 0, mirrored: bool = False
    ) -> Samples:
        noise = KeyedNoise()
        key = ("synthesized", seed, "image")
        drawn = [noise.at(*key, i, int(mirrored)).standard_normal(x0.shape[1:], np.float32) for i in ids]
        return cls(x0, torch.from_numpy(np.stack(drawn)).to(x0.dtype), cond)

    @staticmethod
    def cat(parts: Sequence[Samples]) -> Samples:
        told = [p.cond for p in parts if p.cond is not None]
        x0, eps = (torch.cat(v) for v in zip(*((p.x0, p.eps) for p in parts), strict=True))
        return Samples(x0, eps, Cond.cat(told) if told else None)

    def __len__(self) -> int:
        return len(self.x0)


@torch.inference_mode()
def losses(denoiser: Denoiser, samples: Samples, t: torch.Tensor, block: int) -> np.ndarray:
    """float64 [n]: each sample's mean squared error over the timesteps t [L] and pixels. Blocks of one size, padded."""
    schedule, device, levels = denoiser.schedule, denoiser.device, len(t)
    found = []
    for rows in blocks(len(samples) * levels, block):
        index = torch.tensor(rows.index)
        owner, at = index // levels, t[index % levels]
        x0, eps = samples.x0[owner], samples.eps[owner]
        told = None if samples.cond is None else samples.cond[owner].to(device)
        out = denoiser.raw(schedule.add_noise(x0, eps, at).to(device), at.to(device), told)
        error = out - schedule.target(x0, eps, at).to(device)
        found.append(error.double().square().flatten(1).mean(1)[: rows.n].cpu().numpy())
    return np.concatenate(found).reshape(-1, levels).mean(axis=1)


@dataclass(frozen=True)
class Query:
    id: str  # keys the noise of its steps
    x0: torch.Tensor  # [C, H, W]
    cond: Cond | None = None  # of this one


class Ascent:
    """A working copy of the network, of which the chosen weights climb one query's loss after the other."""

    def __init__(
        self,
        denoiser: Denoiser,
        weights: str,
        inverse: Mapping[str, torch.Tensor],
        *,
        rate: float,
        of_length: bool = False,
        levels: int = 10,
        seed: int = 0,
        cap: float = 1.0,
    ) -> None:
        """`inverse`: 1 / (F + damping) by weight. `rate`: of u, or, `of_length`, what share of the weights' length a
        step is long. `cap`: |change| / |weights| at most."""
        self.denoiser, self.rate, self.of_length = denoiser.clone(), rate, of_length
        self.levels, self.seed, self.cap = levels, seed, cap
        self.denoiser.module.requires_grad_(False)
        chosen = chosen_weights(self.denoiser, weights)
        self.names, self.weights = list(chosen), [w.requires_grad_() for w in chosen.values()]
        self._inverse = [inverse[name].reshape(w.shape).to(w) for name, w in chosen.items()]
        self._before = [w.detach().clone() for w in self.weights]
        self._length = _norm(self._before)
        self._noise = KeyedNoise()

    def gradient(self, query: Query, step: int) -> list[torch.Tensor]:
        """Of the query's loss with respect to the chosen weights. Its timesteps, one in each of `levels` equal parts
        of [0, T), and their noise are functions of (seed, query id, step)."""
        schedule, device = self.denoiser.schedule, self.denoiser.device
        rng = self._noise.at("synthesized", self.seed, "query", query.id, step)
        at = (np.arange(self.levels) + rng.random(self.levels)) * schedule.T / self.levels
        t = torch.from_numpy(at.astype(np.int64)).clamp_(max=schedule.T - 1)  # rounding may reach T
        drawn = rng.standard_normal((self.levels, *query.x0.shape), np.float32)
        x0 = query.x0.expand(self.levels, *query.x0.shape)
        eps = torch.from_numpy(drawn).to(x0.dtype)
        told = None if query.cond is None else query.cond[torch.zeros(self.levels, dtype=torch.int64)].to(device)
        with torch.enable_grad():
            out = self.denoiser.raw(schedule.add_noise(x0, eps, t).to(device), t.to(device), told)
            loss = (out - schedule.target(x0, eps, t).to(device)).square().mean()
            return list(torch.autograd.grad(loss, self.weights, allow_unused=True, materialize_grads=True))

    @torch.no_grad()
    def climb(self, theta: Sequence[torch.Tensor], query: Query, step: int) -> None:
        """Add the step to `theta`: the weights themselves, or what they would become."""
        u = [g * inverse for g, inverse in zip(self.gradient(query, step), self._inverse, strict=True)]
        rate = self.rate * self._length / max(_norm(u), TINY) if self.of_length else self.rate
        for w, d in zip(theta, u, strict=True):
            w.add_(d, alpha=rate)

    @torch.no_grad()
    def moved(self) -> float:
        """|change| / |weights|; not a number where a weight is none any more."""
        return _norm(w - b for w, b in zip(self.weights, self._before, strict=True)) / self._length

    @torch.no_grad()
    def restore(self) -> None:
        for w, before in zip(self.weights, self._before, strict=True):
            w.copy_(before)

    def directions(self, query: Query, checkpoints: Sequence[int]) -> dict[str, torch.Tensor]:
        """{weight: [checkpoints, size]}: where so many steps would go if none changed the gradient of the next."""
        total = [torch.zeros_like(w) for w in self._before]
        found = []
        for step in range(checkpoints[-1]):
            self.climb(total, query, step)
            if step + 1 in checkpoints:
                found.append([x.flatten().clone() for x in total])
        return {name: torch.stack(parts) for name, parts in zip(self.names, zip(*found, strict=True), strict=True)}


@dataclass(frozen=True)
class Forgotten:
    """What went with one query. From where the ascent diverged on: not a number."""

    change: np.ndarray  # float64 [checkpoints, samples]: tau
    moved: np.ndarray  # float64 [checkpoints]: |change| / |weights|


def unlearn_query(
    ascent: Ascent,
    query: Query,
    samples: Samples,
    before: np.ndarray,
    checkpoints: Sequence[int],
    t: torch.Tensor,
    block: int,
) -> Forgotten:
    """tau of all samples after so many steps. `before`: their losses by the untouched model, on the same timesteps t.

    A loss has no upper bound, so the ascent may run away: it ends once the weights moved by more than the cap, or a
    loss is not a number, and what would have come after is recorded as not a number."""
    change = np.full((len(checkpoints), len(samples)), np.nan)
    moved = np.full(len(checkpoints), np.nan)
    try:
        for step in range(1, checkpoints[-1] + 1):
            ascent.climb(ascent.weights, query, step - 1)
            if step not in checkpoints and step % CHECK:
                continue
            if not (so_far := ascent.moved()) <= ascent.cap:
                break
            if step in checkpoints:
                c = list(checkpoints).index(step)
                after = losses(ascent.denoiser, samples, t, block)
                if not np.isfinite(after).all():
                    break
                change[c], moved[c] = after - before, so_far
    finally:
        ascent.restore()
    return Forgotten(change, moved)


def first_order(
    gradients: Gradients, samples: Samples, t: torch.Tensor, towards: Sequence[Mapping[str, torch.Tensor]], block: int
) -> np.ndarray:
    """float64 [queries, checkpoints, n]: g_i^T direction, for the `Ascent.directions` of each query. Each product has
    a shape of its own, so none depends on which queries are asked together."""
    schedule, device = gradients.denoiser.schedule, gradients.denoiser.device
    parts = []
    for rows in blocks(len(samples), block):
        shape = (block, len(t), *samples.x0.shape[1:])
        x0, eps = (rows.take(v)[:, None].expand(shape).flatten(0, 1) for v in (samples.x0, samples.eps))
        at = t.repeat(block)
        x_t, target = (f(x0, eps, at).reshape(shape).to(device) for f in (schedule.add_noise, schedule.target))
        told = None if samples.cond is None else rows.take(samples.cond).to(device)
        found = gradients(x_t, t.to(device), target, told)
        products = [torch.stack([(d[name] @ g.T).double() for name, g in found.items()]).sum(0) for d in towards]
        parts.append(torch.stack(products)[..., : rows.n].cpu().numpy())
    return np.concatenate(parts, axis=2)


def _norm(tensors: Iterable[torch.Tensor]) -> float:
    return float(sum(float(torch.linalg.vector_norm(x, dtype=torch.float64)) ** 2 for x in tensors) ** 0.5)
