"""Task: one piece of work that depends only on the run folder, and its cost.

`fn` names a function `f(run, **args)`; its result is the files in `makes`, published whole. A task whose files exist
is done and is never run again, so any engine may run any task any number of times, anywhere the folder is mounted.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from guda.errors import GudaError
from guda.files import alive, digest, temporary
from guda.parsing import read_json
from guda.run.run import Run


@dataclass(frozen=True)
class Task:
    name: str  # unique, readable: "train full-s0", "fit retrack without 3"
    stage: str  # its time is recorded under: "train", "fit/retrack", "score/<set>/retrack", ...
    fn: str  # "package.module:function"
    args: dict[str, Any]  # plain JSON
    makes: tuple[str, ...]  # files, relative to the run
    needs: tuple[str, ...] = ()  # files of other tasks
    cost: float = field(default=0.0, compare=False)  # network evaluations
    trains: bool = field(default=False, compare=False)  # trains a whole model: all processes of a launch share the work
    store: str | None = field(default=None, compare=False)  # leaves a network, packed so ("fp32": a whole copy)
    copies: int = field(default=1, compare=False)  # of them
    bytes: int = field(default=0, compare=False)  # what it leaves besides
    changes: dict[str, Any] = field(default_factory=dict, compare=False)  # to the recipe, see Run.with_changes

    def done(self, run: Run) -> bool:
        return all(run.has(path) for path in self.makes)

    def ready(self, run: Run) -> bool:
        return all(run.has(path) for path in self.needs)

    @property
    def weight(self) -> float:
        """What it counts in a progress bar; one that evaluates no network takes some time too."""
        return max(1.0, self.cost)

    @property
    def heartbeat(self) -> str:
        return f"progress/{digest(self.name)}.json"


def execute(root: str, task: Task, alone: bool = True) -> float:
    """Run one task in this process; returns its seconds. With `alone` false another process reports and records it."""
    run = Run.open(root)
    if task.changes:
        run = run.with_changes(task.changes)
    module, _, function = task.fn.partition(":")
    heartbeat, before = run.path(task.heartbeat), _heartbeat  # of a task that runs others in its own process
    report_to(heartbeat if alone else None)
    started = time.monotonic()
    try:
        # a task that resumes may return the seconds it had spent before
        earlier = getattr(importlib.import_module(module), function)(run, **task.args) or 0.0
    finally:
        report_to(before)
        if alone:
            heartbeat.unlink(missing_ok=True)
    seconds = time.monotonic() - started + earlier
    if alone:
        run.record_time(task.stage, task.name, seconds, task.cost)
    run.publish()
    return seconds


def pending(run: Run, tasks: list[Task]) -> list[Task]:
    """Tasks that are left to do, those that make the same files once, with the run's changes to its recipe."""
    seen: set[tuple[str, ...]] = set()
    left = []
    for task in tasks:
        if task.makes not in seen and not task.done(run):
            left.append(replace(task, changes=run.changes) if run.changes else task)
        seen.add(task.makes)
    return left


# ---- Progress: reported by the task, read by engines and `guda status`. The heartbeat is a small file in the run
# folder, so it can be read on this machine or through a shared disk. No result depends on it.
INTERVAL = 0.5  # seconds between writes

_heartbeat: Path | None = None
_reported = 0.0


def report_to(file: Path | None) -> None:
    """Report this process's progress to `file`, or with None nowhere."""
    global _heartbeat, _reported
    _heartbeat, _reported = file, 0.0


def tick(done: int, total: int) -> None:
    global _reported
    now = time.monotonic()
    if _heartbeat is None or now - _reported < INTERVAL:
        return
    _reported = now
    tmp = temporary(_heartbeat)
    value = {"done": done, "total": total, "pid": os.getpid(), "host": socket.gethostname()}
    with suppress(OSError):  # a full disk stops the work where it has something to keep, not here
        try:
            _heartbeat.parent.mkdir(parents=True, exist_ok=True)
            tmp.write_text(json.dumps(value))
            os.replace(tmp, _heartbeat)
        finally:
            tmp.unlink(missing_ok=True)


def read_progress(file: Path) -> dict[str, int] | None:
    """The last report; None if there is none or its process is gone (kill -9 leaves the file behind)."""
    try:
        value = read_json(file, limit=4096)
        here = value["host"] == socket.gethostname()
        return {k: int(value[k]) for k in ("done", "total")} if not here or alive(value["pid"]) else None
    except (GudaError, OSError, ValueError, KeyError, TypeError):
        return None


def fraction(file: Path) -> float:
    """Between 0 and 1; 0 if nothing was reported yet."""
    value = read_progress(file)
    return 0.0 if value is None else min(1.0, value["done"] / max(1, value["total"]))
