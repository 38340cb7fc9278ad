"""Features of images: the sketched gradients of training images and queries (BASELINES 0), and residuals.

    phi(x) = S ( 1/|grid| sum_t grad_theta f(x; t, eps_t) )         S: a sketch (below), f: gradients.py

over timesteps evenly spaced from 0. DAS makes each timestep's gradient unit length before the mean. `noise: shared`
gives every image the same eps_t (common random numbers); `per_item` a noise of its own, by its id. Neither depends on
a batch. Inner products of features estimate those of gradients without bias, so a ridge in another convention is
rescaled (ridge.py), never the features.

Training images and queries may be compared only where all of `Featuriser.meta` agrees; it goes with every file.

Residuals are how far the network is off at each training image, which DAS weighs the image by (BASELINES 3):

    e_it = mean over pixels of (output - target)^2     on a grid of timesteps, noise shared by all images

    normalized   a = sqrt(e_i) / |sqrt(e_i)|_2 over t, r_i = mean_t a    the public code: only the profile over t counts
    rms          r_i = sqrt(mean_t e_it)
    none         r_i = 1

Sketches: a gradient of p numbers kept as k, such that inner products survive on average, E <Su, Sv> = <u, v>.

    countsketch   every coordinate goes to one random place with a random sign: O(p) per gradient
                  Var <Su, Sv> = (|u|^2 |v|^2 + <u, v>^2 - 2 sum_j u_j^2 v_j^2) / k
    sjlt:<s>      to s places, one in each s-th of the sketch, with 1/sqrt(s) (sparse Johnson-Lindenstrauss): O(s p),
                  the same variance, but no collision of two coordinates costs the whole of their product
    gaussian      a dense matrix of N(0, 1/k): 2 p k operations and, p k being too many to keep, drawn again each time
                  Var <Su, Sv> = (|u|^2 |v|^2 + <u, v>^2) / k
    identity      the gradient itself, for tests

Gradients come weight by weight, so none is ever held whole. What a weight is multiplied with is a function of (seed,
its name) alone. On a GPU the additions of a countsketch have no fixed order, so last bits may differ there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, field_validator

from guda.baselines.gradients import Gradients, Mode, Output, regular_expression
from guda.blocks import blocks
from guda.config import Config
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.families.base import Cond
from guda.diffusion.noise import generator, torch_seed
from guda.errors import GudaError, NotFinite, refuse_difference
from guda.files import digest

PATTERN = r"^(countsketch|sjlt:[1-9][0-9]*|gaussian|identity)$"

ROWS = 1024  # rows of a Gaussian matrix drawn at once

COLUMNS = 2**17  # coordinates whose places are widened to 64 bits at once, as scatter_add_ wants them


class Sketch(ABC):
    def __init__(self, sizes: Mapping[str, int], dim: int, seed: int) -> None:
        """`sizes`: the number of values of every weight, by name."""
        self.sizes, self.dim, self.seed = dict(sizes), dim, seed

    def zeros(self, n: int, device: torch.device | str = "cpu") -> torch.Tensor:
        return torch.zeros(n, self.dim, device=device)

    @abstractmethod
    def add(self, out: torch.Tensor, name: str, values: torch.Tensor) -> None:
        """Add one weight's part `values` [n, size] of n gradients to their sketches `out` [n, dim]."""


class SparseSketch(Sketch):
    """CountSketch with one place per coordinate; SJLT with several."""

    def __init__(self, sizes: Mapping[str, int], dim: int, seed: int, places: int = 1) -> None:
        if dim % places:
            raise GudaError(
                "sketch-size-indivisible",
                f"sjlt:{places} cuts the sketch into {places} equal parts and {dim} is not a multiple; change one",
            )
        super().__init__(sizes, dim, seed)
        self.places = places
        self._drawn: dict[tuple[str, int], torch.Tensor] = {}

    def _slots(self, name: str, place: int, device: torch.device) -> torch.Tensor:
        """int32 [size]: where each coordinate goes; `dim` further on where its sign is minus. 4 bytes a weight."""
        key = (name, place)
        if key not in self._drawn:
            width = self.dim // self.places
            rng = generator("sketch", self.seed, name, place)
            bucket = rng.integers(place * width, (place + 1) * width, self.sizes[name], np.int32)
            plus = rng.integers(0, 2, self.sizes[name], np.int8)
            self._drawn[key] = torch.from_numpy(bucket + np.int32(self.dim) * (1 - plus)).to(device)
        return self._drawn[key]

    def add(self, out: torch.Tensor, name: str, values: torch.Tensor) -> None:
        # positive and negative coordinates are summed apart: no multiplication, one addition each, row by row in the
        # order of the coordinates, so a row's bits do not depend on the rows beside it
        both = torch.zeros(len(values), 2 * self.dim, dtype=out.dtype, device=out.device)
        for place in range(self.places):
            slots = self._slots(name, place, values.device)
            for first in range(0, len(slots), COLUMNS):
                columns = slice(first, first + COLUMNS)
                both.scatter_add_(1, slots[columns].long().expand(len(values), -1), values[:, columns])
        out.add_(both[:, : self.dim] - both[:, self.dim :], alpha=self.places**-0.5)


