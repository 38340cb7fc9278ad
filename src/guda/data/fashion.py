"""Fashion-MNIST: 60,000 grey 28x28 images in ten groups, from Debian's package or a folder with the same files."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np

from guda.data.groups import Groups
from guda.data.images import ImageData
from guda.data.sources import DataSize, source
from guda.errors import GudaError

DEBIAN = Path("/usr/share/datasets/fashion-mnist")

VARIABLE = "GUDA_FASHION_MNIST"  # another folder that holds the four .gz files

NAMES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle-boot")


def _read(path: Path, header: int) -> np.ndarray:
    try:
        return np.frombuffer(gzip.decompress(path.read_bytes())[header:], np.uint8)
    except FileNotFoundError:
        raise GudaError(
            "fashion-missing",
            f"Fashion-MNIST is not here ({path}); on Debian or Ubuntu: apt-get install dataset-fashion-mnist, "
            f"or set {VARIABLE} to a folder with its .gz files",
        ) from None
    except (OSError, EOFError) as e:
        raise GudaError("fashion-damaged", f"{path} is damaged ({e}); install it again") from None


@source("fashion-mnist", DataSize(len(NAMES), 6000, (1, 28, 28)))
def load_fashion(size: int | None = None) -> ImageData:
    """The training split; `size` shrinks by averaging whole blocks of pixels (14 or 7)."""
    folder = Path(os.environ.get(VARIABLE, DEBIAN))
    labels = _read(folder / "train-labels-idx1-ubyte.gz", 8)
    images = _read(folder / "train-images-idx3-ubyte.gz", 16)
    if len(images) != len(labels) * 28 * 28:
        raise GudaError(
            "fashion-labels-mismatch",
            f"{folder}: {len(labels)} labels but {len(images) // 784} images; install it again",
        )
    images = images.reshape(-1, 1, 28, 28)
    if size is not None and size != 28:
        if 28 % size:
            raise GudaError(
                "fashion-size-unsupported", f"fashion-mnist: --size {size}: 28 pixels shrink evenly to 14, 7 or 4 only"
            )
        step = 28 // size
        blocks = images.reshape(-1, 1, size, step, size, step).mean(axis=(3, 5))
        images = np.rint(blocks).astype(np.uint8)
    ids = tuple(f"fashion-{i:05d}" for i in range(len(labels)))
    groups = Groups.from_labels([NAMES[label] for label in labels])
    return ImageData(images, ids, groups, "fashion-mnist", {"source": "fashion-mnist", "size": size or 28})
