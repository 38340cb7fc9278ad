"""Tasks of the engine's tests; workers import this file by name."""

import json
import os
import signal
import time

from guda.errors import GudaError, Mismatch
from guda.run import task as progress
from guda.run.run import Run
from waiting import LIMIT, wait_for


def touch(run: Run, name: str) -> None:
    """Says who ran it."""
    run.path("out").mkdir(exist_ok=True)
    with open(run.path("out", "log.jsonl"), "a") as log:
        print(json.dumps({"name": name, "pid": os.getpid()}), file=log)
    run.path("out", name).write_text(name)


def slow(run: Run, name: str) -> float:
    """Half done until somebody has seen that."""
    progress.INTERVAL = 0.0
    progress.tick(1, 2)
    wait_for(run.path("out", f"{name}.seen").exists, f"nobody sees {name}'s heartbeat")
    touch(run, name)
    return 100.0  # seconds it spent before an interruption


def forever(run: Run) -> None:
    """Longer than any test: who gets to the end was not stopped."""
    progress.INTERVAL = 0.0
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        progress.tick(1, 2)
        time.sleep(0.02)
    touch(run, "never")


def fail(run: Run, kind: str) -> None:
    if kind == "late":
        wait_for(lambda: list(run.path("progress").glob("[!.]*.json")), "the other task's heartbeat")
    if kind == "bug":
        raise ZeroDivisionError("a bug")
    if kind == "mismatch":
        raise Mismatch("thing-stale", "thing", "old", "new", "do this")
    raise GudaError("group-too-small", "group 'x' is too small; add images")


def die(run: Run) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def nothing(run: Run) -> None:
    pass
