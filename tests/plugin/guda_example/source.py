"""A data source: stripes of random width and phase, in groups by their direction."""

import numpy as np

from guda.data.groups import Groups
from guda.data.images import ImageData
from guda.data.sources import DataSize, source

DIRECTIONS = {"across": (0, 1), "down": (1, 0), "diagonal": (1, 1)}


@source("stripes", DataSize(groups=3, per_group=16, shape=(1, 8, 8)))  # for `guda plan`; may be left out
def load_stripes(size: int = 8, per_group: int = 16, seed: int = 0) -> ImageData:
    """The parameters are options: `data.size`, and `data.options` for those that only this source has."""
    rng = np.random.default_rng(seed)
    x, y = np.meshgrid(np.arange(size), np.arange(size))
    images, labels = [], []
    for name, (dx, dy) in DIRECTIONS.items():
        for _ in range(per_group):
            wave = np.sin((dx * x + dy * y) * rng.uniform(0.6, 1.4) + rng.uniform(0, 2 * np.pi))
            images.append(np.rint(127.5 * (1 + wave)).astype(np.uint8)[None])
            labels.append(name)
    ids = tuple(f"stripes-{i:04d}" for i in range(len(images)))
    return ImageData(np.stack(images), ids, Groups.from_labels(labels), "stripes", {"seed": seed})
