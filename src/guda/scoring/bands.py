"""Noise bands: which timesteps count for a score, and how much each band contributes.

The plain ELBO counts every t alike. Low noise carries most of |score| but little that two retrainings agree on, so a
score may be restricted (`100:1000`) or reweighted (`1:100=0.2,100:1000=1`). That is arithmetic on stored terms, needs
no network, and is another estimand: its name goes into every output.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from guda.errors import GudaError


@dataclass(frozen=True)
class Bands:
    """Disjoint [from, to) ranges of t with a factor each; t in no range counts nothing."""

    ranges: tuple[tuple[int, int, float], ...]

    @classmethod
    def parse(cls, text: str, T: int) -> Bands:
        ranges = []
        for part in text.split(","):
            span, equals, factor = part.partition("=")
            low, colon, high = span.partition(":")
            try:
                band = (int(low), int(high), float(factor) if equals else 1.0)
            except ValueError:
                band = None
            if not colon or band is None or not np.isfinite(band[2]) or band[2] < 0:
                raise GudaError(
                    "band-invalid", f"band {part!r}: write FROM:TO or FROM:TO=FACTOR, e.g. 100:1000 or 1:100=0.2"
                )
            if not 0 <= band[0] < band[1] <= T:
                raise GudaError(
                    "band-outside-schedule", f"band {part!r} is outside this schedule: needs 0 <= FROM < TO <= {T}"
                )
            ranges.append(band)
        ranges.sort()
        for one, two in pairwise(ranges):
            if two[0] < one[1]:
                raise GudaError("bands-overlap", f"bands {one[0]}:{one[1]} and {two[0]}:{two[1]} overlap")
        return cls(tuple(ranges))

    @property
    def name(self) -> str:
        return ",".join(f"{a}:{b}" if f == 1 else f"{a}:{b}={f:g}" for a, b, f in self.ranges)

    @property
    def slug(self) -> str:
        """For file names."""
        return self.name.replace(":", "-").replace(",", "_").replace("=", "x")

    def factors(self, T: int) -> np.ndarray:
        """float64 [T], multiplies w_t."""
        out = np.zeros(T)
        for low, high, factor in self.ranges:
            out[low:high] = factor
        return out


def default_edges(T: int) -> tuple[int, ...]:
    """The bands of the noise-band view, as fractions of T: finer where the weights are."""
    return tuple(dict.fromkeys([0, *(round(f * T) for f in (0.05, 0.1, 0.2, 0.3, 0.6)), T]))


def by_band(difference: np.ndarray, t: np.ndarray, edges: tuple[int, ...]) -> np.ndarray:
    """Nats per band [bands, Q] from paired contributions and timesteps [R, Q, S]; sums to the score exactly."""
    band = np.searchsorted(edges, t, side="right") - 1
    return np.stack([np.where(band == b, difference, 0.0).mean(axis=0).sum(axis=-1) for b in range(len(edges) - 1)])
