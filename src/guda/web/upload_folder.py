"""The folder of raw uploads: removed at the end, and never larger than a limit.

Gradio keeps every file that a browser sends until an hour later, asked about or not. Here an upload reserves its bytes
before the first of them is read; the oldest files that no page is working with make room, and what does not fit even
then is refused. A picture that was asked about is a query set of the run by then (uploads.py) and loses nothing.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

PREFIX = "guda-web-"

LOCK = ".lock"  # held by the server that a folder belongs to, so that others know a folder of a killed one

BLOCK = 4096  # an empty file takes room, too

_held: Counter[str] = Counter()
_holding = threading.Lock()


@contextmanager
def holding(files: Iterable[str | Path]) -> Iterator[None]:
    """These uploads are not removed meanwhile: a batch reads its pictures as the queue has room."""
    names = [os.path.abspath(f) for f in files]
    with _holding:
        _held.update(names)
    try:
        yield
    finally:
        with _holding:
            for name in names:
                _held[name] -= 1
                if not _held[name]:
                    del _held[name]


class UploadFolder:
    """Files directly in it are being received; complete ones are in folders of their own. `most`: bytes."""

    def __init__(self, path: Path, most: int) -> None:
        self.path, self.most = path, most
        self._reserved: Counter[object] = Counter()
        self._lock = threading.Lock()

    def reserve(self, who: object, size: int) -> bool:
        """Make room for an upload of `size` bytes; False if there is none. Ends with `release(who)`."""
        with self._lock:
            if not self._reserved:
                self._sweep()
            # what is being received counts as received and as reserved: never too little
            excess = self.used + self._reserved.total() + size - self.most
            if size > self.most or self._remove_oldest(excess) < excess:
                return False
            self._reserved[who] = size
            return True

    def release(self, who: object) -> None:
        """The upload ended, whole or not."""
        with self._lock:
            del self._reserved[who]
            if not self._reserved:
                self._sweep()

    @property
    def used(self) -> int:
        """Bytes on disk."""
        return sum(size for _, size, _ in self._files(complete=False))

    def _sweep(self) -> None:
        """Remove what uploads that were broken off have left."""
        for path in self.path.iterdir() if self.path.is_dir() else ():
            if path.is_file() and path.name != LOCK:
                path.unlink(missing_ok=True)

    def _remove_oldest(self, excess: int) -> int:
        """Remove complete files until `excess` bytes are free; returns how many are."""
        freed = 0
        for _, size, path in sorted(self._files(complete=True)):
            if freed >= excess:
                break
            with _holding:
                if _held[str(path)] > 0:
                    continue
                path.unlink(missing_ok=True)
            freed += size
            with suppress(OSError):
                path.parent.rmdir()
        return freed

    def _files(self, complete: bool) -> Iterator[tuple[int, int, Path]]:
        """(when it was written, bytes, path)."""
        for folder, _, names in os.walk(self.path):
            if complete and Path(folder) == self.path:
                continue
            for path in (Path(folder, name) for name in names):
                try:
                    stat = path.stat()
                except FileNotFoundError:
                    continue
                yield stat.st_mtime_ns, max(stat.st_size, BLOCK), path


@contextmanager
def upload_folder(most: int, parent: Path | None = None) -> Iterator[UploadFolder]:
    """A new folder, removed at the end; those of servers that were killed are removed now."""
    parent = parent or Path(tempfile.gettempdir())
    remove_abandoned(parent)
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=parent, ignore_cleanup_errors=True) as name:
        path = Path(name).resolve()
        with open(path / LOCK, "w") as lock:
            _lock(lock)
            yield UploadFolder(path, most)


def _lock(file: IO[str]) -> bool:
    """Hold a lock that dies with this process; OSError if another process does, False where there are none."""
    try:
        import fcntl
    except ImportError:  # Windows
        return False
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return True


def remove_abandoned(parent: Path) -> None:
    for path in parent.glob(f"{PREFIX}*"):
        try:
            with open(path / LOCK, "r+") as lock:
                if _lock(lock):
                    shutil.rmtree(path, ignore_errors=True)
        except OSError:  # another server's, or another user's
            continue
