"""Noisy partitions: what attribution is worth where some images carry another group's name.

A balanced derangement without self: every group exports m images and receives m, and no exported image comes back to
its own group, so all groups keep their sizes and n - N m images keep their names. m = round(fraction x the smallest
group's size), the same number for every group: with a share of each group's own size the margins could not balance.

Which images leave is the keyed order of their ids (files.py). The j-th exported images of all groups form one
round, and round j sends group g's to sigma_j(g), sigma_j a keyed permutation of the group names without fixed points:
every round is balanced by itself. Nothing depends on the order of images or groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from guda.data.groups import Groups
from guda.data.images import ImageData
from guda.errors import GudaError
from guda.files import ordered


def moved_per_group(groups: Groups, fraction: float) -> int:
    """m, refused where it is nothing at all."""
    if not 0 < fraction < 1:
        raise GudaError(
            "partition-fraction-invalid", f"data.partition.fraction = {fraction:g} must lie between 0 and 1"
        )
    smallest = min(groups.sizes)
    m = round(fraction * smallest)
    if m < 1:
        name = groups.names[groups.sizes.index(smallest)]
        raise GudaError(
            "partition-fraction-small",
            f"data.partition.fraction = {fraction:g} of the smallest group ({name!r}, {smallest} images) is less than "
            "one image; raise it, or leave data.partition out",
        )
    return m


def derangement(names: Sequence[str], *key: str | int) -> list[str]:
    """A uniform permutation of `names` in which none stays: drawn until there is one, 2.7 times on average."""
    known = sorted(names)
    for attempt in count():
        drawn = dict(zip(known, ordered(known, *key, attempt), strict=True))
        if all(name != target for name, target in drawn.items()):
            return [drawn[name] for name in names]
    raise AssertionError


def noisy_partition(data: ImageData, fraction: float = 0.05, seed: int = 42) -> ImageData:
    """The same images in the same order, a share of each group under other groups' names."""
    groups = data.groups
    if groups.parents is not None or not groups.disjoint:
        raise GudaError(
            "partition-groups-overlap",
            "data.partition exchanges names between groups, and these share images; leave it out",
        )
    m = moved_per_group(groups, fraction)
    place = {name: i for i, name in enumerate(data.ids)}
    leaving = [
        ordered([data.ids[i] for i in groups.members(k)], seed, "partition", "export", name)[:m]
        for k, name in enumerate(groups.names)
    ]
    membership = groups.membership.copy()
    for j in range(m):
        targets = derangement(groups.names, seed, "partition", "round", j)
        for k, target in enumerate(targets):
            i = place[leaving[k][j]]
            membership[i] = np.array([name == target for name in groups.names])
    meta = {**data.meta, "partition": {"fraction": float(fraction), "seed": int(seed), "moved_per_group": m}}
    return replace(data, groups=Groups(groups.names, membership), meta=meta)