class GaussianSketch(Sketch):
    def add(self, out: torch.Tensor, name: str, values: torch.Tensor) -> None:
        for first in range(0, self.sizes[name], ROWS):
            rows = values[:, first : first + ROWS]
            drawn = torch.Generator().manual_seed(torch_seed("gaussian", self.seed, name, first))
            matrix = torch.randn(rows.shape[1], self.dim, generator=drawn).to(values.device)
            out.add_(rows @ matrix, alpha=self.dim**-0.5)


class IdentitySketch(Sketch):
    def __init__(self, sizes: Mapping[str, int], dim: int = 0, seed: int = 0) -> None:
        super().__init__(sizes, sum(sizes.values()), seed)
        ends = np.cumsum(list(sizes.values()))
        self._place = {name: (int(end) - n, int(end)) for (name, n), end in zip(sizes.items(), ends, strict=True)}

    def add(self, out: torch.Tensor, name: str, values: torch.Tensor) -> None:
        first, last = self._place[name]
        out[:, first:last] += values


def make_sketch(kind: str, sizes: Mapping[str, int], dim: int, seed: int) -> Sketch:
    if kind == "gaussian":
        return GaussianSketch(sizes, dim, seed)
    if kind == "identity":
        return IdentitySketch(sizes)
    name, _, places = kind.partition(":")
    if name not in ("countsketch", "sjlt"):
        raise ValueError(f"no sketch {kind!r}")
    return SparseSketch(sizes, dim, seed, int(places or 1))


Split = Literal["train", "queries"]

Precondition = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]  # {weight: [B, size]} -> the same shapes


class FeatureConfig(Config):
    """Everything that decides a feature, but the network and the seed."""

    output: Output = Field("loss", description="What is differentiated: loss, squared_norm or mean_output.")
    normalize: bool = Field(False, description="Make the gradient of each timestep unit length before their mean.")
    timesteps: int = Field(10, ge=1, description="Timesteps, evenly spaced from 0.")
    noise: Literal["shared", "per_item"] = Field(
        "shared", description="One eps per timestep for all, or one per image."
    )
    weights: str = Field("all", min_length=1, description="A regular expression that finds weights by name, or all.")
    sketch: str = Field("countsketch", pattern=PATTERN, description="countsketch, sjlt:<s>, gaussian or identity.")
    dim: int = Field(4096, ge=1, description="Numbers kept of a gradient.")
    block: int = Field(16, ge=1, description="Gradients held at once; memory is this many times the weights.")
    per_sample: Mode = Field("vmap", description="vmap, or loop for networks that torch.func cannot batch.")

    @field_validator("weights")
    @classmethod
    def _expression(cls, value: str) -> str:
        return regular_expression(value)


def feature_settings(config: FeatureConfig) -> dict[str, Any]:
    """Of a method's settings those that decide features, as JSON."""
    return {name: getattr(config, name) for name in FeatureConfig.model_fields}


def grid(T: int, n: int) -> np.ndarray:
    """n timesteps evenly spaced from 0: the usual range(0, T, T // n) where n divides T."""
    if n > T:
        raise GudaError("timesteps-too-many", f"{n} timesteps of a schedule that has {T}; give at most {T}")
    return np.arange(n) * T // n


