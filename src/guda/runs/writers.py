"""Writers: who is writing under a temporary name, and whether they still are.

    .tmp-<place>-<pid>-<random>-<name>

A place is where a process number means something: one boot of one machine, one container on it. Only there can anybody
know that a writer is dead; of writers elsewhere one can only know that nothing has moved for a day.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import time
import uuid
from functools import cache
from pathlib import Path

TEMPORARY = ".tmp-"  # prefix of names that were never published
NAME = re.compile(re.escape(TEMPORARY) + r"(?P<place>[0-9a-f]{10})-(?P<pid>\d+)-[0-9a-f]{12}-")
DAY = 86400.0


@cache
def place() -> str:
    """Short, and the same for every process that sees the same process numbers."""
    known = [socket.gethostname()]
    for read in (
        lambda: Path("/proc/sys/kernel/random/boot_id").read_text(),
        lambda: os.readlink("/proc/self/ns/pid"),  # containers of one machine number their processes apart
    ):
        try:
            known.append(read().strip())
        except OSError:  # not Linux
            known.append(str(uuid.getnode()))
    return hashlib.sha256(" ".join(known).encode()).hexdigest()[:10]


def temporary(path: Path) -> Path:
    """A name beside `path` that no other process on any machine uses."""
    return path.parent / f"{TEMPORARY}{place()}-{os.getpid()}-{uuid.uuid4().hex[:12]}-{path.name}"


def alive(pid: int) -> bool:
    """Of a process of this place."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True  # somebody else's
    except OSError:
        return False
    try:  # in a container nobody may have collected the dead
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return True


def sweep(root: Path, older_than: float = DAY) -> None:
    """Remove what dead processes left under temporary names.

    Others may publish and remove at the same time, so anything here may vanish while one looks at it."""
    for folder, folders, files in os.walk(root):  # ignores a folder that vanishes
        strays = [name for name in folders if name.startswith(TEMPORARY)]
        folders[:] = [name for name in folders if not name.startswith(TEMPORARY)]
        for name in strays + [name for name in files if name.startswith(TEMPORARY)]:
            stray = Path(folder) / name
            if not _abandoned(stray, older_than):
                continue
            if stray.is_dir():
                shutil.rmtree(stray, ignore_errors=True)
            else:
                stray.unlink(missing_ok=True)


def _abandoned(stray: Path, older_than: float) -> bool:
    found = NAME.match(stray.name)
    if found is not None and found["place"] == place():
        return not alive(int(found["pid"]))
    return time.time() - _touched(stray) > older_than


def _touched(stray: Path) -> float:
    """When anything in it last changed; now, where it vanished."""
    newest = 0.0
    for path in (stray, *stray.rglob("*")) if stray.is_dir() else (stray,):
        try:
            newest = max(newest, path.lstat().st_mtime)
        except OSError:
            newest = time.time()
    return newest
