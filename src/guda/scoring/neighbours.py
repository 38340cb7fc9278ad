"""The images nearest to a picture among some, e.g. those of the group that a verdict names.

Nearness shows what the group has to offer; it is no score and proves no influence. Distances as in scoring/copies.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from guda.scoring.copies import Images, squared_distances

TOP = 5


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Nearest first."""

    index: np.ndarray  # int64 [n], among the training images
    distance: np.ndarray  # float64 [n]
    space: str  # in which they are near


def neighbours(picture: np.ndarray, images: Images, members: np.ndarray, space: str, n: int = TOP) -> Neighbours:
    """`picture` [D]; `images` [M, D] of `members` [M], their positions among the training images. Ties by position."""
    distance = np.sqrt(squared_distances(picture[None], images, None)[0])
    order = np.argsort(distance, kind="stable")[:n]
    return Neighbours(np.asarray(members)[order], distance[order], space)
