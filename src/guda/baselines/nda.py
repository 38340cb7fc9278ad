"""NDA: which training patches a noised picture's patches may have come from. The data alone answers; no network does.

With x_t = a_t x + s_t eps, P_u the patch centred at u, and all training images y_j, the posterior over (image, place)

    w_u(j, v) = softmax over all (j, v) of  -|P_u(x_t) - a_t P_v(y_j)|^2 / (2 s_t^2)      mass_j = sum_{u, v} w_u(j, v)

is the weight of y_j in the optimal denoiser that sees a patch at a time. Masses are >= 0 and add up to the number of
places, H W; for `whole` there is one place, and the mass is the posterior of the image.

Border: a patch that reaches over the edge competes only with patches cut in the same way, by the pixels inside. It is
the limit of padding with a large constant (a mismatch costs infinitely much) without that constant, whose square would
swallow the distances. Every training image has as many places of each cut as any other, so nobody gains by it; and
only few pairs of places remain, K = (sum over cuts of rows^2)(the same of columns) instead of (H W)^2.

A second scale averages the patch over cells of `down` pixels a side, alpha w + (1 - alpha) w_coarse. The rows of that
map are orthonormal, also where a cell is cut (1/sqrt(pixels in it)), so the noise of its values is s_t again.

Cost: n K d multiplications and n K exponentials per query and t, d = C patch^2; a random share of the places takes
that share of the time and is unbiased. 14x14, patch 7: K = 70^2 = 4,900, so 10,000 images take 5e7 pairs of 49 numbers,
a quarter of a second on one core. Held: a block of patches, and per noised picture a logarithm for each (place, image).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from guda.data.images import to_float

Patch = int | Literal["whole"]

BLOCK = 2**19  # numbers in one block of training patches


@dataclass(frozen=True)
class Cut:
    """Places whose patch is cut by the edge in the same way: windows of one size, one per top left corner."""

    top: int
    left: int
    rows: int  # so many corners below each other
    columns: int  # and beside each other
    height: int  # of the window
    width: int
    above: int = 0  # pixels that were cut off above the window and left of it
    before: int = 0

    @property
    def places(self) -> int:
        return self.rows * self.columns

    def patches(self, images: np.ndarray) -> np.ndarray:
        """[places, n, d] of images [n, C, H, W]; d = C height width."""
        bottom, right = self.top + self.rows + self.height - 1, self.left + self.columns + self.width - 1
        inside = images[:, :, self.top : bottom, self.left : right]
        windows = np.lib.stride_tricks.sliding_window_view(inside, (self.height, self.width), axis=(2, 3))
        return windows.transpose(2, 3, 0, 1, 4, 5).reshape(self.places, len(images), -1)

    def coarse(self, channels: int, down: int) -> np.ndarray:
        """[d, m] with orthonormal columns: the window averaged over cells of the whole patch's grid."""
        row = (self.above + np.arange(self.height)) // down
        column = (self.before + np.arange(self.width)) // down
        cell = row[:, None] * (column[-1] + 1) + column
        one = (cell.reshape(-1, 1) == np.unique(cell)).astype(np.float64)
        return np.kron(np.eye(channels), one / np.sqrt(one.sum(axis=0)))


