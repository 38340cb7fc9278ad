"""Task: one piece of work that depends only on the run folder, and its cost.

`fn` names a function `f(run, **args)`; its result is the files in `makes`, published whole. A task whose files exist
is done and is never run again, so any engine may run any task any number of times, anywhere the folder is mounted.
"""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from guda.files import digest
from guda.run import progress
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
    store: str | None = field(default=None, compare=False)  # leaves one network, packed so ("fp32": a whole copy)
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
    heartbeat = run.path(task.heartbeat)
    progress.watch(heartbeat if alone else None)
    started = time.monotonic()
    try:
        # a task that resumes may return the seconds it had spent before
        earlier = getattr(importlib.import_module(module), function)(run, **task.args) or 0.0
    finally:
        progress.watch(None)
        if alone:
            Path(heartbeat).unlink(missing_ok=True)
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
