"""Data sources: training images by name ("digits"), or from the image folder at a path.

A new source is one file with one function:

    @source("shapes")
    def load_shapes(size: int | None = None, colours: int = 3) -> ImageData: ...

guda's own files are listed in SOURCES; another package names its module under the entry-point group "guda.sources".
The keyword parameters are the options that the source takes, from the recipe's `data` section (size, group_by,
content_by, mode, split, variants) or from its `data.options` (everything else); options that it does not take are an
error. A source that takes `path` reads a copy of a published data set: "cifar10:PATH".

Noisy partitions: what attribution is worth where some images carry another group's name.

A balanced derangement without self: every group exports m images and receives m, and no exported image comes back to
its own group, so all groups keep their sizes and n - N m images keep their names. m = round(fraction x the smallest
group's size), the same number for every group: with a share of each group's own size the margins could not balance.

Which images leave is the keyed order of their ids (files.py). The j-th exported images of all groups form one
round, and round j sends group g's to sigma_j(g), sigma_j a keyed permutation of the group names without fixed points:
every round is balanced by itself. Nothing depends on the order of images or groups.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, TypeVar

import numpy as np
from pydantic import ValidationError, validate_call

from guda.config import DataConfig
from guda.data.groups import Groups
from guda.data.images import ImageData
from guda.errors import GudaError, choices, suggestion
from guda.files import ordered
from guda.registry import Registry

Load = TypeVar("Load", bound=Callable[..., ImageData])

BENCHMARKS = ("emoji", "fonts")  # sources of the package in benchmarks/sources, which is not on PyPI


@dataclass(frozen=True)
class DataSize:
    """What is known of a data set without reading it, to plan a run before the data are on this machine."""

    groups: int
    per_group: int  # images
    shape: tuple[int, int, int]
    objects: int | None = None  # things that every group shows, where prompts name them

    def select(self, config: DataConfig) -> DataSize:
        """What a recipe keeps of it."""
        groups = self.groups if config.groups is None else len(config.groups)
        objects, images = self.objects, self.per_group
        if objects is not None and config.limit_contents is not None:
            images, objects = images // objects * config.limit_contents, config.limit_contents
        images = min(images, config.limit_per_group or images)
        side = config.size or self.shape[1]
        return DataSize(groups, images, (self.shape[0], side, side), objects)


@dataclass(frozen=True)
class Source:
    load: Callable[..., ImageData]
    size: DataSize | Callable[[DataConfig], DataSize] | None = None


SOURCES: Registry[Source] = Registry(
    "source",
    "guda.sources",
    ["guda.data.digits", "guda.data.fashion", "guda.data.cifar10", "guda.data.unlearncanvas"],
)


def source(name: str, size: DataSize | Callable[[DataConfig], DataSize] | None = None) -> Callable[[Load], Load]:
    """Register the decorated function as the source `name`; `size` lets `guda plan RECIPE` work without the data."""

    def register(load: Load) -> Load:
        SOURCES.register(name)(Source(load, size))
        return load

    return register


def known_size(config: DataConfig) -> DataSize:
    """What a recipe's `data` section selects, without reading any data."""
    found = SOURCES.get(config.source.partition(":")[0])
    if found is None or found.size is None:
        raise GudaError(
            "data-size-unknown",
            f"the size of data source {config.source!r} is not known here; make the run, then plan it",
        )
    size = found.size if isinstance(found.size, DataSize) else found.size(config)
    return size.select(config)


def load_source(
    name_or_path: str,
    *,
    groups: Sequence[str] | None = None,
    limit_per_group: int | None = None,
    limit_contents: int | None = None,
    partition: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    **shared: Any,
) -> ImageData:
    """A registered source, or the image folder at a path; write ./digits for a folder named like a source.

    groups: only these, in the source's order.
    limit_contents: images of so many contents (objects) only, the same in every group, drawn by `seed`.
    limit_per_group: at most this many images of each group, drawn by `seed`; the order of the images is kept.
    partition: {fraction, seed}: last of all, so large a share of every group gets other groups' names.
    options, shared: the source's own options; those that are None are left out.
    """
    given = {key: value for key, value in shared.items() if value is not None} | dict(options or {})
    data = _load(str(name_or_path), given)
    data = data if groups is None else data.branches(groups)
    data = data if limit_contents is None else keep_contents(data, limit_contents, seed)
    data = data if limit_per_group is None else limit_groups(data, limit_per_group, seed)
    return data if partition is None else noisy_partition(data, **partition)


