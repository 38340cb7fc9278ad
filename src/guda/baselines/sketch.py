"""Sketches: a gradient of p numbers kept as k, such that inner products survive on average, E <Su, Sv> = <u, v>.

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
from collections.abc import Mapping

import numpy as np
import torch

from guda.diffusion.noise import generator, torch_seed
from guda.errors import GudaError

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
