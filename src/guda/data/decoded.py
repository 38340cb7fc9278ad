"""Decoded images are kept: a folder of 2,000 paintings takes minutes to decode, and `guda check`, a mistyped `guda
init` and the next one should not each pay for it.

    $GUDA_CACHE/decoded/<hash of folder, size, mode>.safetensors     default ~/.cache/guda

An image is taken from there if its file has the size and the time of change that it had. Folders of a few megabytes are
not kept (decoding them is quick), nor are more than a gigabyte of pixels. Deleting the cache costs time, nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from guda.errors import GudaError
from guda.files import digest, read_tensors, write_tensors

VARIABLE = "GUDA_CACHE"

LEAST = 4 * 2**20  # bytes of files that are worth it

MOST = 2**30  # bytes of pixels

# ---- Progress of decoding, for whoever shows it. No result depends on it.
_watch: Callable[[int, int], None] | None = None


@contextmanager
def watched(watch: Callable[[int, int], None]) -> Iterator[None]:
    """Within, `watch(done, total)` is told of every image."""
    global _watch
    before, _watch = _watch, watch
    try:
        yield
    finally:
        _watch = before


def progress(done: int, total: int) -> None:
    if _watch is not None:
        _watch(done, total)


class Decoded:
    """The images of one folder at one size and mode, by file; empty where there is nothing usable."""

    def __init__(self, path: Path | None, stamps: dict[str, list[int]]) -> None:
        self.path, self.stamps = path, stamps  # None: not worth keeping
        self.images: np.ndarray | None = None
        self.rows: dict[str, tuple[int, int]] = {}  # file -> (row of `images`, channels)
        self.channels: dict[str, int] = {}  # of what is to be kept
        self.new = False

    @classmethod
    def load(cls, root: Path, files: Sequence[str], size: int | None, mode: str | None) -> Decoded:
        stamps = {}
        for file in files:
            with suppress(OSError):
                about = (root / file).stat()
                stamps[file] = [about.st_size, about.st_mtime_ns]
        if sum(n for n, _ in stamps.values()) < LEAST:
            return cls(None, stamps)
        folder = Path(os.environ.get(VARIABLE) or Path.home() / ".cache" / "guda") / "decoded"
        found = cls(folder / f"{digest([os.path.realpath(root), size, mode], 24)}.safetensors", stamps)
        found._read()
        return found

    def _read(self) -> None:
        """What is damaged or was written by another version counts as absent."""
        if self.path is None or not self.path.is_file():
            return
        with suppress(GudaError, KeyError, TypeError, ValueError):
            tensors, header = read_tensors(self.path)
            images = tensors["images"].numpy()
            known: dict[str, Any] = header["files"]
            rows = {
                file: (int(row), int(channels))
                for file, (row, channels, *stamp) in known.items()
                if 0 <= row < len(images) and self.stamps.get(file) == stamp
            }
            if images.dtype == np.uint8 and images.ndim == 4:
                self.images, self.rows = images, rows

    def __contains__(self, file: str) -> bool:
        return file in self.rows

    def __getitem__(self, file: str) -> np.ndarray:
        """uint8 [C, H, W]."""
        assert self.images is not None
        row, channels = self.rows[file]
        return np.asarray(self.images[row, :channels])  # grey ones are kept beside colours, repeated

    def note(self, file: str, channels: int) -> None:
        """This image is among those that `save` is given."""
        self.new |= file not in self.rows
        self.channels[file] = channels

    def save(self, files: Sequence[str], images: np.ndarray) -> None:
        """Keep these images, if any of them is new; a disk that refuses is no reason to fail."""
        if self.path is None or not self.new or images.nbytes > MOST:
            return
        import torch

        known = {file: [row, self.channels[file], *self.stamps[file]] for row, file in enumerate(files)}
        with suppress(GudaError, OSError, KeyError):
            write_tensors(self.path, {"images": torch.from_numpy(images.copy())}, {"files": known})
