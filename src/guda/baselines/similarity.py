"""Similarity attribution: how near the query's embedding is to each group's (the paper's CLIPA rule).

    mean      cos(e(x), mean_i e(x_i))      the group's mean embedding (the paper's runs)
    cosines   mean_i cos(e(x), e(x_i))      the mean of cosines (the paper's definition)
    sum, max, median, top<m>                of the cosines to the group's images (influence.py)

`cosines` is <u(x), mean_i u(x_i)> with u = e / |e|, so the first two need one vector per group. They order groups
differently only where a group's embeddings differ in length or in how widely they spread. The others need every image:
`max` is the nearest neighbour, `top10` the ten nearest of each group.

A baseline: it shows which group looks like the picture, not what the model learned from it. Encoders without settings
are registered here: `pixel` is the image itself; networks are in encoders.py.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from guda.baselines.influence import by_group
from guda.data.images import ImageData
from guda.diffusion.noise import generator
from guda.errors import GudaError
from guda.registry import Registry

Encoder = Callable[[np.ndarray], np.ndarray]  # uint8 [n, C, H, W] -> float [n, d]

RULES = r"^(mean|cosines|sum|max|median|top[1-9][0-9]*)$"

OF_MEANS = ("mean", "cosines")  # rules that one vector per group is enough for

# without settings; the method is similarity-<name>
ENCODERS = Registry[Encoder]("encoder", "guda.encoders")


@ENCODERS.register("pixel")
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


def _embedded(data: ImageData, encode: Encoder, per_group: int | None) -> tuple[np.ndarray, list[np.ndarray]]:
    """Embeddings [m, d] of the images that stand for any group, and for each group its positions among them."""
    chosen = [exemplars(data, k, per_group) for k in range(len(data.groups))]
    used = np.unique(np.concatenate(chosen))
    features = encode(data.images if len(used) == data.n else data.images[used])
    return features, [np.searchsorted(used, members) for members in chosen]


def group_means(data: ImageData, encode: Encoder, rule: str = "mean", per_group: int | None = None) -> np.ndarray:
    """[groups, d]: mean of every group's embeddings, made unit length before where the rule is `cosines`."""
    features, groups = _embedded(data, encode, per_group)
    features = _unit(features) if rule == "cosines" else features
    return np.stack([features[members].mean(axis=0) for members in groups])


def group_embeddings(data: ImageData, encode: Encoder, per_group: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Unit embeddings [m, d] of the images that stand for a group, and which group [m, groups] (bool)."""
    features, groups = _embedded(data, encode, per_group)
    member = np.zeros((len(features), len(groups)), bool)
    for k, positions in enumerate(groups):
        member[positions, k] = True
    return _unit(features), member


def cosines(features: np.ndarray, means: np.ndarray, rule: str = "mean") -> np.ndarray:
    """[queries, groups] in [-1, 1], of embedded queries."""
    _check_size(features, means)
    return _unit(features) @ (_unit(means) if rule == "mean" else means).T


def cosines_to_images(features: np.ndarray, units: np.ndarray, member: np.ndarray, rule: str) -> np.ndarray:
    """[queries, groups]: the cosines to each group's images brought together by `rule`, which is not one of means."""
    _check_size(features, units)
    asked = _unit(features)
    groups = [np.flatnonzero(column) for column in member.T]
    return by_group(lambda images: asked @ units[images].T, groups, rule)


def _check_size(features: np.ndarray, groups: np.ndarray) -> None:
    if features.shape[1] != groups.shape[1]:
        raise GudaError(
            "feature-size-mismatch",
            f"queries have {features.shape[1]} features, the groups {groups.shape[1]}; same size needed",
        )
