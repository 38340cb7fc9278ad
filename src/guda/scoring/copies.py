"""Does a picture nearly repeat one training image? Told by distances alone, in the space in which the model works.

A copy is a picture for which both hold:

    distance    to its nearest training image is below half of what is usual at the near end: of the run's own samples,
                and of training images among themselves, the larger of the two (samples may be copies themselves)
    posterior   at the noise level where half of the mass is on one image for usual pictures, more than half of it is
                on this image and its twins: no crowd of similar images explains the picture as well

    posterior of image i at noise sigma:  softmax_i( -|x - x_i|^2 / (2 sigma^2) )

Twins are training images that are the same for this purpose (planted duplicates, the next frame): closer than a tenth
of the median distance of two images. Distances are computed in float64 in blocks of a fixed size, so that a picture's
answer does not depend on those beside it. With flips in training, an image and its mirror image are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from guda.data.images import ImageData
from guda.scoring.origin import Copied

TWINS = 0.1  # of the median distance of two training images

NEAR = 0.5  # of the usual distance at the near end

MASS = 0.5  # on one image

ASKED = 512  # training images whose own neighbours are looked up, evenly spread over the data

LEVELS = 2.0 ** np.arange(-4.0, 1.01, 0.25)  # noise, over the median distance of a training image to its nearest

BLOCK, CHUNK = 32, 4096  # pictures and training images whose distances are computed together


@dataclass(frozen=True, eq=False)
class Nearest:
    """Of every picture: the nearest training image, how far it is, and the posterior mass on it and its twins."""

    index: np.ndarray  # int64 [n]
    distance: np.ndarray  # float64 [n]
    mass: np.ndarray  # float64 [n, levels]


@dataclass(frozen=True, eq=False)
class Crowding:
    """How close training images are to each other, twins left out."""

    twins: float  # images that are closer are twins
    levels: np.ndarray  # noise levels at which posteriors are computed
    among: Nearest  # of some training images, among the others

    @property
    def known(self) -> bool:
        """Not where all images are twins."""
        return len(self.among.distance) > 0


Images = np.ndarray  # float [n, D]: x_0 of the model, flattened


def crowding(images: Images, mirrored: Images | None = None) -> Crowding:
    """Of the training images."""
    own = np.unique(np.linspace(0, len(images) - 1, min(ASKED, len(images))).round().astype(int))
    squares = squared_distances(images[own], images, mirrored)
    apart = np.arange(len(images)) != own[:, None]
    twins = TWINS * float(np.sqrt(np.median(squares[apart]))) if apart.any() else 0.0
    squares[~apart | (squares <= twins**2)] = np.inf
    lone = np.isfinite(squares).any(axis=1)
    if not lone.any():
        return Crowding(twins, LEVELS, Nearest(np.empty(0, np.int64), np.empty(0), np.empty((0, len(LEVELS)))))
    squares = squares[lone]
    levels = LEVELS * float(np.median(np.sqrt(squares.min(axis=1))))
    return Crowding(twins, levels, _nearest(squares, images, mirrored, twins, levels))


def nearest(pictures: Images, images: Images, mirrored: Images | None, about: Crowding) -> Nearest:
    """Each picture alone gives the same as among others."""
    blocks = []
    for start in range(0, len(pictures), BLOCK):
        block = pictures[start : start + BLOCK]
        one = _nearest(squared_distances(block, images, mirrored), images, mirrored, about.twins, about.levels)
        exact = [np.square(block.astype(np.float64) - kind[one.index]).sum(axis=1)
                 for kind in (images, mirrored) if kind is not None]  # fmt: skip
        blocks.append(Nearest(one.index, np.sqrt(np.min(exact, axis=0)), one.mass))
    return Nearest(*(np.concatenate([getattr(f, name) for f in blocks]) for name in ("index", "distance", "mass")))


def find_copies(found: Nearest, samples: Nearest | None, about: Crowding) -> tuple[np.ndarray, float]:
    """(bool [n]: which pictures are copies; the usual distance). `samples`: of the model's own pictures, if there are
    any."""
    if not about.known:
        return np.zeros(len(found.index), bool), 0.0
    usual = [about.among] if samples is None or not len(samples.index) else [samples, about.among]
    limit = NEAR * max(_near_end(k.distance) for k in usual)
    level = min(_spread(k.mass) for k in usual)
    return (found.distance < limit) & (found.mass[:, level] > MASS), float(np.median(usual[0].distance))


def find_copied(
    found: Nearest, samples: Nearest | None, about: Crowding, data: ImageData, groups: Sequence[str] = ()
) -> list[Copied | None]:
    """The image that each picture nearly repeats, with its groups (those among `groups`); None: no image."""
    copies, usual = find_copies(found, samples, about)
    return [
        (data.ids[i], data.groups.of_image(int(i), groups), float(d / usual)) if copy else None
        for copy, i, d in zip(copies, found.index, found.distance, strict=True)
    ]


def _near_end(distances: np.ndarray) -> float:
    """Where one in a hundred would be, were the lower tail the mirror image of the upper one (of logarithms): copies
    among the pictures only change the lower."""
    middle = float(np.median(distances))
    return middle**2 / max(float(np.quantile(distances, 0.99)), 1e-300)


def _spread(mass: np.ndarray) -> int:
    """The lowest noise level at which usual pictures have no more than half of their mass on one image."""
    below = np.flatnonzero(np.median(mass, axis=0) <= MASS)
    return int(below[0]) if len(below) else mass.shape[1] - 1


def _nearest(squares: np.ndarray, images: Images, mirrored: Images | None, twins: float, levels: np.ndarray) -> Nearest:
    """From squared distances [b, N]; infinite: this image does not count."""
    index = squares.argmin(axis=1)
    least = squares[np.arange(len(squares)), index]
    mass = np.empty((len(squares), len(levels)))
    for start in range(0, len(squares), BLOCK):
        here = slice(start, start + BLOCK)
        alike = squared_distances(images[index[here]], images, mirrored) <= twins**2
        alike[np.arange(len(alike)), index[here]] = True  # rounding may say that an image is not quite itself
        for k, level in enumerate(levels):
            weights = np.exp(-(squares[here] - least[here, None]) / (2 * level**2))
            mass[here, k] = np.where(alike, weights, 0).sum(axis=1) / weights.sum(axis=1)
    return Nearest(index, np.sqrt(least), mass)


def squared_distances(pictures: Images, images: Images, mirrored: Images | None) -> np.ndarray:
    """Squared distances, float64 [n, N]; to an image or its mirror image, whichever is nearer."""
    out = np.empty((len(pictures), len(images)))
    for start in range(0, len(pictures), BLOCK):
        block = np.zeros((BLOCK, pictures.shape[1]))  # padded: another size of a product has other last bits
        block[: len(pictures) - start] = pictures[start : start + BLOCK]
        for first in range(0, len(images), CHUNK):
            here = slice(first, first + CHUNK)
            both = [_product(block, kind[here]) for kind in (images, mirrored) if kind is not None]
            out[start : start + BLOCK, here] = np.min(both, axis=0)[: len(pictures) - start]
    return out


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    b = b.astype(np.float64)
    sizes = np.square(a).sum(axis=1)[:, None] + np.square(b).sum(axis=1)
    return np.asarray(np.maximum(sizes - 2 * a @ b.T, 0))
