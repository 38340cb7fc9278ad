"""Tasks of the engine's tests; workers import this file by name."""

import json
import os
import signal
import time

from guda.errors import GudaError, Mismatch
from guda.run import progress
from guda.run.run import Run


def touch(run: Run, name: str) -> None:
    """Says who ran it and when."""
    run.path("out").mkdir(exist_ok=True)
    with open(run.path("out", "log.jsonl"), "a") as log:
        print(json.dumps({"name": name, "pid": os.getpid(), "at": time.monotonic()}), file=log)
    run.path("out", name).write_text(name)


def slow(run: Run, name: str, ticks: int = 6) -> float:
    progress.INTERVAL = 0.0
    for i in range(ticks):
        progress.tick(i + 1, ticks)
        time.sleep(0.1)
    touch(run, name)
    return 100.0  # seconds it spent before an interruption


def forever(run: Run) -> None:
    progress.INTERVAL = 0.0
    while True:
        progress.tick(1, 2)
        time.sleep(0.02)


def fail(run: Run, kind: str) -> None:
    deadline = time.monotonic() + 10
    while kind == "late" and not list(run.path("progress").glob("[!.]*.json")) and time.monotonic() < deadline:
        time.sleep(0.02)  # until the other task is under way
    if kind == "bug":
        raise ZeroDivisionError("a bug")
    if kind == "mismatch":
        raise Mismatch("thing-stale", "thing", "old", "new", "do this")
    raise GudaError("group-too-small", "group 'x' is too small; add images")


def die(run: Run) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def nothing(run: Run) -> None:
    pass
