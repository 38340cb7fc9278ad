"""Sources: training data by name ("digits") or by path (an image folder).

A new source is a function that returns ImageData, registered with @source("name"). The options it takes are
its keyword parameters among size, group_by, content_by, mode, split and variants; any other option given to it is
refused. One that also takes `path` reads a folder of a known layout, and "name:path" says which.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from guda.data.images import ImageData
from guda.data.partition import noisy_partition
from guda.errors import GudaError, choices, suggestion
from guda.files import ordered

Loader = TypeVar("Loader", bound=Callable[..., ImageData])

_SOURCES: dict[str, Callable[..., ImageData]] = {}


def source(name: str) -> Callable[[Loader], Loader]:
    """Register a loader under `name`."""

    def register(loader: Loader) -> Loader:
        if name in _SOURCES:
            raise GudaError("source-name-taken", f"data source {name!r} is already registered; choose another name")
        _SOURCES[name] = loader
        return loader

    return register


def known_sources() -> tuple[str, ...]:
    return tuple(sorted(_SOURCES))


@source("digits")
def _digits() -> ImageData:
    from guda.data.digits import load_digits_data

    return load_digits_data()


@source("fashion-mnist")
def _fashion_mnist(size: int | None = None) -> ImageData:
    from guda.data.fashion import load_fashion

    return load_fashion(size)


@source("emoji")
def _emoji(size: int | None = None) -> ImageData:
    from guda.data.emoji import load_emoji

    return load_emoji(size)


@source("fonts")
def _fonts(path: str | None = None, size: int | None = None, variants: int | None = None) -> ImageData:
    from guda.data.fonts import load_fonts

    return load_fonts(path, size, variants)


@source("cifar10")
def _cifar10(path: str | None = None, size: int | None = None, split: str | None = None) -> ImageData:
    from guda.data.cifar10 import load_cifar10

    return load_cifar10(path, size, split)


@source("unlearncanvas")
def _unlearncanvas(path: str | None = None, size: int | None = None) -> ImageData:
    from guda.data.unlearncanvas import load_unlearncanvas

    return load_unlearncanvas(path, size)


def load_source(
    name_or_path: str,
    *,
    size: int | None = None,
    group_by: str | None = None,
    mode: str | None = None,
    content_by: str | None = None,
    split: str | None = None,
    variants: int | None = None,
    groups: Sequence[str] | None = None,
    limit_per_group: int | None = None,
    limit_contents: int | None = None,
    partition: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> ImageData:
    """A registered source, or the image folder at a path; write ./digits for a folder named like a source.

    groups: only these, in the source's order.
    limit_contents: images of so many contents (objects) only, the same in every group, drawn by `seed`.
    limit_per_group: at most this many images of each group, drawn by `seed`; the order of the images is kept.
    partition: {fraction, seed}: last of all, so large a share of every group gets other groups' names.
    """
    name = str(name_or_path)
    known, _, path = name.partition(":")
    loader: Callable[..., ImageData]
    if name in _SOURCES:
        loader = _SOURCES[name]
    elif path and "path" in (inspect.signature(_SOURCES[known]).parameters if known in _SOURCES else ()):
        loader = partial(_SOURCES[known], path=path)
    elif "/" in name or os.sep in name or os.path.exists(name):

        def loader(
            size: int | None = None,
            group_by: str | None = None,
            mode: str | None = None,
            content_by: str | None = None,
        ) -> ImageData:
            return ImageData.from_folder(name, group_by=group_by, size=size, mode=mode, content_by=content_by)
    else:
        raise GudaError(
            "source-unknown",
            f"unknown data source {name!r}; the sources are {choices(known_sources())}, "
            f"and any path to an image folder{suggestion(name, known_sources())}",
        )
    given: dict[str, Any] = {
        "size": size, "group_by": group_by, "mode": mode, "content_by": content_by, "split": split, "variants": variants
    }  # fmt: skip
    options = {key: value for key, value in given.items() if value is not None}
    takes = [key for key in given if key in inspect.signature(loader).parameters]
    for key in options:
        if key not in takes:
            raise GudaError(
                "source-option-unknown",
                f"data source {name!r} does not take {key} (given: {options[key]!r}); "
                + (f"it takes {choices(takes)}" if takes else "it takes no such options"),
            )
    data = loader(**options)
    data = data if groups is None else data.branches(groups)
    data = data if limit_contents is None else keep_contents(data, limit_contents, seed)
    data = data if limit_per_group is None else limit_groups(data, limit_per_group, seed)
    return data if partition is None else noisy_partition(data, **partition)


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
