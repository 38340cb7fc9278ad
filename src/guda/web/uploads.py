"""An upload becomes a query set of the run: checked before it is decoded, then kept under a name made of its content.

A stranger's file is refused by what it is, never by what it is called: size of the file, kind by its first bytes,
pixels as its header tells them. Only then is it decoded, by the reader that every other picture of guda goes through.
The set is called `upload-<12 hex digits of pixels and prompt>`, and so is its one picture: the same picture has the
same noise, the same answer and the same stored result, whoever brings it and under whatever file name.
"""

from __future__ import annotations

import io
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import Field

from guda.config import Config
from guda.data.folder import read_image
from guda.data.queries import Queries
from guda.errors import GudaError
from guda.files import digest, digest_arrays
from guda.run.run import UPLOAD, Run

MB = 2**20

_decoding = threading.Semaphore(1)  # a decoded picture may take hundreds of megabytes: one at a time

LONGEST_PROMPT = 2000  # characters; text encoders read far fewer


class Limits(Config):
    """Limits on what visitors may upload."""

    max_mb: float = Field(10.0, gt=0, description="Largest file, megabytes.")
    max_megapixels: float = Field(25.0, gt=0, description="Largest picture, megapixels according to its header.")
    queue: int = Field(32, ge=1, description="Pictures that may wait to be scored.")
    total_mb: float = Field(256.0, gt=0, description="All uploads that are received or read at a time, megabytes.")
    uploads: int = Field(10_000, ge=1, description="Uploads that a run keeps.")


class Refused(GudaError):
    """An upload that is not accepted; the message is shown to the uploader."""


class Full(Refused):
    """The queue is full; try again later."""


@dataclass(frozen=True)
class Picture:
    """What the model will see, uint8 [C, H, W], and what was done to the upload to get there."""

    pixels: np.ndarray
    note: str = ""


def read_upload(path: str | Path, shape: tuple[int, ...], limits: Limits) -> Picture:
    """The picture in a file, as the model's (C, H, W); refused if it is too large, not an image, or damaged."""
    with _decoding:
        return _read(Path(path), shape, limits)


def _read(path: Path, shape: tuple[int, ...], limits: Limits) -> Picture:
    width, height = _header(path, limits)
    c, h, w = shape
    own = (width, height) == (w, h)
    if not own and h != w:
        raise Refused(
            "upload-size-mismatch",
            f"{path.name} is {width} x {height} pixels; this model takes pictures of exactly {w} x {h}",
        )
    try:
        pixels = read_image(path, None if own else h, {1: "L", 3: "RGB"}[c])
    except GudaError as e:
        raise Refused(e.code, str(e).replace(str(path), path.name)) from None
    if pixels.shape != (c, h, w):  # its EXIF tag turned it
        raise Refused("upload-rotated", f"{path.name} is rotated by its EXIF tag; save it upright at {w} x {h} pixels")
    if own:
        return Picture(pixels)
    cut = "" if width == height else ", its centre square cut out"
    return Picture(pixels, f"{path.name} is {width} x {height} pixels{cut}; the model sees it at {w} x {h}.")


def _header(path: Path, limits: Limits) -> tuple[int, int]:
    """(width, height) as the file claims, without decoding a pixel."""
    from PIL import Image

    try:
        size = path.stat().st_size
        data = path.read_bytes() if size <= limits.max_mb * MB else b""
    except FileNotFoundError:
        raise Refused("upload-expired", f"{path.name} is no longer on the server; upload it again") from None
    if size == 0:
        raise Refused("upload-empty", f"{path.name} is empty")
    if size > limits.max_mb * MB:
        raise Refused("upload-too-large", f"{path.name} has {size / MB:.1f} MB; the limit is {limits.max_mb:g} MB")
    kind = _kind(data)
    if kind is None:
        raise Refused(
            "upload-type-unsupported",
            f"{path.name} is not a PNG, JPEG or WebP image (we check the content, not the file name)",
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit is lower and reported below
            with Image.open(io.BytesIO(data), formats=(kind,)) as file:
                (width, height), frames = file.size, getattr(file, "n_frames", 1)
                several = frames > 1 and file.format != "MPO"  # a camera's JPEG brings previews of itself
    except Image.DecompressionBombError:
        raise Refused(
            "upload-pixels-too-many",
            f"{path.name} has too many pixels; the limit is {limits.max_megapixels:g} megapixels",
        ) from None
    except Exception:  # a damaged header makes Pillow raise nearly anything
        raise Refused("upload-damaged", f"{path.name} is damaged: its {kind} header cannot be read") from None
    if width < 1 or height < 1:
        raise Refused("upload-without-pixels", f"{path.name} has no pixels ({width} x {height})")
    if width * height > limits.max_megapixels * 1e6:
        raise Refused(
            "upload-pixels-too-many",
            f"{path.name} is {width:,} x {height:,} pixels, {width * height / 1e6:,.0f} megapixels; "
            f"the limit is {limits.max_megapixels:g} megapixels",
        )
    if several:
        raise Refused(
            "image-animated", f"{path.name} is animated ({frames} frames); save the frame you mean as a still picture"
        )
    return width, height


def _kind(data: bytes) -> str | None:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    return "WEBP" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


def read_prompt(prompt: str | None, condition: str | None) -> str | None:
    """`condition`: what the model is given with every picture (`prompt`, `class`); None: nothing is accepted."""
    text = " ".join((prompt or "").split())
    if condition is None:
        if text:
            raise Refused("prompts-unexpected", "this model takes no prompt; leave it empty")
        return None
    if not text:
        raise Refused(
            "prompts-required",
            f"this model takes a {condition} with every picture; enter the {condition} that made this one",
        )
    if len(text) > LONGEST_PROMPT:
        raise Refused(
            "prompt-too-long", f"the {condition} has {len(text):,} characters; the limit is {LONGEST_PROMPT:,}"
        )
    return text


def upload_name(pixels: np.ndarray, prompt: str | None = None) -> str:
    return UPLOAD + digest([digest_arrays(np.ascontiguousarray(pixels)[None]), prompt], length=12)


def keep_upload(run: Run, pixels: np.ndarray, prompt: str | None = None, most: int | None = None) -> str:
    """Store one picture as a query set of the run, once and if there are not `most` yet; returns the set's name."""
    images = np.ascontiguousarray(pixels)[None]
    name = upload_name(pixels, prompt)
    queries = Queries((name,), images, None if prompt is None else (prompt,), name)
    folder = run.path("queries", name)
    if not (folder / "index.json").is_file():
        if most is not None and sum(s.startswith(UPLOAD) for s in run.query_sets()) >= most:
            raise Refused(
                "uploads-full",
                f"this run already holds {most:,} uploads, its limit; restart the server with a higher --max-uploads",
            )
        queries.save(folder)
    elif Queries.load(folder).digest != queries.digest:
        raise GudaError(
            "upload-folder-conflict", f"{folder} holds a different picture than its name says; remove that folder"
        )
    return name