def cuts(height: int, width: int, patch: Patch) -> list[Cut]:
    """All places of an image, by how their patches are cut; one place where the patch is the whole image."""
    if patch == "whole":
        return [Cut(0, 0, 1, 1, height, width)]
    return [
        Cut(top, left, rows, columns, h, w, above, before)
        for top, rows, h, above in _line(height, patch // 2)
        for left, columns, w, before in _line(width, patch // 2)
    ]


def _line(side: int, half: int) -> Iterator[tuple[int, int, int, int]]:
    """(first corner, corners, length, pixels cut off before) of the windows along one side; uncut ones are together."""
    whole = max(0, side - 2 * half)
    r = 0
    while r < side:
        before, after = min(r, half), min(side - 1 - r, half)
        count = whole if before == after == half else 1
        yield r - before, count, before + 1 + after, half - before
        r += count


@dataclass(frozen=True, eq=False)
class Noised:
    """One noised picture and the places that are asked about."""

    x: np.ndarray  # float64 [C, H, W]: a x + s eps
    a: float
    s: float
    places: np.ndarray | None = None  # sorted numbers in the order of `cuts`; None: all


def posterior_mass(
    noised: Sequence[Noised],
    images: np.ndarray,
    patch: Patch,
    down: int | None = None,
    alpha: float = 1.0,
    block: int = BLOCK,
    tick: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """float64 [noised, n]: the mass of each training image (uint8 [n, C, H, W]); rows add up to the number of places.

    Everything is float64. |P_u(x_t)|^2 is the same for all that compete, so it is left out, and a block's exponents are
    one product of matrices; what is noised together never meets in it, so a row does not depend on the others.
    """
    scales = [(1.0, None)] if down is None else [(alpha, None), (1 - alpha, down)]
    mass = np.zeros((len(noised), len(images)))
    for weight, cells in scales:
        if weight > 0:
            mass += weight * _mass(noised, images, patch, cells, block, tick)
    return mass


def _mass(
    noised: Sequence[Noised],
    images: np.ndarray,
    patch: Patch,
    down: int | None,
    block: int,
    tick: Callable[[int, int], None] | None,
) -> np.ndarray:
    """The same of one scale."""
    n, channels, height, width = images.shape
    every = cuts(height, width, patch)
    total = sum(cut.places for cut in every)
    asked = [np.arange(total) if one.places is None else one.places for one in noised]
    # log sum_v exp(exponent) for each (place, image): all that is kept of a block
    logs = [torch.empty(len(places), n, dtype=torch.float64) for places in asked]
    first = 0
    for done, cut in enumerate(every):
        rows = [slice(*np.searchsorted(places, (first, first + cut.places))) for places in asked]
        chosen = [places[r] - first for places, r in zip(asked, rows, strict=True)]
        first += cut.places
        if tick is not None:
            tick(done, len(every))
        if not any(map(len, chosen)):
            continue
        coarse = None if down is None else cut.coarse(channels, down)
        left = [_left(x, cut.patches(x.x[None])[at, 0], coarse) for x, at in zip(noised, chosen, strict=True)]
        size = max(1, block // (cut.places * channels * cut.height * cut.width))
        for start in range(0, n, size):
            stop = min(n, start + size)
            right = _right(cut.patches(to_float(images[start:stop]).astype(np.float64)), coarse)
            for factor, log, r in zip(left, logs, rows, strict=True):
                if len(factor):
                    log[r, start:stop] = _sum_over_places((factor @ right).view(-1, cut.places, stop - start))
    weights = [torch.softmax(log, dim=1).sum(dim=0).numpy() for log in logs]
    return np.stack([w * (total / len(places)) for w, places in zip(weights, asked, strict=True)])


def _left(one: Noised, patches: np.ndarray, coarse: np.ndarray | None) -> torch.Tensor:
    """[places, m + 1]: (a / s^2) P_u(x_t), and the factor of |P_v(y)|^2."""
    seen = patches if coarse is None else patches @ coarse
    norm = np.full((len(seen), 1), -((one.a / one.s) ** 2) / 2)
    return torch.from_numpy(np.concatenate([seen * (one.a / one.s**2), norm], axis=1))


def _right(patches: np.ndarray, coarse: np.ndarray | None) -> torch.Tensor:
    """[m + 1, places n]: P_v(y) and |P_v(y)|^2."""
    seen = patches if coarse is None else patches @ coarse
    flat = seen.reshape(-1, seen.shape[2])
    return torch.from_numpy(np.concatenate([flat.T, np.square(flat).sum(axis=1)[None]]))


def _sum_over_places(exponents: torch.Tensor) -> torch.Tensor:
    """log sum exp over dim 1; overwrites what it is given."""
    if exponents.shape[1] == 1:
        return exponents[:, 0]
    highest = exponents.amax(dim=1)
    return exponents.sub_(highest[:, None]).exp_().sum(dim=1).log_().add_(highest)
