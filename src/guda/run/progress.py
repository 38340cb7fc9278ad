"""Progress of long tasks: reported by the task, read by engines and `guda status`.

The heartbeat is a small file in the run folder, so it can be read on this machine or through a shared disk. No result
depends on it.
"""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from guda.errors import GudaError
from guda.files import alive, temporary
from guda.parsing import read_json

INTERVAL = 0.5  # seconds between writes

_file: Path | None = None

_last = 0.0


def watch(file: Path | None) -> None:
    """Report this process's progress to `file`, or with None nowhere."""
    global _file, _last
    _file, _last = file, 0.0


def tick(done: int, total: int) -> None:
    global _last
    now = time.monotonic()
    if _file is None or now - _last < INTERVAL:
        return
    _last = now
    tmp = temporary(_file)
    value = {"done": done, "total": total, "pid": os.getpid(), "host": socket.gethostname()}
    with suppress(OSError):  # a full disk stops the work where it has something to keep, not here
        try:
            _file.parent.mkdir(parents=True, exist_ok=True)
            tmp.write_text(json.dumps(value))
            os.replace(tmp, _file)
        finally:
            tmp.unlink(missing_ok=True)


def read(file: Path) -> dict[str, int] | None:
    """The last report; None if there is none or its process is gone (kill -9 leaves the file behind)."""
    try:
        value = read_json(file, limit=4096)
        here = value["host"] == socket.gethostname()
        return {k: int(value[k]) for k in ("done", "total")} if not here or alive(value["pid"]) else None
    except (GudaError, OSError, ValueError, KeyError, TypeError):
        return None


def fraction(file: Path) -> float:
    """Between 0 and 1; 0 if nothing was reported yet."""
    value = read(file)
    return 0.0 if value is None else min(1.0, value["done"] / max(1, value["total"]))
