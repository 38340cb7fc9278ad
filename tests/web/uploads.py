"""Files that people and strangers bring."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_header(width: int, height: int) -> bytes:
    """A grey PNG that claims a size and holds next to nothing."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def grey(path: Path, size: tuple[int, int] = (8, 8), seed: int = 0) -> Path:
    """A random grey picture; size as (width, height)."""
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, size[::-1], dtype=np.uint8)).save(path)
    return path
