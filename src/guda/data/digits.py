"""The scikit-learn digits: 1,797 grey 8x8 images in ten groups, on every machine without a download."""

from __future__ import annotations

import numpy as np

from guda.data.groups import Groups
from guda.data.images import ImageData
from guda.data.sources import DataSize, source


@source("digits", DataSize(10, 180, (1, 8, 8)))  # 1,797 in all
def load_digits_data() -> ImageData:
    """Ink 0..16 becomes round(v * 255 / 16); groups are the digits "0".."9"."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.rint(bunch.images * 255 / 16).astype(np.uint8)[:, None]
    ids = tuple(f"digit-{i:04d}" for i in range(len(images)))
    groups = Groups.from_labels([str(label) for label in bunch.target])
    return ImageData(images, ids, groups, "digits", {"source": "scikit-learn load_digits"})
