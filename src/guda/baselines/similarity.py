"""Similarity attribution: how near the query's embedding is to each group's (the paper's CLIPA rule).

    mean      cos(e(x), mean_i e(x_i))      the group's mean embedding (the paper's runs)
    cosines   mean_i cos(e(x), e(x_i))      the mean of cosines (the paper's definition)

The second is <u(x), mean_i u(x_i)> with u = e / |e|, so both need one vector per group. They order groups differently
only where a group's embeddings differ in length or in how widely they spread.

Says which group looks like the picture, not what the model owes it; a baseline. The encoder is a plug-in: `pixel` is
the image itself; networks are in encoders.py and efficientnet.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from guda.data.images import ImageData
from guda.diffusion.noise import generator
from guda.errors import GudaError

Encoder = Callable[[np.ndarray], np.ndarray]  # uint8 [n, C, H, W] -> float [n, d]
Similarity = Literal["mean", "cosines"]

ENCODERS: dict[str, Encoder] = {}


def encoder(name: str) -> Callable[[Encoder], Encoder]:
    """Register an encoder without settings; its method id is similarity-<name>."""

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


def exemplars(data: ImageData, k: int, per_group: int | None) -> np.ndarray:
    """Which images stand for group k: all, or `per_group` of them, drawn by the group's name alone."""
    members = data.groups.members(k)
    if per_group is None or per_group >= len(members):
        return members
    return np.sort(generator("similarity", data.groups.names[k]).permutation(members)[:per_group])


def group_means(
    data: ImageData, encode: Encoder, rule: Similarity = "mean", per_group: int | None = None
) -> np.ndarray:
    """[groups, d]: mean of every group's embeddings, made unit length before where the rule is `cosines`."""
    chosen = [exemplars(data, k, per_group) for k in range(len(data.groups))]
    used = np.unique(np.concatenate(chosen))
    features = encode(data.images if len(used) == data.n else data.images[used])
    features = _unit(features) if rule == "cosines" else features
    return np.stack([features[np.searchsorted(used, members)].mean(axis=0) for members in chosen])


def cosine_to_means(images: np.ndarray, means: np.ndarray, encode: Encoder, rule: Similarity = "mean") -> np.ndarray:
    """[queries, groups] in [-1, 1]."""
    return cosines(encode(images), means, rule)


def cosines(features: np.ndarray, means: np.ndarray, rule: Similarity = "mean") -> np.ndarray:
    """The same for embedded queries."""
    if features.shape[1] != means.shape[1]:
        raise GudaError(f"queries have {features.shape[1]} features, the groups {means.shape[1]}; same size needed")
    return _unit(features) @ (_unit(means) if rule == "mean" else means).T
