"""Similarity attribution: cosine of the query's embedding to each group's mean embedding (the paper's CLIPA rule).

Says which group looks like the picture, not what the model owes it; a baseline. The encoder is a plug-in: `pixel` is
the image itself; CLIP and others come later under the same seam.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from guda.data.images import ImageData
from guda.errors import GudaError

Encoder = Callable[[np.ndarray], np.ndarray]  # uint8 [n, C, H, W] -> float [n, d]

ENCODERS: dict[str, Encoder] = {}


def encoder(name: str) -> Callable[[Encoder], Encoder]:
    """Register an encoder; its method id is similarity-<name>."""

    def register(function: Encoder) -> Encoder:
        ENCODERS[name] = function
        return function

    return register


@encoder("pixel")
def pixels(images: np.ndarray) -> np.ndarray:
    """Intensities in [0, 1]."""
    return images.reshape(len(images), -1) / 255.0


def _unit(vectors: np.ndarray) -> np.ndarray:
    """Rows of length one; an all-zero row (a black image) has no direction and stays zero: cosine 0 to all."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 0)


def group_means(data: ImageData, encode: Encoder) -> np.ndarray:
    """[groups, d]: mean embedding of every group."""
    features = encode(data.images)
    return np.stack([features[data.groups.members(k)].mean(axis=0) for k in range(len(data.groups))])


def cosine_to_means(images: np.ndarray, means: np.ndarray, encode: Encoder) -> np.ndarray:
    """[queries, groups] in [-1, 1]."""
    features = encode(images)
    if features.shape[1] != means.shape[1]:
        raise GudaError(f"queries have {features.shape[1]} features, the groups {means.shape[1]}; same size needed")
    return _unit(features) @ _unit(means).T
