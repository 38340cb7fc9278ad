"""A style x object set of 16 pixels a side whose styles can be told by eye: four ways to draw three shapes."""

from __future__ import annotations

import numpy as np

from guda.data.groups import Groups
from guda.data.images import ImageData

STYLES = ("flat", "gradient", "ink", "outline")
OBJECTS = ("ball", "box, with lid", "bar")
COLORS = ((0.9, 0.6, 0.1), (0.1, 0.5, 0.9), (0.8, 0.1, 0.3), (0.2, 0.7, 0.3), (0.6, 0.3, 0.8))


def draw(style: str, thing: str, i: int, size: int = 16) -> np.ndarray:
    """uint8 [3, size, size] on white."""
    y, x = (np.mgrid[:size, :size] + 0.5) / size
    r = {"ball": np.hypot(x - 0.5, y - 0.5), "bar": np.maximum(np.abs(x - 0.5) / 0.45, np.abs(y - 0.5)) * 0.9}
    depth = 0.4 - r.get(thing, np.maximum(np.abs(x - 0.5), np.abs(y - 0.5)))  # positive inside
    inside, rim = depth > 0, (depth > 0) & (depth < 0.08)
    color = np.array(COLORS[i % len(COLORS)])[:, None, None]
    picture = np.ones((3, size, size))
    if style == "flat":
        picture = np.where(inside, color, picture)
    elif style == "gradient":
        picture = np.where(inside, color + (1 - color) * 0.5 * (1 - y), picture)
    elif style == "ink":
        picture = np.where(inside & (((x * 5).astype(int) + i) % 2 == 0), 0.0, picture)
        picture = np.where(rim, 0.0, picture)
    else:
        picture = np.where(rim, 0.0, np.where(inside, color, picture))
    return (picture * 255).round().astype(np.uint8)


def styled(each: int = 5, styles: tuple[str, ...] = STYLES, contents: bool = True) -> ImageData:
    """`each` images of every (style, object), ids like flat/ball/0."""
    rows = [(s, o, i) for s in styles for o in OBJECTS for i in range(each)]
    images = np.stack([draw(*row) for row in rows])
    ids = tuple(f"{s}/{o}/{i}" for s, o, i in rows)
    shown = tuple(o for _, o, _ in rows) if contents else None
    return ImageData(images, ids, Groups.from_labels([s for s, _, _ in rows]), "styled", {}, shown)
