"""Style words as statistics of pixels: what can be said of a small picture without any network.

Every word of STATISTICS is a number per image, larger where the word fits better. The numbers have no common scale: a
word belongs to an image when its number is far above that word's mean over the data set (captioners.py). They are
made for pictures on a white ground (icons, drawings) of 16 pixels or more; larger ones are averaged down to SIDE first,
so that "line" and "edge" mean the same at any size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

SIDE = 32  # pixels a side that pictures are looked at with, at most

CHUNK = 512  # images at a time

DARK, LIGHT, GROUND = 0.3, 0.75, 0.95  # luminance; ground: every channel above it

GREY, MUTED = 0.08, 0.45  # chroma (largest channel less the smallest) below these

SAME, SMOOTH, EDGE = 0.012, 0.09, 0.25  # differences between neighbours: none, up to a gradient, from an edge on


def statistics(images: np.ndarray, words: tuple[str, ...] | None = None) -> np.ndarray:
    """uint8 [n, C, H, W] -> float64 [n, words]."""
    chosen = [STATISTICS[w] for w in words or STATISTICS]
    parts = []
    for start in range(0, len(images), CHUNK):
        view = View(_small(images[start : start + CHUNK]))
        parts.append(np.stack([f(view) for f in chosen], axis=1))
    return np.concatenate(parts).astype(np.float64)


def _small(images: np.ndarray) -> np.ndarray:
    """float32 [n, H, W, 3] in [0, 1], at most about SIDE pixels a side, by averaging whole blocks."""
    x = images.transpose(0, 2, 3, 1).astype(np.float32) / 255
    x = np.repeat(x, 3, axis=-1) if x.shape[-1] == 1 else x
    f = max(1, min(x.shape[1:3]) // SIDE)
    n, h, w = x.shape[0], x.shape[1] // f, x.shape[2] // f
    return x[:, : h * f, : w * f].reshape(n, h, f, w, f, 3).mean(axis=(2, 4))


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Of the pixels in `whole`, how many are in `part`; 0 of nothing. [n]"""
    axes = tuple(range(1, part.ndim))
    return (part & whole).sum(axis=axes) / np.maximum(whole.sum(axis=axes), 1)


def _mean(value: np.ndarray, where: np.ndarray) -> np.ndarray:
    axes = tuple(range(1, where.ndim))
    return (value * where).sum(axis=axes) / np.maximum(where.sum(axis=axes), 1)


def _near(mask: np.ndarray) -> np.ndarray:
    """Pixels with one of `mask` among their four neighbours or themselves."""
    padded = np.pad(mask, ((0, 0), (1, 1), (1, 1)))
    return mask | padded[:, :-2, 1:-1] | padded[:, 2:, 1:-1] | padded[:, 1:-1, :-2] | padded[:, 1:-1, 2:]


@dataclass(frozen=True)
class View:
    """What the statistics look at, each worked out once; pictures float32 [n, H, W, 3]."""

    x: np.ndarray

    @cached_property
    def light(self) -> np.ndarray:
        return self.x @ np.array([0.299, 0.587, 0.114], np.float32)

    @cached_property
    def chroma(self) -> np.ndarray:
        return self.x.max(axis=-1) - self.x.min(axis=-1)

    @cached_property
    def ink(self) -> np.ndarray:
        return self.x.min(axis=-1) <= GROUND

    @cached_property
    def inside(self) -> np.ndarray:
        """Ink, and what has ink on all four sides: the white of an outlined shape is inside."""
        i = self.ink
        sides = [np.maximum.accumulate(i, axis=a) for a in (1, 2)]
        sides += [np.flip(np.maximum.accumulate(np.flip(i, a), axis=a), a) for a in (1, 2)]
        return i | (sides[0] & sides[1] & sides[2] & sides[3])

    @cached_property
    def rim(self) -> np.ndarray:
        """Outermost pixels of the shape, and the next ring: at 16 pixels an antialiased line is two wide."""
        one = self.inside & _near(~self.inside)
        return self.inside & _near(one)

    @cached_property
    def core(self) -> np.ndarray:
        """Inside and not at the rim."""
        return self.inside & ~self.rim

    @cached_property
    def dark(self) -> np.ndarray:
        return self.light < DARK

    @cached_property
    def steps(self) -> tuple[np.ndarray, np.ndarray]:
        """Largest channel difference between neighbours, and whether both lie in the core; rows then columns, flat."""
        n, pairs, both = len(self.x), [], []
        for a in (1, 2):
            pairs.append(np.abs(np.diff(self.x, axis=a)).max(axis=-1).reshape(n, -1))
            first, second = (np.take(self.core, range(s, self.core.shape[a] - 1 + s), axis=a) for s in (0, 1))
            both.append((first & second).reshape(n, -1))
        return np.concatenate(pairs, axis=1), np.concatenate(both, axis=1)

    @cached_property
    def colors(self) -> np.ndarray:
        """Shares of the shape's pixels in 4x4x4 boxes of colour, [n, 64]."""
        boxes = np.minimum((self.x * 4).astype(int), 3) @ np.array([16, 4, 1])
        counts = np.stack([np.bincount(b[i], minlength=64) for b, i in zip(boxes, self.inside, strict=True)])
        return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)

    @cached_property
    def relief(self) -> np.ndarray:
        """Luminance less its mean over 5x5 pixels."""
        h, w = self.light.shape[1:]
        padded = np.pad(self.light, ((0, 0), (3, 2), (3, 2)), mode="edge").cumsum(axis=1).cumsum(axis=2)
        sums = padded[:, 5:, 5:] - padded[:, :-5, 5:] - padded[:, 5:, :-5] + padded[:, :-5, :-5]
        return self.light - sums[:, :h, :w] / 25

    @cached_property
    def box(self) -> tuple[np.ndarray, np.ndarray]:
        """Height and width of the shape's bounding box as shares of the picture's."""
        rows, columns = self.inside.max(axis=2), self.inside.max(axis=1)

        def extent(line: np.ndarray) -> np.ndarray:
            last = line.shape[1] - np.flip(line, 1).argmax(axis=1)
            return np.where(line.any(axis=1), last - line.argmax(axis=1), 0) / line.shape[1]

        return extent(rows), extent(columns)


