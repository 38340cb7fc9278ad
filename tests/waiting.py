"""Waiting for events instead of trusting a clock: a loaded machine takes as long as it likes.

A process that has to be killed at a certain moment stops there by itself (`stop_before_publishing`), so that it cannot
be past it when the test gets to look.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

LIMIT = 600.0  # seconds after which something is broken, however loaded the machine is


def wait_for(happened: Callable[[], object], what: str, limit: float = LIMIT, pause: float = 0.01) -> None:
    """Return as soon as `happened()`; fail with `what` if it never does."""
    deadline = time.monotonic() + limit
    while not happened():
        assert time.monotonic() < deadline, f"waited {limit:.0f} s in vain: {what}"
        time.sleep(pause)


def stop_before_publishing(root: Path, pattern: str, ready: Callable[[], bool]) -> None:
    """From now on this process stops for good when it is about to rename a file to `pattern` below `root` (where *
    matches slashes too) and `ready()`; the temporary file is there, the file is not. See `stopped`."""
    publish = os.replace

    def replace(source: Any, target: Any, **options: Any) -> None:
        if fnmatch(os.path.relpath(target, root), pattern) and ready():
            stopped(root).touch()
            while True:
                signal.pause()
        publish(source, target, **options)

    os.replace = replace


def stopped(root: Path) -> Path:
    """The file that tells that a process has stopped."""
    return root.with_name(f"{root.name}.stopped")
