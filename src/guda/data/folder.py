"""Image folders: which files there are, and their pixels.

Used for training data (ImageData.from_folder) and for queries (Queries.from_folder). Every file is decoded in full, so
a damaged one is found before a model is trained on it. Labels come from folder names or a table: labels.py.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from guda.data.groups import natural
from guda.errors import GudaError, choices

if TYPE_CHECKING:
    from PIL import Image


EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"})


# Pictures we cannot read. They are refused: passing over them would drop training images without a word.
FOREIGN = frozenset({".avif", ".heic", ".heif", ".jxl", ".jp2", ".psd", ".svg", ".tga", ".ppm", ".pgm"})


# Decoders are limited to these: a file named .png that holds PostScript must not start Ghostscript.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")


# --- files ----------------------------------------------------------------------------------------
def image_files(root: Path) -> list[str]:
    """Relative POSIX paths of all images below `root`, hidden ones left out, in natural order."""
    if not root.exists():
        raise GudaError("data-folder-missing", f"image folder {root} does not exist")
    if not root.is_dir():
        raise GudaError("data-folder-file", f"{root} is a file; give the folder that holds the images")
    found: list[str] = []
    _walk(root, "", (), found)
    if not found:
        raise GudaError(
            "data-folder-empty", f"no images in {root}; expected files ending in {choices(sorted(EXTENSIONS))}"
        )
    return sorted(found, key=lambda f: [natural(part) for part in f.split("/")])


def _walk(folder: Path, prefix: str, above: tuple[str, ...], found: list[str]) -> None:
    real = os.path.realpath(folder)
    if real in above:  # symbolic links are followed, as group folders are often links, but not in circles
        raise GudaError("folder-link-cycle", f"{folder} is a link to a folder above it; remove the link")
    try:
        entries = list(os.scandir(folder))
    except OSError as e:
        raise GudaError("folder-unreadable", f"cannot list {folder}: {e.strerror}") from None
    for entry in entries:
        if entry.name.startswith("."):
            continue
        relative = prefix + entry.name
        suffix = os.path.splitext(entry.name)[1].lower()
        if entry.is_dir():
            _walk(folder / entry.name, relative + "/", (*above, real), found)
        elif suffix in FOREIGN:
            raise GudaError(
                "image-type-unsupported",
                f"{entry.path}: {suffix} images cannot be read; convert it to PNG or JPEG, or remove it",
            )
        elif suffix in EXTENSIONS:
            try:
                relative.encode()
            except UnicodeEncodeError:
                raise GudaError(
                    "file-name-encoding", f"the file name {relative!a} in {folder} is not UTF-8; rename it"
                ) from None
            found.append(relative)


# --- pixels ---------------------------------------------------------------------------------------
def check_options(size: int | None, mode: str | None) -> None:
    if size is not None and (isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1):
        raise GudaError("size-invalid", f"size must be a whole number of pixels, at least 1, got {size!r}")
    if mode not in (None, "L", "RGB"):
        raise GudaError("mode-invalid", f"mode must be L (grey) or RGB, got {mode!r}")


def read_image(path: Path, size: int | None = None, mode: str | None = None) -> np.ndarray:
    """One image, uint8 [C, H, W]; upright by its EXIF tag, transparency composited on white.

    size: scale the shorter side to `size` (bicubic, antialiased) and cut the centre square.
    mode: "L" or "RGB"; without it, one channel if the file is stored as grey, three otherwise.
    """
    from PIL import Image, ImageOps

    check_options(size, mode)
    try:
        with warnings.catch_warnings():
            # Pillow warns above its limit and raises only at twice that; one limit is enough.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=FORMATS) as file:
                _check_kind(path, file)
                file.load()
                image = _flatten(ImageOps.exif_transpose(file), mode)
        if size is not None:
            # The crop box is resampled directly: scaling first would blow a 1 x 50,000 strip up to gigabytes.
            image = ImageOps.fit(image, (size, size), method=Image.Resampling.BICUBIC)
    except (GudaError, MemoryError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise GudaError(
            "image-too-large",
            f"{path} has more than {Image.MAX_IMAGE_PIXELS} pixels, Pillow's limit against decompression "
            "bombs; scale it down or remove it",
        ) from None
    except Exception as e:  # a damaged file makes Pillow's decoders raise nearly anything
        raise GudaError("image-unreadable", f"cannot read image {path} ({e}); replace it or remove it") from None
    pixels = np.array(image, dtype=np.uint8)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _check_kind(path: Path, file: Image.Image) -> None:
    if file.mode.startswith(("I", "F")):
        raise GudaError(
            "image-depth-unsupported",
            f"{path} has 16-bit, 32-bit or floating-point pixels (mode {file.mode}); convert it to 8 bits per channel",
        )
    frames = getattr(file, "n_frames", 1)
    if frames > 1 and file.format != "MPO":  # MPO: a camera's JPEG with previews after the picture itself
        raise GudaError("image-animated", f"{path} has {frames} frames; save the one you mean as a still image")


def _flatten(image: Image.Image, mode: str | None) -> Image.Image:
    """Without palette and transparency, in mode L or RGB."""
    from PIL import Image

    target = mode or ("L" if image.mode in ("1", "L", "LA") else "RGB")
    if "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "RGBa"):
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    elif image.mode == "P":
        image = image.convert("RGB")
    return image if image.mode == target else image.convert(target)


def read_images(root: Path, files: Sequence[str], size: int | None = None, mode: str | None = None) -> np.ndarray:
    """All of `files`, uint8 [n, C, H, W], read-only; one channel if `mode` says so or every image is grey."""
    check_options(size, mode)
    out = np.empty((0, 0, 0, 0), np.uint8)
    for i, file in enumerate(files):
        image = read_image(root / file, size, mode)
        if i == 0:  # all of the memory at once and once: 24,000 images of 512 pixels are 19 GB
            out = np.empty((len(files), *image.shape), np.uint8)
        if image.shape[1:] != out.shape[2:]:
            (h0, w0), (h, w) = out.shape[2:], image.shape[1:]
            raise GudaError(
                "image-sizes-differ",
                f"images in {root} differ in size: {files[0]} is {w0}x{h0}, {file} is {w}x{h}; "
                "give --size N to scale and crop them all to N x N",
            )
        if image.shape[0] > out.shape[1]:  # the first colours after grey ones
            grey, out = out, np.empty((len(files), *image.shape), np.uint8)
            out[:i] = grey[:i]
        out[i] = image  # grey among colours is repeated over the channels
    out.setflags(write=False)
    return out