class Featuriser:
    """Features of one network."""

    def __init__(self, denoiser: Denoiser, config: FeatureConfig, seed: int = 0, model: str | None = None) -> None:
        """`model`: the digest of its weights, where it is known."""
        self.denoiser, self.config, self.seed = denoiser, config, seed
        self.gradients = Gradients(denoiser, config.output, config.weights, config.per_sample)
        self.sketch: Sketch = make_sketch(config.sketch, self.gradients.sizes, config.dim, seed)
        self.t = torch.from_numpy(grid(denoiser.schedule.T, config.timesteps))
        self.model = model or denoiser.digest()

    @property
    def meta(self) -> dict[str, Any]:
        """What must agree before two features may meet."""
        shown = feature_settings(self.config) | {"seed": self.seed, "dim": self.sketch.dim, "model": self.model}
        return shown | {"grid": self.t.tolist(), "parameters": digest(self.gradients.sizes)}

    def __call__(
        self,
        x0: torch.Tensor,
        ids: Sequence[str],
        split: Split,
        cond: Cond | None = None,
        precondition: Precondition | None = None,
        tick: Callable[[int, int], None] = lambda done, total: None,
    ) -> torch.Tensor:
        """float32 [n, dim]; `precondition` changes gradients before they are sketched (K-FAC, a diagonal Fisher)."""
        device, parts = self.denoiser.device, []
        for rows in blocks(len(x0), self.config.block):
            tick(rows.start, len(x0))
            x_t, target = self._noised(rows.take(x0), [ids[i] for i in rows.index], split)
            told = None if cond is None else rows.take(cond).to(device)
            gradients = self._gradients(x_t.to(device), target.to(device), told)
            out = self.sketch.zeros(rows.size, device)
            if precondition is not None:
                gradients = precondition(gradients)
            while gradients:  # each weight's part is let go as soon as it is added
                name, values = gradients.popitem()
                self.sketch.add(out, name, values)
            parts.append(out[: rows.n].cpu())
        found = torch.cat(parts)
        if not bool(torch.isfinite(found).all()):
            bad = ids[int((~torch.isfinite(found)).any(dim=1).nonzero()[0])]
            raise NotFinite(
                "gradient-not-finite",
                f"the gradient of {bad!r} holds NaN or infinity; are the network's weights sound?",
            )
        return found

    def _noised(self, x0: torch.Tensor, ids: list[str], split: Split) -> tuple[torch.Tensor, torch.Tensor]:
        """x_t and the network's target, both [B, S, C, H, W]."""
        shape, schedule = self.denoiser.shape, self.denoiser.schedule

        def drawn(*key: str | int) -> np.ndarray:
            draws = [generator("features", self.seed, *key, int(t)).standard_normal(shape, np.float32) for t in self.t]
            return np.stack(draws)

        shared = drawn() if self.config.noise == "shared" else None
        eps = torch.from_numpy(np.stack([drawn(split, name) if shared is None else shared for name in ids]))
        t, clean = self.t.repeat(len(ids)), x0[:, None].expand(eps.shape).flatten(0, 1)
        noise = eps.flatten(0, 1)
        x_t, target = schedule.add_noise(clean, noise, t), schedule.target(clean, noise, t)
        return x_t.reshape(eps.shape), target.reshape(eps.shape)

    def _gradients(self, x_t: torch.Tensor, target: torch.Tensor, cond: Cond | None) -> dict[str, torch.Tensor]:
        t = self.t.to(x_t.device)
        if not self.config.normalize:
            return self.gradients(x_t, t, target, cond)
        total: dict[str, torch.Tensor] = {}
        for s in range(len(t)):
            found = self.gradients(x_t[:, s : s + 1], t[s : s + 1], target[:, s : s + 1], cond)
            squares = torch.stack([g.double().square().sum(dim=1) for g in found.values()])
            scale = (1.0 / (squares.sum(dim=0).sqrt() + 1e-8) / len(t)).to(x_t.dtype)
            for name, g in found.items():
                g *= scale[:, None]
                total[name] = g if name not in total else total[name].add_(g)
        return total


def meet(train: dict[str, Any], queries: dict[str, Any], where: str, free: Sequence[str] = ()) -> None:
    """Refuse features of different making; `free`: what may differ (TRAK lets f of train and query differ)."""
    one, two = ({k: v for k, v in m.items() if k not in free} for m in (train, queries))
    refuse_difference(
        "features-made-differently",
        where,
        one,
        two,
        "features can be compared only if made alike; delete one of them and run again",
    )


Residual = Literal["none", "normalized", "rms"]


@torch.inference_mode()
def profile(
    denoiser: Denoiser,
    x0: torch.Tensor,
    levels: int,
    seed: int,
    block: int,
    cond: Cond | None = None,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> np.ndarray:
    """float64 [n, levels]: e_it."""
    times, device = grid(denoiser.schedule.T, levels), denoiser.device
    found = np.empty((len(x0), levels))
    for s, time in enumerate(times):
        tick(s, levels)
        eps = torch.from_numpy(generator("residuals", seed, int(time)).standard_normal(denoiser.shape, np.float32))
        for rows in blocks(len(x0), block):
            t = torch.full((block,), int(time))
            x, noise = rows.take(x0), eps.expand(block, *eps.shape)
            x_t, target = denoiser.schedule.add_noise(x, noise, t), denoiser.schedule.target(x, noise, t)
            told = None if cond is None else rows.take(cond).to(device)
            error = denoiser.raw(x_t.to(device), t.to(device), told) - target.to(device)
            e = error.double().square().flatten(1).mean(dim=1).cpu().numpy()
            found[rows.start : rows.stop, s] = e[: rows.n]
    if not np.isfinite(found).all():
        raise NotFinite(
            "network-not-finite", "the network returned NaN or infinity for a training image; are its weights sound?"
        )
    return found


def residuals(errors: np.ndarray, kind: Residual) -> np.ndarray:
    """r [n] from e [n, levels]."""
    if kind == "rms":
        return np.sqrt(errors.mean(axis=1))
    if kind == "none":
        return np.ones(len(errors))
    a = np.sqrt(errors)
    return (a / (np.linalg.norm(a, axis=1, keepdims=True) + 1e-8)).mean(axis=1)
