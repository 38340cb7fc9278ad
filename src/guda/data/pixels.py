"""Pixels: the one stored form, uint8 [n, C, H, W], and the way to and from the floats a network sees."""

from __future__ import annotations

import numpy as np

from guda.errors import GudaError

CHANNELS = (1, 3)


def to_float(images: np.ndarray) -> np.ndarray:
    """uint8 -> float32 in [-1, 1]: x / 127.5 - 1."""
    if images.dtype != np.uint8:
        raise GudaError("pixels-dtype-invalid", f"to_float takes uint8 pixels, got {images.dtype}")
    return images.astype(np.float32) / np.float32(127.5) - np.float32(1)


def to_uint8(values: np.ndarray) -> np.ndarray:
    """Floats in [-1, 1] -> uint8, rounded; what a sampler leaves beyond the range is clipped."""
    if values.dtype.kind != "f":
        raise GudaError("pixels-dtype-invalid", f"to_uint8 takes floats in [-1, 1], got {values.dtype}")
    scaled = (values.astype(np.float32) + np.float32(1)) * np.float32(127.5)
    if np.isnan(scaled).any():
        raise GudaError("pixels-not-finite", "to_uint8 got NaN pixels; the model that made them has diverged")
    return np.clip(np.rint(scaled), 0, 255).astype(np.uint8)


def freeze(array: np.ndarray) -> np.ndarray:
    """A C-contiguous array nobody can write to, so that a digest taken of it stays true.

    Writable arrays are copied (their owner may still change them); read-only ones are taken as they are.
    """
    array = np.array(array, order="C") if array.flags.writeable else np.ascontiguousarray(array)
    array.setflags(write=False)
    return array


def check_pixels(images: np.ndarray, what: str) -> np.ndarray:
    """Frozen uint8 [n, C, H, W] with n >= 1 and C 1 or 3, or an error."""
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 4:
        found = f"{images.dtype} {list(images.shape)}" if isinstance(images, np.ndarray) else type(images).__name__
        raise GudaError(
            "images-array-invalid",
            f"{what} must be a uint8 array [n, C, H, W], got {found}; use from_arrays to convert",
        )
    if images.size == 0:
        raise GudaError("images-empty", f"{what} are empty (shape {list(images.shape)}); give at least one image")
    if images.shape[1] not in CHANNELS:
        raise GudaError(
            "images-channels-invalid", f"{what} have {images.shape[1]} channels, expected 1 (grey) or 3 (RGB)"
        )
    return freeze(images)


def as_pixels(images: np.ndarray, layout: str | None = None) -> np.ndarray:
    """uint8 [n, C, H, W] from uint8 or from floats in [0, 1], given as NCHW, NHWC or NHW.

    layout: "NCHW", "NHWC" or "NHW"; needed only where the shape alone leaves two readings.
    """
    images = np.asarray(images)
    layout = layout or _guess_layout(images.shape)
    if layout not in ("NCHW", "NHWC", "NHW"):
        raise GudaError("layout-unknown", f"unknown layout {layout!r}; it is NCHW, NHWC or NHW")
    if images.ndim != len(layout):
        raise GudaError(
            "layout-mismatch", f"layout {layout} needs {len(layout)} axes, images have shape {list(images.shape)}"
        )
    if layout == "NHW":
        images = images[:, None]
    elif layout == "NHWC":
        images = np.moveaxis(images, 3, 1)
    return check_pixels(_as_uint8(images), "images")


def _guess_layout(shape: tuple[int, ...]) -> str:
    if len(shape) == 3:
        return "NHW"
    if len(shape) != 4:
        raise GudaError("images-shape-invalid", f"images have shape {list(shape)}; expected NCHW, NHWC or NHW")
    first, last = shape[1] in CHANNELS, shape[3] in CHANNELS
    if first and last:
        raise GudaError(
            "layout-ambiguous",
            f"images of shape {list(shape)} can be read as NCHW and as NHWC; pass layout='NCHW' or layout='NHWC'",
        )
    if not first and not last:
        raise GudaError(
            "images-channels-invalid",
            f"images of shape {list(shape)} have no channel axis of size 1 or 3 (axis 1 for NCHW, axis 3 for NHWC)",
        )
    return "NCHW" if first else "NHWC"


def _as_uint8(images: np.ndarray) -> np.ndarray:
    if images.dtype == np.uint8:
        return images
    if images.dtype.kind != "f":
        raise GudaError("images-dtype-invalid", f"images have dtype {images.dtype}; give uint8, or floats in [0, 1]")
    if images.size == 0:
        return images.astype(np.uint8)  # refused by check_pixels, which says so better
    low, high = float(images.min()), float(images.max())
    if np.isnan(low) or np.isnan(high):
        raise GudaError("images-not-finite", "images contain NaN; clean them before use")
    if low < 0 or high > 1:
        raise GudaError(
            "images-range-invalid",
            f"float images must lie in [0, 1], found [{low:g}, {high:g}]; "
            "use (x + 1) / 2 for [-1, 1], or .astype(np.uint8) for 0..255",
        )
    return np.rint(images.astype(np.float32) * np.float32(255)).astype(np.uint8)