def _steps_between(low: float, high: float) -> Callable[[View], np.ndarray]:
    def share(v: View) -> np.ndarray:
        size, both = v.steps
        return _share((size > low) & (size <= high), both)

    return share


def _shape_contrast(v: View) -> np.ndarray:
    mean = _mean(v.light, v.inside)[:, None, None]
    return np.sqrt(_mean((v.light - mean) ** 2, v.inside))


def _entropy(v: View) -> np.ndarray:
    return -(v.colors * np.log(np.maximum(v.colors, 1e-12))).sum(axis=1)


def _upper_less_lower(v: View) -> np.ndarray:
    """Core of the upper half against that of the lower."""
    half = v.core.shape[1] // 2
    top, bottom = np.zeros_like(v.core), np.zeros_like(v.core)
    top[:, :half], bottom[:, half:] = v.core[:, :half], v.core[:, half:]
    both = top.any(axis=(1, 2)) & bottom.any(axis=(1, 2))
    return np.where(both, _mean(v.light, top) - _mean(v.light, bottom), 0)


def _thin(v: View) -> np.ndarray:
    """Dark pixels whose neighbours on both sides, across, are clearly lighter: lines a pixel or so wide."""
    d = np.pad(v.light, ((0, 0), (1, 1), (1, 1)), mode="edge")
    lighter = v.light + EDGE
    across = (d[:, :-2, 1:-1] > lighter) & (d[:, 2:, 1:-1] > lighter)
    along = (d[:, 1:-1, :-2] > lighter) & (d[:, 1:-1, 2:] > lighter)
    return _share(across | along, v.inside)


def _highlights(v: View) -> np.ndarray:
    """Light spots on a surface; beside a dark line everything looks light."""
    return _share((v.relief > 0.04) & (v.light > 0.6) & v.ink & ~_near(_near(v.light < 0.5)), v.core)


def _rim_darker(v: View) -> np.ndarray:
    """Coloured rim against the core: an outline in a darker shade of the fill, not one in black."""
    shade = v.rim & (v.chroma >= GREY)
    darker = np.where(shade.any(axis=(1, 2)), _mean(v.light, v.core) - _mean(v.light, shade), 0)
    return darker * (1 - np.minimum(1, 3 * _share(v.dark, v.rim)))


# Opposites are different words ("bold outlines", "borderless"): a text encoder hardly hears "no", "low" and "high".
STATISTICS: dict[str, Callable[[View], np.ndarray]] = {
    # lines
    "bold outlines": lambda v: _share(v.dark, v.rim),
    "thin lines": _thin,
    "shaded rims": _rim_darker,
    "borderless": lambda v: -_share(v.light < 0.5, v.rim),
    "line art": lambda v: _share(~v.ink, v.inside),
    "solid black": lambda v: _share(v.dark & (v.chroma < GREY), v.core),
    # surfaces
    "flat colors": _steps_between(-1, SAME),
    "soft gradients": _steps_between(SAME, 0.04),
    "smooth shading": _steps_between(0.04, SMOOTH),
    "layered tones": _steps_between(SMOOTH, EDGE),
    "hard inner edges": _steps_between(EDGE, 2),
    "glossy highlights": _highlights,
    "dark shading": lambda v: _share((v.light < 0.45) & (v.chroma >= GREY), v.inside),
    "crisp edges": lambda v: _mean(np.abs(v.relief), v.inside),
    "lit from above": _upper_less_lower,
    # colours
    "monochrome": lambda v: _share(v.chroma < GREY, v.inside),
    "vivid colors": lambda v: _share(v.chroma > 0.75, v.inside),
    "muted colors": lambda v: _share((v.chroma >= GREY) & (v.chroma < MUTED) & (v.light < LIGHT), v.inside),
    "pastel": lambda v: _share((v.chroma >= GREY) & (v.chroma < MUTED) & (v.light >= LIGHT), v.inside),
    "warm tones": lambda v: _mean(np.maximum(v.x[..., 0] - v.x[..., 2], 0), v.inside),
    "cool tones": lambda v: _mean(np.maximum(v.x[..., 2] - v.x[..., 0], 0), v.inside),
    "luminous": lambda v: _mean(v.light, v.inside & v.ink),
    "gray tones": lambda v: _share((v.chroma < 2 * GREY) & (v.light > DARK) & v.ink, v.inside),
    "uniform": lambda v: (v.colors**2).sum(axis=1),
    "multicolored": _entropy,
    "high contrast": _shape_contrast,
    "even tones": lambda v: -_shape_contrast(v),
    # composition
    "sparse": lambda v: -v.ink.mean(axis=(1, 2)),
    "filled shapes": lambda v: _share(v.ink, v.inside) * v.inside.mean(axis=(1, 2)),
    "wide margins": lambda v: -np.maximum(*v.box),
    "symmetrical": lambda v: -np.abs(v.light - v.light[:, :, ::-1]).mean(axis=(1, 2)),
}

WORDS = tuple(STATISTICS)
