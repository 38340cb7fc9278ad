"""The folder of raw uploads: removed at the end, and never larger than a limit.

An upload reserves its room before the first byte of it is read, twice its length: as it arrives, and as the file that
is decoded; what does not fit is refused. A file lives as long as its request. A picture that was asked about is a query
set of the run by then (uploads.py); one that was refused leaves nothing.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

PREFIX = "guda-web-"

LOCK = ".lock"  # held by the server that a folder belongs to, so that others know a folder of a killed one


class UploadFolder:
    """`most`: bytes of all requests that are being received or read."""

    def __init__(self, path: Path, most: int) -> None:
        self.path, self.most = path, most
        self._reserved: Counter[object] = Counter()
        self._lock = threading.Lock()

    def reserve(self, who: object, size: int) -> bool:
        """Room for an upload of `size` bytes; False if there is none. Ends with `release(who)`."""
        with self._lock:
            if self._reserved.total() + 2 * size > self.most:
                return False
            self._reserved[who] = 2 * size
            return True

    def release(self, who: object) -> None:
        """The request ended."""
        with self._lock:
            del self._reserved[who]

    @contextmanager
    def file(self, name: str, content: IO[bytes]) -> Iterator[Path]:
        """One upload as a file, while it is read; its name is shown to its sender."""
        plain = re.sub(r"[^\w.() -]+", "_", Path(name).name)[-80:].lstrip(".") or "picture"
        with tempfile.TemporaryDirectory(dir=self.path) as folder:
            path = Path(folder, plain)
            with path.open("wb") as file:
                shutil.copyfileobj(content, file)
            yield path


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