def load_test_split(config: DataConfig, per_group: int) -> ImageData | None:
    """Images of the test split, prepared as the training images are, at most `per_group` of each group; None where the
    source has no such split, or this copy of it does not."""
    if config.split == "test" or "split" not in inspect.signature(_find(config.source)).parameters:
        return None
    wanted = {"split": "test", "partition": None, "limit_contents": None, "limit_per_group": per_group}
    options = config.model_dump() | wanted
    try:
        return load_source(options.pop("source"), **options)
    except GudaError:
        return None


def _load(name: str, options: Mapping[str, Any]) -> ImageData:
    load = _find(name)
    takes = [key for key in inspect.signature(load).parameters if key != "path"]
    for key, value in options.items():
        if key not in takes:
            raise GudaError(
                "source-option-unknown",
                f"data source {name!r} does not take {key} (given: {value!r}); "
                + (f"it takes {choices(takes)}" if takes else "it takes no such options"),
            )
    try:
        return validate_call(load)(**options)
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise GudaError("source-option-invalid", f"data source {name!r}: {where}: {first['msg']}") from None


def _find(name: str) -> Callable[..., ImageData]:
    if name in SOURCES:
        return SOURCES[name].load
    known, _, path = name.partition(":")
    if path and known in SOURCES and "path" in inspect.signature(SOURCES[known].load).parameters:
        return partial(SOURCES[known].load, path=path)
    if "/" in name or os.sep in name or os.path.exists(name):
        return partial(_folder, path=name)
    if known in BENCHMARKS and known not in SOURCES:
        fix = "; it comes with guda's benchmarks, in a checkout run: pip install -e benchmarks/sources"
    else:
        fix = suggestion(name, sorted(SOURCES))
    raise GudaError(
        "source-unknown",
        f"unknown data source {name!r}; the sources are {choices(sorted(SOURCES))}, "
        f"and any path to an image folder{fix}",
    )


def _folder(
    path: str,
    size: int | None = None,
    group_by: str | None = None,
    mode: str | None = None,
    content_by: str | None = None,
    skip_bad: bool = False,
) -> ImageData:
    return ImageData.from_folder(path, group_by, size, mode, content_by, skip_bad)


def keep_contents(data: ImageData, n: int, seed: int) -> ImageData:
    """The images of `n` contents, in their old order; which ones depends on their names and `seed` alone."""
    if data.contents is None:
        raise GudaError(
            "contents-missing", f"limit_contents: data {data.name!r} do not say what each image shows; give content_by"
        )
    names = sorted(set(data.contents))
    if n > len(names):
        raise GudaError(
            "contents-too-few",
            f"limit_contents = {n}, but the images of {data.name!r} show {len(names)} different things",
        )
    kept = set(ordered(names, seed, "contents")[:n])
    taken = data.take(np.array([i for i, content in enumerate(data.contents) if content in kept]))
    return replace(taken, meta={**data.meta, "limit_contents": int(n), "limit_seed": int(seed)})


def limit_groups(data: ImageData, limit: int, seed: int) -> ImageData:
    """At most `limit` images per group (of a tree: per leaf), in their old order. Groups that share images keep what
    any of them drew, so one may keep more.

    Each group draws from its own stream, keyed (seed, group name), so what is kept of one group does not
    depend on which other groups there are.
    """
    for what, value, least in (("limit_per_group", limit, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise GudaError("number-invalid", f"{what} must be a whole number, at least {least}, got {value!r}")
    kept = []
    for k in data.groups.leaves:
        name = data.groups.names[k]
        key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little")
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([int(seed), key])))
        kept.append(rng.permutation(data.groups.members(k))[:limit])
    taken = data.take(np.unique(np.concatenate(kept)))
    return replace(taken, meta={**data.meta, "limit_per_group": int(limit), "limit_seed": int(seed)})


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
