"""Programs that tests start: they end with the test, whatever becomes of it, and so does everything they started.

A process is started in a group of its own, which `Programs.end` kills. If the tests themselves are killed, the kernel
ends it (Linux), and workers of guda end with their driver.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

PR_SET_PDEATHSIG = 1


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


_LIBC = _libc()  # loaded before the fork: nothing may be allocated after it


def end_with_parent() -> None:
    """In a new process, before its program begins: if the parent dies, this is killed."""
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # what a shell starts in the background ignores Ctrl-C


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """A program in a process group of its own."""
    before: Callable[[], None] = end_with_parent
    return subprocess.Popen(command, text=True, start_new_session=True, preexec_fn=before, **options)


def end(process: subprocess.Popen[str]) -> None:
    """Kill its group, the workers of a driver included, and collect it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    process.wait()


class Programs:
    """What one test has started."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[str]] = []

    def __call__(self, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        self.started.append(process := start(command, **options))
        return process

    def end(self) -> None:
        for process in self.started:
            end(process)
